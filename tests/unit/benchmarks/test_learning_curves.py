"""How `make bench-learning` reads a run: scores, at the steps and the seconds that they are of."""

import json
from pathlib import Path

import pytest
from learning_study.curves import Point, curve_of, mean_curve, read_result
from learning_study.runs import Run, Setting
from support.learner.learning_results import scored, step_line

from streamrl.errors import DataError
from streamrl.observability.metrics import STANDS_FOR, Summary, write_summary

RUN = Run("sums", 1, Setting(4, "tis"))


def finished(folder: Path, *, score: float | None) -> Path:
    """A run folder with what is read of it."""
    lines = [step_line(1, seconds=2.0, **scored(0, 0.4)), step_line(2, seconds=3.0)]
    last = {"step": 2, **scored(2, 0.7)}
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in [*lines, last]))
    summary = Summary(eval_before=0.4, eval_after=score, wall_s=9.0, steps=2, rollouts_per_s=1.0, seed=1)
    summary.staleness_mean = 3.75
    write_summary(folder / "summary.json", summary)
    return folder


def test_a_score_stands_at_the_step_that_it_is_of_and_not_where_it_is_written():
    lines = [
        step_line(1, seconds=2.0, **scored(0, 0.4)),
        step_line(2, seconds=3.0),
        step_line(3, seconds=5.0, **scored(2, 0.6)),
    ]
    assert curve_of(lines) == (Point(0, 0.0, 0.4), Point(2, 5.0, 0.6))


def test_the_last_score_may_stand_in_a_line_without_a_step_of_its_own():
    lines = [step_line(1, seconds=2.0), step_line(2, seconds=3.0), {"step": 2, **scored(2, 0.7)}]
    assert curve_of(lines) == (Point(2, 5.0, 0.7),)


def test_a_line_that_stands_for_several_steps_takes_their_seconds():
    lines = [step_line(1, seconds=2.0, **{STANDS_FOR: 3}), step_line(4, seconds=1.0), {"step": 4, **scored(4, 0.5)}]
    assert curve_of(lines) == (Point(4, 7.0, 0.5),)


def test_a_score_that_could_not_be_written_is_left_out():
    assert curve_of([step_line(1, seconds=1.0, **{"eval/score": None, "eval/step": 0})]) == ()


def test_the_mean_of_curves_has_the_steps_that_all_of_them_have():
    first = (Point(0, 0.0, 0.4), Point(25, 5.0, 0.5), Point(50, 10.0, 0.6))
    second = (Point(0, 0.0, 0.2), Point(50, 20.0, 0.8))
    assert mean_curve([first, second]) == (Point(0, 0.0, pytest.approx(0.3)), Point(50, 15.0, pytest.approx(0.7)))


def test_a_finished_run_is_read_from_its_folder(tmp_path):
    result = read_result(RUN, finished(tmp_path, score=0.7))
    assert (result.task, result.seed, result.setting) == ("sums", 1, Setting(4, "tis"))
    assert (result.score, result.staleness) == (0.7, 3.75)
    assert result.curve == (Point(0, 0.0, 0.4), Point(2, 5.0, 0.7))


def test_a_run_without_a_last_score_is_refused_with_its_folder(tmp_path):
    with pytest.raises(DataError, match=f"{tmp_path}.*remove the folder"):
        read_result(RUN, finished(tmp_path, score=None))


def test_a_run_that_never_ended_is_refused(tmp_path):
    with pytest.raises(DataError, match="no score of a finished run"):
        read_result(RUN, tmp_path)
