"""What goes wrong in a run, for real: parts that die, hang or answer nonsense. Nothing is lost, and it is said why."""

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import psutil
import pytest

from buffers.recorded import recorded_leases
from services.queue import queue_settings
from services.run_folder import RunFolder
from streamrl.config import load
from streamrl.tasks.order import PromptOrder
from streamrl.tasks.resolve import resolve_task

pytestmark = pytest.mark.ray

LIMIT_S = 240
# The learner trains, whatever samples: no torch engine to start, and faults on demand.
SCRIPTED = ("--rollout.engine", "scripted", "--eval.every", "1000")


class Up:
    """`streamrl up --json` in a user's folder, and what it has said."""

    def __init__(self, process: subprocess.Popen[str], folder: Path) -> None:
        self.process = process
        self.folder = folder
        self.events: list[dict] = []

    def until_step(self, step: int, kind: str = "step") -> None:
        """Read events until one of this kind has reached this step."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.events.append(json.loads(line))
            if self.events[-1].get("kind") == kind and self.events[-1]["step"] >= step:
                return
        pytest.fail(f"ended before {kind} {step}: {self.events[-3:]}")

    def end(self) -> tuple[int, str]:
        out, err = self.process.communicate(timeout=LIMIT_S)
        self.events += [json.loads(line) for line in out.splitlines()]
        return self.process.returncode, err

    def actors(self, name: str) -> list[psutil.Process]:
        """The processes of an actor class."""
        launch = RunFolder.open(self.folder).record.launch
        assert launch is not None
        processes = psutil.Process(launch.watcher.pid).children(recursive=True)
        found = [one for one in processes if "".join(one.cmdline()[:1]).startswith(f"ray::{name}")]
        assert found, f"no process of {name}"
        return found


@contextmanager
def up(folder: Path, streamrl: Path, name: str, *overrides: str) -> Iterator[Up]:
    process = subprocess.Popen(
        [streamrl, "up", "base.toml", "--json", "--name", name, *overrides],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    started = Up(process, folder / "runs" / name)
    with process:
        try:
            yield started
        finally:
            process.kill()


def trained_groups(folder: Path) -> list[int]:
    """Numbers of the groups of every committed step, in order."""
    config = load(folder / "config.toml")
    task = resolve_task(config.task.name, config.task.held_out)
    settings = queue_settings(config, task, longest_prompt=7)
    leases = recorded_leases(folder, settings, PromptOrder(task.num_train, config.seed))
    return [int(number) for lease in leases for number in np.unique(lease.group)]


def test_invariant_8_parts_killed_and_rollouts_that_fail_lose_nothing_and_are_no_numbers(
    user_folder: Path, streamrl_path: Path
) -> None:
    faults = ("--rollout.scripted.error_rate", "0.25", "--rollout.scripted.nan_rate", "0.15")
    with up(user_folder, streamrl_path, "killed", *SCRIPTED, *faults, "--learner.steps", "60") as run:
        run.until_step(5)
        run.actors("RolloutReplica")[0].send_signal(signal.SIGKILL)
        run.until_step(20)
        run.actors("RewardActor")[0].send_signal(signal.SIGKILL)
        code, err = run.end()
    assert code == 0, err
    notices = [event["text"] for event in run.events if event["kind"] == "notice"]
    assert any("rollout-" in text and "restart 1 of 3" in text for text in notices)
    assert any("reward" in text and "restart 1 of 3" in text for text in notices)
    groups = trained_groups(run.folder)
    assert len(groups) == len(set(groups)) == 60 * 8
    steps = [event for event in run.events if event["kind"] == "step"]
    assert sum(step["reward/failed"] for step in steps) > 0
    assert all(0.0 <= step["reward/mean"] <= 1.0 for step in steps)
    summary = json.loads((run.folder / "summary.json").read_text())
    assert set(summary["discards_by_reason"]) == {"reward_failed"}


def test_invariant_7_a_replica_that_stops_answering_is_named_replaced_and_the_run_goes_on(
    user_folder: Path, streamrl_path: Path
) -> None:
    limits = ("--deadlines.update_s", "4", "--learner.steps", "300")
    with up(user_folder, streamrl_path, "stopped", *SCRIPTED, *limits) as run:
        run.until_step(5)
        run.actors("RolloutReplica")[0].send_signal(signal.SIGSTOP)
        code, err = run.end()
    assert code == 0, err
    notices = [event["text"] for event in run.events if event["kind"] == "notice"]
    assert any("was ended: it serves version" in text and "deadlines.update_s is 4" in text for text in notices)
    assert len(set(trained_groups(run.folder))) == 300 * 8


def test_a_reward_that_always_raises_stops_the_run_with_its_reason(user_folder: Path, streamrl_path: Path) -> None:
    (user_folder / "broken.py").write_text("def reward(completion, **_):\n    raise KeyError('solution')\n")
    with up(user_folder, streamrl_path, "raises", *SCRIPTED, "--reward.function", "broken:reward") as run:
        code, err = run.end()
    assert code == 4
    assert "KeyError" in err
    assert "reward.max_failed" in err
    assert "Traceback" not in err
    assert json.loads((run.folder / "failure.json").read_text())["component"] == "reward"


def test_a_reward_module_that_is_not_there_is_a_configuration_error(user_folder: Path, streamrl_path: Path) -> None:
    with up(user_folder, streamrl_path, "missing", *SCRIPTED, "--reward.function", "nowhere:reward") as run:
        code, err = run.end()
    assert code == 2
    assert "nowhere" in err
    assert "Traceback" not in err


def test_a_run_interrupted_then_killed_goes_on_with_the_same_batches_and_trains_every_group_once(
    user_folder: Path, streamrl_path: Path
) -> None:
    overrides = (*SCRIPTED, "--learner.steps", "60", "--checkpoint.every", "8")
    with up(user_folder, streamrl_path, "resumed", *overrides) as run:
        run.until_step(10)
        run.process.send_signal(signal.SIGINT)
        code, _ = run.end()
    assert code == 130
    reached = max(event["step"] for event in run.events if event["kind"] == "step")

    with up(user_folder, streamrl_path, "resumed", *overrides) as again:
        again.until_step(reached + 3)
        again.actors("LearnerRank")[0].send_signal(signal.SIGKILL)
        code, err = again.end()
    assert code == 4
    assert "learner" in err
    steps = [event for event in again.events if event["kind"] == "step"]
    assert (steps[0]["step"], steps[0]["version"]) == (reached + 1, f"1.{reached + 1}")
    before = trained_groups(run.folder)

    with up(user_folder, streamrl_path, "resumed", *overrides) as last:
        code, err = last.end()
    assert code == 0, err
    groups = trained_groups(run.folder)
    assert groups[: len(before)] == before
    assert len(groups) == len(set(groups)) == 60 * 8
    lines = [json.loads(line) for line in (run.folder / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if "loss/policy" in line] == list(range(1, 61))
