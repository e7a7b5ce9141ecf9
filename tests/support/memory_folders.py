"""The folders of tests in memory: what is durable syncs each record, and a disk takes milliseconds for that, some
thousand times. What a disk loses is the matter of the fault tests, which have real ones."""

import shutil
from collections.abc import MutableMapping
from pathlib import Path

MEMORY = Path("/dev/shm")
ENOUGH_BYTES = 4 << 30


def free_memory() -> int:
    """Bytes that files in memory may still take; 0 where there is no such place."""
    return shutil.disk_usage(MEMORY).free if MEMORY.is_dir() else 0


def put_folders_in_memory(environment: MutableMapping[str, str], free_bytes: int) -> None:
    """The folders that pytest makes for tests lie there from now on, where there is room for them, and unless the user
    has said where. Call it before it makes the first."""
    if free_bytes >= ENOUGH_BYTES:
        environment.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))
