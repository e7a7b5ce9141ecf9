"""A run that aims at a held-out score ends at it, as if the step that is made then was its last."""

import pytest

from streamrl.learner.checkpoint.checkpoint import find_newest

pytestmark = [pytest.mark.ray, pytest.mark.long]

AIMS = ("--eval.every", "3", "--eval.target_score", "0.01", "--learner.steps", "500")


def test_a_run_ends_finished_once_a_version_has_the_score_it_aims_at(train) -> None:
    run = train("aimed", *AIMS)
    assert run.code == 0, run.output
    summary = run.summary()
    assert summary["eval_after"] is not None
    assert summary["steps"] == run.metrics()[-1]["step"] < 500
    assert find_newest(run.folder / "checkpoints").newest.version.step == summary["steps"]
    assert "eval.target_score is 0.01" in run.output
    again = train("aimed", *AIMS)
    assert (again.code, again.summary()) == (0, summary)


def test_two_ranks_end_at_the_same_step(train) -> None:
    run = train("aimed-by-two", *AIMS, "--learner.num_workers", "2")
    assert run.code == 0, run.output
    assert run.summary()["steps"] < 500
