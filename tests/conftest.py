"""Settings and fixtures that every test shares."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from finished_run import Finished, run
from hypothesis import HealthCheck, settings
from live_run import STREAMRL, prepare

# A loaded machine is no failing example; a failing one prints how to replay it.
settings.register_profile("streamrl", deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("streamrl")


@pytest.fixture(scope="session")
def streamrl_path() -> Path:
    """The console script."""
    return STREAMRL


@pytest.fixture(scope="session")
def user_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A user's folder: a configuration, and a module with a reward."""
    folder = tmp_path_factory.mktemp("user")
    prepare(folder)
    return folder


@pytest.fixture
def terminal(tmp_path: Path) -> Callable[..., Finished]:
    """`terminal("up", ...)`: a command in a user's folder that no other test has."""
    prepare(tmp_path)
    return partial(run, tmp_path)
