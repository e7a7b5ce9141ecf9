"""Resumes at the real command line: what was found is said by count, and a changed data set is refused or accepted."""

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.runs.live_run import STREAMRL, live_run, prepare

from streamrl.buffers.ledger.ledger import read_ledger
from streamrl.buffers.ledger.records import Step
from streamrl.buffers.segments.places import LEDGER_DIR

pytestmark = pytest.mark.ray

Terminal = Callable[..., Any]
TASK = """
from streamrl.tasks.base import Prompt

class Task:
    name, num_train, num_held_out = "mine", COUNT, 4
    def __init__(self, held_out):
        pass
    def train(self, index):
        return Prompt(f"train-{index}", f"{index % 10}+{COUNT % 10}=")
    def held_out(self, index):
        return Prompt(f"held-out-{index}", f"{index}+1=")
    def fingerprint(self):
        return f"mine, {COUNT} prompts"
"""
# So slow that a stop and a look always find it under way; and a pass over the data every two steps and a half.
MINE = (
    *("--rollout.engine", "scripted", "--rollout.scripted.latency_steps", "40", "--rollout.scripted.step_s", "0.02"),
    *("--eval.every", "1000"),
    *("--task.name", "own:Task", "--queue.durability", "memory", "--checkpoint.every", "2", "--learner.steps", "30"),
)


def write_task(folder: Path, count: int) -> None:
    (folder / "own.py").write_text(TASK.replace("COUNT", str(count)))


def damage(folder: Path) -> None:
    """One bit of the newest checkpoint's weights."""
    path = max((folder / "checkpoints").glob("step_*/tensors_00000.safetensors"))
    raw = bytearray(path.read_bytes())
    raw[-1] ^= 1
    path.write_bytes(raw)


def test_a_resume_says_what_it_found_and_takes_another_data_set_only_when_told(
    tmp_path: Path, terminal: Terminal
) -> None:
    prepare(tmp_path)
    write_task(tmp_path, 20)
    with live_run(tmp_path, STREAMRL, "test", *MINE) as run:
        run.until_step(9)
        run.process.send_signal(signal.SIGINT)
        code, _ = run.end()
    assert code == 130
    assert not [event for event in run.events if event["kind"] == "resumed"]
    damage(run.folder)
    write_task(tmp_path, 17)

    refused = terminal("up", "base.toml", "--name", "test", *MINE)
    assert refused.code == 2, refused.output
    assert "data fingerprint 'mine, 20 prompts'" in refused.output
    assert "'mine, 17 prompts' now" in refused.output
    assert "--accept-changed-data" in refused.output

    with live_run(tmp_path, STREAMRL, "test", *MINE, "--accept-changed-data") as again:
        again.until_step(12)
        status = json.loads(terminal("status", "test", "--json").output)
        code, err = again.end()
    assert code == 0, err
    (told,) = (event for event in again.events if event["kind"] == "resumed")
    assert told["data_changed"]
    assert told["checkpoint"] == told["step"] >= 6
    assert told["steps_again"] >= 1
    assert len(told["passed_over"]) == 1
    assert "is damaged" in told["passed_over"][0]
    assert f"resumed from the checkpoint of step {told['step']}" in told["text"]
    assert any("checkpoint passed over" in notice for notice in again.notices())
    assert status["resumed"]["text"] == told["text"]
    assert status["durability"].startswith("memory: ")
    ended = json.loads(terminal("status", "test", "--json").output)
    assert ended["durability"].startswith("memory: ")
    assert ended["summary"]["durability"].startswith("memory: ")
    steps = {
        one.step: one.numbers
        for file in read_ledger(run.folder / LEDGER_DIR)
        for one in file.records
        if isinstance(one, Step)
    }
    assert sorted(number for numbers in steps.values() for number in numbers) == list(range(30 * 8))
