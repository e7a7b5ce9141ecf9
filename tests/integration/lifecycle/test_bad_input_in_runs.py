"""What is only found while a run is under way, at the real command line: the cause once, the right exit code, and
nothing of the run left.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from streamrl.services.run.folder import RunFolder

pytestmark = pytest.mark.ray

Terminal = Callable[..., Any]
SCRIPTED = ("--rollout.engine", "scripted", "--eval.every", "1000")
REWARDS = """
from itertools import count

calls = count()

def raises():
    raise RuntimeError("no database")

NONSENSE = [raises, lambda: float("nan"), lambda: None, lambda: "good"]

def never(completion, **_):
    return NONSENSE[next(calls) % 4]()

def seldom(completion, **_):
    number = next(calls)
    return NONSENSE[number // 20 % 4]() if number % 20 == 0 else 0.01 * (number % 7)
"""
REASONS = ("RuntimeError: no database", "returned nan", "returned None", "returned str")
TASK = """
from streamrl.tasks.base import Prompt

class Task:
    name, num_train, num_held_out = "mine", 1000, 10
    def __init__(self, held_out):
        pass
    def train(self, index):
        return Prompt(f"train-{index}", TEXT)
    def held_out(self, index):
        return Prompt(f"held-out-{index}", TEXT)
    def fingerprint(self):
        return "mine"
"""


def assert_nothing_left(folder: Path) -> None:
    """No process, no shared memory and no temporary folder of the run."""
    run = RunFolder.open(folder)
    assert run.record.launch is not None
    assert not run.record.launch.owner.is_alive()
    assert not run.record.launch.watcher.is_alive()
    assert run.shared_memory_files() == []
    runtime = Path(run.record.launch.runtime)
    assert not runtime.exists()
    lines = (" ".join(process.info["cmdline"] or []) for process in psutil.process_iter(["cmdline"]))
    assert [line for line in lines if str(runtime) in line or str(folder) in line] == []


@pytest.mark.long
def test_a_reward_that_never_scores_ends_the_run_with_its_reasons_and_a_later_mistake_with_its_own_message(
    terminal: Terminal, tmp_path: Path
) -> None:
    (tmp_path / "own.py").write_text(REWARDS + TASK + 'TEXT = "1+2="\n')
    mine = ("up", "base.toml", *SCRIPTED, "--task.name", "own:Task", "--reward.function", "own:never")
    done = terminal(*mine)
    assert done.code == 4, done.output
    says = "32 of the last 32 rollouts have no score, more than reward.max_failed = 0.2 allows; the last reason: "
    assert done.output.count(says) == 1
    assert any(f"{says}{reason}" in done.output for reason in REASONS)
    assert "Traceback" not in done.output
    log = terminal("logs", "test", "reward").output
    assert [reason for reason in REASONS if reason not in log] == []
    assert "reward failed in run" in terminal("status", "test").output
    assert "run test is not up; `streamrl up" in terminal("eval", "test").output
    assert_nothing_left(done.folder)

    # A resume trusts its configuration, and the module behind it has changed: a part of the run finds that out.
    (tmp_path / "own.py").write_text(REWARDS + TASK + 'TEXT = "1+" * 40\n')
    again = terminal(*mine)
    assert again.code == 2, again.output
    last = again.output.splitlines()[-1]
    assert last.startswith("streamrl: task 'mine': prompt train-0 has 81 tokens, and 58 fit")
    assert again.output.count("has 81 tokens") == 1
    assert_nothing_left(again.folder)


@pytest.mark.long
def test_a_reward_that_fails_now_and_then_is_counted_and_a_live_run_is_disturbed_by_no_mistake(
    terminal: Terminal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own.py").write_text(REWARDS)
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:6379")  # somebody else's: not joined, and said so
    mine = ("up", "base.toml", *SCRIPTED, "--reward.function", "own:seldom", "--reward.max_failed", "0.5")
    assert terminal(*mine, "--detach").code == 0
    owner = RunFolder.open(tmp_path / "runs" / "test").owner()
    assert owner is not None
    second = terminal(*mine)
    assert second.code == 2
    assert f"run folder runs/test is in use by process {owner.pid}; look with `streamrl status runs/test`" in (
        second.output
    )
    unknown = terminal("logs", "test", "nobody")
    assert (unknown.code, "no log of 'nobody' in runs/test/logs; there are: " in unknown.output) == (2, True)
    assert terminal("logs", "test", "--follow").code == 0  # until the run ends

    status = terminal("status", "test", "--json")
    assert json.loads(status.output)["state"] == "finished"
    rows = [json.loads(line) for line in (tmp_path / "runs/test/metrics.jsonl").read_text().splitlines()]
    assert sum(row.get("reward/failed", 0) for row in rows) > 0
    assert all(0.0 <= row["reward/mean"] <= 0.06 for row in rows if row.get("reward/mean") is not None)
    events = (tmp_path / "runs/test/events.jsonl").read_text()
    assert "RAY_ADDRESS in the environment is ignored" in events
    assert terminal("down", "test").code == 0
    assert_nothing_left(tmp_path / "runs" / "test")
