"""Replicas and reward children that come and go while a run trains: nothing is lost, and a restart has as many."""

import json
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from support.queue.trained_groups import trained_groups
from support.runs.live_run import LiveRun, live_run

from streamrl.buffers.ledger.ledger import read_ledger
from streamrl.buffers.ledger.records import Scored
from streamrl.buffers.rows.records import SCORED, unpack
from streamrl.services.run.folder import RunFolder

pytestmark = pytest.mark.ray

SCRIPTED = ("--rollout.engine", "scripted", "--eval.every", "100000", "--learner.steps", "100000")
GROUP_SIZE = 4
KEY = ("number", "sample_index", "branch", "attempt")
# Rollouts that are under way when their replica is to leave.
SLOW = ("--rollout.scripted.latency_steps", "40")


def scale(run: LiveRun, streamrl: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([streamrl, "scale", run.folder, *words], capture_output=True, text=True, timeout=60)


def scaled(run: LiveRun, streamrl: Path, *words: str) -> dict[str, object]:
    """What the command says that did it."""
    done = scale(run, streamrl, *words, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def until_serving(run: LiveRun, count: int) -> None:
    """Read events until so many replicas say how they are, and no more."""
    assert run.read_until(lambda event: len(event.get("replicas", [])) == count), (run.events[-3:], run.end())
    run.until_step(run.steps()[-1]["step"] + 2)
    assert run.read_until(lambda event: event["kind"] == "replicas")
    assert len(run.events[-1]["replicas"]) == count


@pytest.mark.long
def test_replicas_come_and_go_while_a_run_trains_and_nothing_is_lost(user_folder: Path, streamrl_path: Path) -> None:
    with live_run(user_folder, streamrl_path, "scaled", *SCRIPTED, *SLOW, "--rollout.replicas", "1") as run:
        run.until_step(3)
        for count in (4, 1, 3):
            assert scaled(run, streamrl_path, f"rollout={count}")["rollout"] == count
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


def reward_children(run: LiveRun) -> int:
    return len(run.processes(lambda _, words: "streamrl.rewards.child" in words))


def until_children(run: LiveRun, count: int) -> None:
    """Read events until so many children score."""
    assert run.read_until(lambda _: reward_children(run) == count), (run.events[-3:], run.end())


@pytest.mark.long
def test_reward_children_come_and_go_while_a_run_trains_and_nothing_is_scored_twice(
    user_folder: Path, streamrl_path: Path
) -> None:
    with live_run(user_folder, streamrl_path, "judged", *SCRIPTED) as run:
        run.until_step(3)
        told = scaled(run, streamrl_path, "rollout=1", "reward=3")
        assert told["before"] == {"rollout": 2, "reward": 1}
        until_children(run, 3)
        run.until_step(run.steps()[-1]["step"] + 5)
        run.actors("RewardActor")[0].send_signal(signal.SIGKILL)
        assert run.read_until(lambda event: "restart" in event.get("text", ""))
        until_children(run, 3)
        assert scaled(run, streamrl_path, "reward=2") == {"run": "judged", "reward": 2, "before": 3}
        until_children(run, 2)
        run.until_step(run.steps()[-1]["step"] + 5)
        run.process.send_signal(signal.SIGINT)
        code, err = run.end()
    assert code == 130, err
    changes = [text for text in run.notices() if text.startswith("reward workers: ")]
    assert changes == ["reward workers: 1 -> 3", "reward workers: 3 -> 2"]
    groups = trained_groups(run.folder)
    assert sorted(groups) == list(range(len(groups)))
    assert all(one["tokens/dropped"] == 0 for one in run.steps())
    scored = [row for record in scores(run.folder) for row in unpack(SCORED, record.rows)[list(KEY)].tolist()]
    assert len(scored) == len(set(scored)) >= len(groups) * GROUP_SIZE
    with live_run(user_folder, streamrl_path, "judged", *SCRIPTED) as run:
        until_first(run, lambda: reward_children(run) == 2)
        run.process.send_signal(signal.SIGINT)
        assert run.end()[0] == 130


def scores(folder: Path) -> list[Scored]:
    """What is booked as scored."""
    records = (record for file in read_ledger(folder / "queue/ledger") for record in file.records)
    return [record for record in records if isinstance(record, Scored)]


def until_first(run: LiveRun, then: Callable[[], bool]) -> None:
    assert run.read_until(lambda event: event["kind"] == "step")
    assert then()


@pytest.mark.long
def test_a_number_that_cannot_be_is_refused_and_the_run_goes_on(user_folder: Path, streamrl_path: Path) -> None:
    with live_run(user_folder, streamrl_path, "refused", *SCRIPTED) as run:
        run.until_step(2)
        for words, code, told in (
            (("rollout=0",), 2, "rollout.replicas"),
            (("rollout=-1",), 2, "rollout.replicas"),
            (("rollout=1000000",), 2, "queue.disk_budget"),
            (("reward=0",), 2, "reward.workers"),
            (("rollout=2", "reward=-1"), 2, "reward.workers"),
            (("learner=2",), 2, "'learner' cannot be scaled; what can: rollout, reward"),
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
