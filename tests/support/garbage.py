"""Garbage collection of a test process: what was imported and collected lives as long as the process, so nobody looks
through it again. Of thousands of tests that was a tenth of the time."""

import gc

import pytest


def stop_until_collected() -> None:
    """Call it first thing. What pytest collects refers to itself a thousand times, and none of it is garbage."""
    gc.disable()


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    gc.enable()
    gc.freeze()
