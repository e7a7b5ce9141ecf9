"""Settings and fixtures that every test shares."""

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from support.garbage import pytest_collection_finish, stop_until_collected
from support.rotation import (
    pytest_addoption,
    pytest_collection_modifyitems,
    pytest_report_collectionfinish,
)
from support.runs.finished_run import Finished, run
from support.runs.live_run import STREAMRL, prepare
from support.workers import pytest_xdist_auto_num_workers

from streamrl.system.processor import strict_variables

# Where there is no GPU, Triton's interpreter runs the kernels (`make test-kernels`). It has to know before anything
# imports triton.
if not Path("/dev/nvidiactl").exists():
    os.environ.setdefault("TRITON_INTERPRET", "1")

# Hooks of pytest, which finds them here.
__all__ = [
    "pytest_addoption",
    "pytest_collection_finish",
    "pytest_collection_modifyitems",
    "pytest_report_collectionfinish",
    "pytest_xdist_auto_num_workers",
]

stop_until_collected()

# As each process that streamrl starts: MKL reads it when it computes for the first time.
os.environ.update(strict_variables(os.environ))

# A loaded machine is no failing example; a failing one prints how to replay it.
settings.register_profile("streamrl", deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("streamrl")


def pytest_report_header() -> str:
    # Here and not above: workers of pytest-xdist have no use for it.
    from support.machine import machine_line

    return machine_line()


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
