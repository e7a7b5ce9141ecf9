"""Versions through a folder that all nodes see (`streamrl.weights.transport.disk`). Both ends, of
`streamrl.services.weights.transports`."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncGenerator, Collection
from pathlib import Path
from typing import Any

from streamrl.services.actors import cleanup as leave_nothing
from streamrl.services.weights.endpoints import Given, RunNode
from streamrl.weights.transport.disk import DiskShelf, pieces
from streamrl.weights.transport.pulls import Buffer, TransferStep, in_thread
from streamrl.weights.transport.shelf import Item, VersionShelf


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

    def __init__(self, run_node: RunNode) -> None:
        self._run_node = run_node

    async def receive(self, step: TransferStep) -> AsyncGenerator[Buffer, None]:
        read = pieces(Path(await self._run_node.give(step)), str(Item(step.kind, step.version)))
        while (piece := await in_thread(next, read, None)) is not None:
            yield piece

    async def close(self) -> None:
        pass
