"""Real runs for the integration tests: `streamrl up` as a user calls it, on a Ray and in a folder of its own."""

from collections.abc import Callable
from pathlib import Path

import pytest
from support.runs.finished_run import Finished, run

Train = Callable[..., Finished]


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
