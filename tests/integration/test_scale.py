"""Replicas that come and go while a run trains: nothing is lost, nobody waits, and a restart has as many."""

import json
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from live_run import LiveRun, live_run
from trained_groups import trained_groups

from services.run_folder import RunFolder

pytestmark = pytest.mark.ray

SCRIPTED = ("--rollout.engine", "scripted", "--eval.every", "100000", "--learner.steps", "100000")
# Rollouts that are under way when their replica is to leave.
SLOW = ("--rollout.scripted.latency_steps", "40")


def scale(run: LiveRun, streamrl: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([streamrl, "scale", run.folder, *words], capture_output=True, text=True, timeout=60)


def until_serving(run: LiveRun, count: int) -> None:
    """Read events until so many replicas say how they are, and no more."""
    assert run.read_until(lambda event: len(event.get("replicas", [])) == count), run.events[-3:]
    run.until_step(run.steps()[-1]["step"] + 2)
    assert run.read_until(lambda event: event["kind"] == "replicas")
    assert len(run.events[-1]["replicas"]) == count


def test_replicas_come_and_go_while_a_run_trains_and_nothing_is_lost(user_folder: Path, streamrl_path: Path) -> None:
    with live_run(user_folder, streamrl_path, "scaled", *SCRIPTED, *SLOW, "--rollout.replicas", "1") as run:
        run.until_step(3)
        for count in (4, 1, 3):
            done = scale(run, streamrl_path, f"rollout={count}", "--json")
            assert json.loads(done.stdout)["rollout"] == count, done.stderr
            until_serving(run, count)
            assert len(run.actors("RolloutReplica")) == count
        run.process.send_signal(signal.SIGINT)
        code, err = run.end()
    assert code == 130, err
    assert not [text for text in run.notices() if "restart" in text]
    changes = ["1 -> 4", "4 -> 1", "1 -> 3"]
    assert [text for text in run.notices() if "replicas" in text] == [f"rollout replicas: {one}" for one in changes]
    groups = trained_groups(run.folder)
    assert sorted(groups) == list(range(len(groups)))
    assert {one["rollout/replicas"] for one in run.steps()} == {1, 3, 4}
    assert all(one["tokens/dropped"] == 0 for one in run.steps())
    with live_run(user_folder, streamrl_path, "scaled", *SCRIPTED, *SLOW, "--rollout.replicas", "1") as run:
        until_first(run, lambda: len(run.actors("RolloutReplica")) == 3)
        run.process.send_signal(signal.SIGINT)
        assert run.end()[0] == 130


def until_first(run: LiveRun, then: Callable[[], bool]) -> None:
    assert run.read_until(lambda event: event["kind"] == "step")
    assert then()


def test_a_number_that_cannot_be_is_refused_and_the_run_goes_on(user_folder: Path, streamrl_path: Path) -> None:
    with live_run(user_folder, streamrl_path, "refused", *SCRIPTED) as run:
        run.until_step(2)
        for words, code, told in (
            (("rollout=0",), 2, "rollout.replicas"),
            (("rollout=-1",), 2, "rollout.replicas"),
            (("rollout=1000000",), 2, "queue.disk_budget"),
            (("learner=2",), 2, "'learner' cannot be scaled; what can: rollout"),
            ((), 2, "rollout=4"),
        ):
            done = scale(run, streamrl_path, *words)
            assert done.returncode == code, (words, done.stderr)
            assert told in done.stderr
            assert "Traceback" not in done.stderr
        run.until_step(run.steps()[-1]["step"] + 2)
        run.process.send_signal(signal.SIGINT)
        assert run.end()[0] == 130
    assert RunFolder.open(run.folder).record.replicas is None
    done = scale(run, streamrl_path, "rollout=2")
    assert done.returncode == 2
    assert "is not up" in done.stderr
