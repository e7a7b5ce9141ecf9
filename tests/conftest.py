"""Settings and fixtures that every test shares."""

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from support.rotation import files_of
from support.runs.finished_run import Finished, run
from support.runs.live_run import STREAMRL, prepare

from streamrl.system.strict_products import strict_variables

# Where there is no GPU, Triton's interpreter runs the kernels (`make test-kernels`). It has to know before anything
# imports triton.
if not Path("/dev/nvidiactl").exists():
    os.environ.setdefault("TRITON_INTERPRET", "1")

LEFT_OUT: pytest.StashKey[list[str]] = pytest.StashKey()

# As each process that streamrl starts: MKL reads it when it computes for the first time.
os.environ.update(strict_variables(os.environ))

# A loaded machine is no failing example; a failing one prints how to replay it.
settings.register_profile("streamrl", deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("streamrl")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--part", help="k/n: every n-th test file from the k-th on, and those that TOUCHED names")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    part = config.getoption("--part")
    if not part:
        return
    file_of = {item: item.path.relative_to(config.rootpath).as_posix() for item in items}
    kept = files_of(part, sorted(set(file_of.values())), os.environ.get("TOUCHED", "").split())
    left_out = sorted(set(file_of.values()) - kept)
    config.hook.pytest_deselected(items=[item for item in items if file_of[item] not in kept])
    items[:] = [item for item in items if file_of[item] in kept]
    config.stash[LEFT_OUT] = left_out


def pytest_report_header() -> str:
    # Here and not above: workers of pytest-xdist have no use for it.
    from support.machine import machine_line

    return machine_line()


def pytest_report_collectionfinish(config: pytest.Config) -> list[str]:
    left_out = config.stash.get(LEFT_OUT, [])
    return [f"left to another part, by name: {name}" for name in left_out]


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
