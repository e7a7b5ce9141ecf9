"""Settings and fixtures that every test shares."""

from pathlib import Path

import pytest
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
