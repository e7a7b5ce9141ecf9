"""Waits for file descriptors of any number: select(2) knows none above 1023, and a process may hold more files."""

import select
from collections.abc import Collection


def readable(descriptors: Collection[int], timeout_s: float | None) -> set[int]:
    """Those with something to read, or an end of file, within `timeout_s` (None: without a limit)."""
    waiting = select.poll()
    for descriptor in descriptors:
        waiting.register(descriptor, select.POLLIN)
    return {descriptor for descriptor, _ in waiting.poll(None if timeout_s is None else 1000 * timeout_s)}
