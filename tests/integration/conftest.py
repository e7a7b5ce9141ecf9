"""Real runs for the integration tests: `streamrl up` as a user calls it, on a Ray and in a folder of its own."""

import json
import os
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from live_run import LIMIT_S, STREAMRL, prepare


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


@pytest.fixture
def terminal(tmp_path: Path) -> Callable[..., Finished]:
    """`terminal("up", ...)`: a command in a user's folder that no other test has."""
    prepare(tmp_path)
    return partial(run, tmp_path)


@pytest.fixture(scope="session")
def streamed(train: Train) -> Finished:
    """A short asynchronous run that several tests look at."""
    finished = train("streamed", "--learner.steps", "40")
    assert finished.code == 0, finished.output
    return finished
