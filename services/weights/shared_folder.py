"""Versions through a folder that all nodes see (`streamrl.weights.disk`). Both ends, of `services.weights.ways`."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncGenerator, Collection
from pathlib import Path
from typing import Any

from services.part import leave_nothing
from services.weights.ends import Given, Home
from streamrl.weights.disk import DiskShelf, pieces
from streamrl.weights.pulls import Buffer, WayStep, in_thread
from streamrl.weights.shelf import Item, VersionShelf


class FolderSender:
    """Writes what a node asks for: at the first time, and when a node asks for it again. Its folder goes away however
    this process ends."""

    def __init__(self, shelf: VersionShelf, folder: Path) -> None:
        self._disk = DiskShelf(shelf, folder)
        self._given = Given()
        self._one = asyncio.Lock()
        self._cleaner = subprocess.Popen(
            [sys.executable, "-S", "-P", leave_nothing.__file__, str(folder)],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )

    async def give(self, node: str, item: Item, told: Any) -> str:
        """The path of the file."""
        async with self._one:
            return str(await in_thread(self._disk.lay_out, item, self._given.again(node, item)))

    def keep_only(self, items: Collection[Item]) -> None:
        self._disk.keep_only(items)
        self._given.keep_only(items)

    async def close(self) -> None:
        self._disk.close()
        await asyncio.to_thread(self._cleaner.communicate)


class FolderTransport:
    """The node's end."""

    def __init__(self, home: Home) -> None:
        self._home = home

    async def receive(self, step: WayStep) -> AsyncGenerator[Buffer, None]:
        read = pieces(Path(await self._home.give(step)), str(Item(step.kind, step.version)))
        while (piece := await in_thread(next, read, None)) is not None:
            yield piece

    async def close(self) -> None:
        pass
