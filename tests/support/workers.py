"""How many processes `pytest -n auto` has: more than cores, since tests wait as long as they compute (for disks, for
Ray to come up, for limits to pass), but no more than memory holds."""

import os

import psutil
import pytest

GIB_OF_A_WORKER = 4
"""A test that starts a run has about that with all its processes."""


def workers(cores: int, memory_bytes: int) -> int:
    """One more than cores, as far as memory goes."""
    return max(1, min(cores + 1, memory_bytes // (GIB_OF_A_WORKER << 30)))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int | None:
    if "PYTEST_XDIST_AUTO_NUM_WORKERS" in os.environ:
        return None
    return workers(len(os.sched_getaffinity(0)), psutil.virtual_memory().total)
