"""Removing log files that no resume can need, beside a queue that goes on.

Guaranteed: when `remove` returns the names are gone. Blocks are freed behind that, in pieces (`streamrl.removal`), once
the readers have let the file go, which they do with the next new frame that they read; who keeps it for longer than
`PATIENCE_S` keeps the blocks too, as always. What freeing them fails with the next `remove` raises. Nothing here
decides what may go.
"""

import asyncio
import os
from pathlib import Path
from typing import Final

from buffers.segment_writer import Durability
from streamrl.removal import free, has_other_user, take_name

PATIENCE_S: Final = 10.0
"""How long a file's readers are waited for."""
_LOOK_AGAIN_S: Final = 0.1
"""The kernel tells nobody that a mapping has gone."""


def remove_segments(run_folder: Path, paths: list[str]) -> list[int]:
    """Remove the names of these files and of their indexes; descriptors that hold the blocks of the files. One that is
    not there is no error. Raises OSError."""
    held = []
    try:
        for path in paths:
            fd = take_name(run_folder / path)
            if fd is not None:
                held.append(fd)
            (run_folder / path).with_suffix(".idx").unlink(missing_ok=True)
    except OSError:
        for fd in held:
            os.close(fd)
        raise
    return held


class SegmentRemover:
    """Removes the log files of one run folder. One event loop uses it.

    durability: of the run. Where nobody waits for the disk all blocks go at once.

    Example:
        await remover.remove(["queue/completions/replica-0-0-0.arrow"])
    """

    def __init__(self, run_folder: Path, durability: Durability) -> None:
        self._run_folder = run_folder
        self._in_pieces = durability == "disk"
        self._freeing: set[asyncio.Task[None]] = set()
        self._failed: BaseException | None = None

    async def remove(self, paths: list[str]) -> None:
        """Remove these files with their indexes. One that is not there is no error. Raises OSError, also what freeing
        the blocks of earlier ones failed with."""
        if self._failed is not None:
            raise self._failed
        held = await asyncio.to_thread(remove_segments, self._run_folder, paths)
        if not self._in_pieces:
            for fd in held:
                os.close(fd)
        elif held:
            freeing = asyncio.create_task(self._free(held))
            self._freeing.add(freeing)
            freeing.add_done_callback(self._ended)

    async def freed(self) -> None:
        """Return when nothing that was removed is held here any more. Raises OSError."""
        await asyncio.gather(*self._freeing)

    def _ended(self, freeing: asyncio.Task[None]) -> None:
        self._freeing.discard(freeing)
        if not freeing.cancelled():
            self._failed = self._failed or freeing.exception()

    async def _free(self, held: list[int]) -> None:
        try:
            for _ in range(round(PATIENCE_S / _LOOK_AGAIN_S)):
                await self._free_unused(held)
                if not held:
                    return
                await asyncio.sleep(_LOOK_AGAIN_S)
        finally:
            for fd in held:
                os.close(fd)

    async def _free_unused(self, held: list[int]) -> None:
        """Free those that nobody else uses, and take them off the list."""
        for fd in list(held):
            if not has_other_user(fd):
                # Off the list first: from here on the thread closes it, also when nobody waits for the thread.
                held.remove(fd)
                await asyncio.to_thread(free, fd)
