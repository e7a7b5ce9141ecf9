"""Parts of a real run that are killed, stopped or interrupted come back by themselves, and nothing is trained twice."""

import json
import signal
from pathlib import Path
from typing import Any

import pytest
from support.queue.trained_groups import trained_groups
from support.runs.live_run import live_run

from streamrl.learner.checkpoint.checkpoint import find_newest

pytestmark = pytest.mark.ray

# The learner trains, whatever samples: no torch engine to start.
SCRIPTED = ("--rollout.engine", "scripted", "--eval.every", "1000")


def test_invariant_7_a_replica_that_stops_answering_is_named_replaced_and_the_run_goes_on(
    user_folder: Path, streamrl_path: Path
) -> None:
    why = ("was ended: it serves version", "deadlines.update_s is 4")

    def told(event: dict[str, Any]) -> bool:
        return event["kind"] == "notice" and all(part in event["text"] for part in why)

    # It has no end of its own: where the replica has nothing under way, hundreds of steps pass before the deadline.
    limits = ("--deadlines.update_s", "4", "--learner.steps", "1000000")
    with live_run(user_folder, streamrl_path, "stopped", *SCRIPTED, *limits) as run:
        run.until_step(5)
        # One that is stopped in its start has another deadline.
        assert run.read_until(lambda event: event["kind"] == "replicas" and len(event["replicas"]) == 2)
        run.actors("RolloutReplica")[0].send_signal(signal.SIGSTOP)
        assert run.read_until(told), (run.events[-3:], run.end())
        run.until_step(run.steps()[-1]["step"] + 20)
        run.process.send_signal(signal.SIGINT)
        code, err = run.end()
    assert code == 130, err
    trained = trained_groups(run.folder)
    assert len(set(trained)) == len(trained) == 8 * run.steps()[-1]["step"]


@pytest.mark.long
def test_a_run_interrupted_then_killed_goes_on_with_the_same_batches_and_trains_every_group_once(
    user_folder: Path, streamrl_path: Path
) -> None:
    overrides = (*SCRIPTED, "--learner.steps", "60", "--checkpoint.every", "8")
    with live_run(user_folder, streamrl_path, "resumed", *overrides) as run:
        run.until_step(10)
        run.process.send_signal(signal.SIGINT)
        code, _ = run.end()
    assert code == 130
    reached = max(event["step"] for event in run.events if event["kind"] == "step")

    with live_run(user_folder, streamrl_path, "resumed", *overrides) as again:
        again.until_step(reached + 3)
        again.owner().send_signal(signal.SIGKILL)
        code, err = again.end()
    assert code == 4
    assert "owner" in err
    steps = again.steps()
    assert (steps[0]["step"], steps[0]["version"]) == (reached + 1, f"1.{reached + 1}")
    before = trained_groups(run.folder)

    with live_run(user_folder, streamrl_path, "resumed", *overrides) as last:
        code, err = last.end()
    assert code == 0, err
    assert_each_group_once(run.folder, steps=60, before=before)


@pytest.mark.long
@pytest.mark.parametrize("part", ["LearnerRank", "QueueActor"])
def test_a_part_that_is_killed_comes_back_by_itself_with_the_same_batches(
    part: str, user_folder: Path, streamrl_path: Path
) -> None:
    overrides = (*SCRIPTED, "--learner.steps", "60", "--checkpoint.every", "8")
    with live_run(user_folder, streamrl_path, f"back-{part}", *overrides) as run:
        run.until_step(20)
        before = trained_groups(run.folder)
        run.actors(part)[0].send_signal(signal.SIGKILL)
        code, err = run.end()
    assert code == 0, err
    assert any("died" in text for text in run.notices())
    assert not (run.folder / "failure.json").exists()
    assert_each_group_once(run.folder, steps=60, before=before)


@pytest.mark.long
def test_a_learner_that_dies_over_a_damaged_checkpoint_goes_on_from_the_one_before_by_itself(
    user_folder: Path, streamrl_path: Path
) -> None:
    """The queue in memory has let go what the older checkpoint needs; its log has not."""
    overrides = (*SCRIPTED, "--learner.steps", "60", "--checkpoint.every", "8")
    with live_run(user_folder, streamrl_path, "damaged", *overrides) as run:
        run.until_step(16, kind="checkpoint")
        learner = run.actors("LearnerRank")[0]
        learner.send_signal(signal.SIGSTOP)  # it commits no further one meanwhile
        before = trained_groups(run.folder)
        newest = find_newest(run.folder / "checkpoints").newest
        assert newest is not None
        flip_last_byte(max(newest.path.iterdir(), key=lambda file: file.stat().st_size))
        learner.send_signal(signal.SIGKILL)
        code, err = run.end()
    assert code == 0, err
    notices = " ".join(run.notices())
    assert "in memory; those before are in its log; the system starts again from what is on disk" in notices
    assert "checkpoint passed over: " in notices
    assert str(newest.path) in notices
    assert_each_group_once(run.folder, steps=60, before=before)


def flip_last_byte(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def assert_each_group_once(folder: Path, *, steps: int, before: list[int]) -> None:
    """Every step was made once in the history that stands, and what was trained `before` came first again."""
    groups = trained_groups(folder)
    assert groups[: len(before)] == before
    assert len(groups) == len(set(groups)) == steps * 8
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if "loss/policy" in line] == list(range(1, steps + 1))
