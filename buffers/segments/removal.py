"""Removing log files that no resume can need, beside a queue that goes on.

Guaranteed: when `remove` returns the names are gone. What becomes of the files is decided behind that, once the readers
have let them go, which they do with the next new frame that they read: as many as may be are kept to be written over
(`streamrl.buffers.segments.spare_files`), the blocks of the others are freed in pieces
(`streamrl.system.file_removal`). Who keeps a file for longer than `PATIENCE_S` keeps the blocks too, as always. What
that fails with the next `remove` raises. Nothing here decides what may go.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from streamrl.buffers.segments.places import HOME, SPARE_DIR, on_node
from streamrl.buffers.segments.spare_files import Held, SpareFiles
from streamrl.buffers.segments.writer import Durability
from streamrl.errors import ComponentError

PATIENCE_S: Final = 10.0
"""How long a file's readers are waited for."""
_LOOK_AGAIN_S: Final = 0.1
"""The kernel tells nobody that a mapping has gone."""


def remove_segments(run_folder: Path, paths: list[str], spares: SpareFiles) -> list[Held]:
    """Take these files out of the log, with their indexes; what holds their blocks. One that is not there is no error.
    Raises OSError."""
    held = []
    try:
        for path in paths:
            one = spares.put_aside(run_folder / path)
            if one is not None:
                held.append(one)
            (run_folder / path).with_suffix(".idx").unlink(missing_ok=True)
    except OSError:
        for one in held:
            one.let_go()
        raise
    return held


@contextmanager
def _as_component_error() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ComponentError(f"removing log files failed: {error}") from error


class SegmentRemover:
    """Removes the log files of one node's run folder. One event loop uses it.

    durability: of the run. Where nobody waits for the disk all blocks go at once. node: whose files. spare_bytes: of
    those that are kept to be written over, at most.

    Example:
        await remover.remove(["queue/completions/replica-0-0-0.arrow"])
    """

    def __init__(self, run_folder: Path, durability: Durability, spare_bytes: int = 0, node: str = HOME) -> None:
        self._run_folder = run_folder
        self._waited_for = durability == "disk"
        self._spares = SpareFiles(run_folder / on_node(node, SPARE_DIR), spare_bytes if self._waited_for else 0)
        self._settling: set[asyncio.Task[None]] = set()
        self._failed: BaseException | None = None

    async def remove(self, paths: list[str]) -> None:
        """Remove these files with their indexes. One that is not there is no error.

        Raises ComponentError, also for what the end of earlier ones failed with.
        """
        if self._failed is not None:
            raise self._failed
        with _as_component_error():
            held = await asyncio.to_thread(remove_segments, self._run_folder, paths, self._spares)
        if not self._waited_for:
            for one in held:
                one.let_go()
        elif held:
            logs = {(self._run_folder / path).parent for path in paths}
            settling = asyncio.create_task(self._settle(held, logs))
            self._settling.add(settling)
            settling.add_done_callback(self._ended)

    async def freed(self) -> None:
        """Return when nothing that was removed is held here any more. Raises ComponentError."""
        await asyncio.gather(*self._settling)

    async def clear(self) -> None:
        """Remove the files that are kept to be written over, also those of a process before this one. Raises
        ComponentError."""
        with _as_component_error():
            await asyncio.to_thread(self._spares.clear)

    async def close(self) -> None:
        """Keep no more files to be written over. Raises ComponentError."""
        self._spares.keep_none()
        await self.clear()

    def _ended(self, settling: asyncio.Task[None]) -> None:
        self._settling.discard(settling)
        if not settling.cancelled():
            self._failed = self._failed or settling.exception()

    async def _settle(self, held: list[Held], logs: set[Path]) -> None:
        try:
            with _as_component_error():
                await asyncio.to_thread(self._spares.make_durable, held, logs)
                for _ in range(round(PATIENCE_S / _LOOK_AGAIN_S)):
                    await self._settle_unused(held)
                    if not held:
                        return
                    await asyncio.sleep(_LOOK_AGAIN_S)
        finally:
            for one in held:
                one.let_go()

    async def _settle_unused(self, held: list[Held]) -> None:
        """Settle those that nobody else uses, and take them off the list."""
        for one in list(held):
            if not one.in_use:
                # Off the list first: from here on the thread closes it, also when nobody waits for the thread.
                held.remove(one)
                await asyncio.to_thread(self._spares.settle, one)
