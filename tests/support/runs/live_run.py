"""A real run for tests that look into it: `streamrl up --json`, what it says, and its processes by what they are."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from streamrl.services.run.folder import RunFolder

LIMIT_S = 240
STREAMRL = Path(sys.executable).with_name("streamrl")

BASE = """
name = "test"
[model]
preset = "tiny-qwen3"
[rollout]
replicas = 2
group_size = 4
slots = 32
kv_bytes = 8388608
[rollout.sampling]
max_new_tokens = 6
[reward]
function = "dense:reward"
[learner]
steps = 12
groups_per_step = 8
[learner.optimizer]
lr = 1e-3
warmup_steps = 2
[eval]
every = 6
max_items = 32
[checkpoint]
every = 4
"""

# Learnable from nothing: an untrained model hits some of it by chance.
DENSE = '''
"""Reward of the tests: the share of small digits in the completion."""


def reward(completion, *, finish_reason, **_):
    return sum(character in "01234" for character in completion) / 6
'''


def prepare(folder: Path) -> None:
    """A user's folder: a configuration, and a module with a reward."""
    (folder / "base.toml").write_text(BASE)
    (folder / "dense.py").write_text(DENSE)


class LiveRun:
    """One `streamrl up --json` in a user's folder, and what it has said."""

    def __init__(self, process: subprocess.Popen[str], folder: Path) -> None:
        self.process = process
        self.folder = folder
        self.events: list[dict[str, Any]] = []

    def read_until(self, enough: Callable[[dict[str, Any]], bool]) -> bool:
        """Read events until `enough` says so of one; False when they end before."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.events.append(json.loads(line))
            if enough(self.events[-1]):
                return True
        return False

    def until_step(self, step: int, kind: str = "step") -> None:
        """Read events until one of this kind has reached this step."""
        if not self.read_until(lambda event: event.get("kind") == kind and event["step"] >= step):
            pytest.fail(f"ended before {kind} {step}: {self.events[-3:]}")

    def end(self) -> tuple[int, str]:
        """Wait for its end: exit code, and what it said on standard error."""
        assert self.process.stderr is not None
        with ThreadPoolExecutor(1) as beside:
            err = beside.submit(self.process.stderr.read)
            # By the same file object: it has read ahead, maybe half a line, which `communicate` would not see.
            self.read_until(lambda _: False)
            return self.process.wait(timeout=LIMIT_S), err.result()

    def events_of(self, kind: str) -> list[dict[str, Any]]:
        return [event for event in self.events if event["kind"] == kind]

    def steps(self) -> list[dict[str, Any]]:
        return self.events_of("step")

    def notices(self) -> list[str]:
        return [event["text"] for event in self.events if event["kind"] == "notice"]

    def watcher(self) -> psutil.Process:
        launch = RunFolder.open(self.folder).record.launch
        assert launch is not None
        return psutil.Process(launch.watcher.pid)

    def owner(self) -> psutil.Process:
        launch = RunFolder.open(self.folder).record.launch
        assert launch is not None
        return psutil.Process(launch.owner.pid)

    def replica(self, name: str) -> psutil.Process:
        """The process of the replica of this name, by its log."""
        lines = (self.folder / "logs" / f"{name}.log").read_text().splitlines()
        return psutil.Process([json.loads(line)["pid"] for line in lines if '"started"' in line][-1])

    def actors(self, name: str) -> list[psutil.Process]:
        """The processes of an actor class."""
        return self.below(lambda first, _: first.startswith(f"ray::{name}"), name)

    def below(self, wanted: Callable[[str, list[str]], bool], name: str) -> list[psutil.Process]:
        """Processes of the run of which `wanted` says so, given the first word and all words of the command line."""
        found = self.processes(wanted)
        assert found, f"no process of {name}"
        return found

    def processes(self, wanted: Callable[[str, list[str]], bool]) -> list[psutil.Process]:
        """The same; none while the run has none, as between the death of a part and the start of the next."""
        return [one for one in self.watcher().children(recursive=True) if wanted(*_command_line(one))]


def _command_line(process: psutil.Process) -> tuple[str, list[str]]:
    try:
        words = process.cmdline()
    except psutil.Error:
        words = []
    return "".join(words[:1]), words


@contextmanager
def live_run(folder: Path, streamrl: Path, name: str, *overrides: str) -> Iterator[LiveRun]:
    """`streamrl up base.toml --json --name NAME OVERRIDES...` in `folder`; killed at the end if it still runs."""
    process = subprocess.Popen(
        [streamrl, "up", "base.toml", "--json", "--name", name, *overrides],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            yield LiveRun(process, folder / "runs" / name)
        finally:
            process.kill()
