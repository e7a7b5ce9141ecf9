"""Real runs for the integration tests: `streamrl up` as a user calls it, on a Ray and in a folder of its own."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

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


@dataclass(frozen=True)
class Finished:
    """What a `streamrl` command left behind."""

    code: int
    output: str
    folder: Path

    def metrics(self) -> list[dict[str, Any]]:
        """The lines of metrics.jsonl that are steps."""
        lines = (self.folder / "metrics.jsonl").read_text().splitlines()
        return [line for line in map(json.loads, lines) if "loss/policy" in line]

    def summary(self) -> dict[str, Any]:
        return json.loads((self.folder / "summary.json").read_text())


Train = Callable[..., Finished]


def prepare(folder: Path) -> None:
    """A user's folder: a configuration, and a module with a reward."""
    (folder / "base.toml").write_text(BASE)
    (folder / "dense.py").write_text(DENSE)


def run(folder: Path, *arguments: str, name: str = "test") -> Finished:
    """One `streamrl` command in a user's folder, to its end."""
    done = subprocess.run(
        [STREAMRL, *arguments],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    return Finished(done.returncode, done.stdout, folder / "runs" / name)


@pytest.fixture(scope="session")
def streamrl_path() -> Path:
    """The console script."""
    return STREAMRL


@pytest.fixture(scope="session")
def user_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("user")
    prepare(folder)
    return folder


@pytest.fixture(scope="session")
def train(user_folder: Path) -> Train:
    """`train(name, *overrides)`: `streamrl up base.toml --name NAME OVERRIDES...`."""

    def up(name: str, *overrides: str) -> Finished:
        return run(user_folder, "up", "base.toml", "--name", name, *overrides, name=name)

    return up


@pytest.fixture(scope="session")
def streamrl(user_folder: Path) -> Callable[..., Finished]:
    """Any other command in the same folder."""

    def command(*arguments: str) -> Finished:
        return run(user_folder, *arguments)

    return command


@pytest.fixture(scope="session")
def streamed(train: Train) -> Finished:
    """A short asynchronous run that several tests look at."""
    finished = train("streamed", "--learner.steps", "40")
    assert finished.code == 0, finished.output
    return finished
