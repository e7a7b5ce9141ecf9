"""Fixtures of the fault tests."""

import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def memory_folder(tmp_path: Path) -> Iterator[Path]:
    """A folder in memory, where a sync costs nothing, for tests that decide by themselves what a disk loses."""
    memory = Path("/dev/shm")
    if not memory.is_dir():
        yield tmp_path
        return
    folder = memory / f"streamrl-test-{secrets.token_hex(6)}"
    folder.mkdir()
    yield folder
    shutil.rmtree(folder)
