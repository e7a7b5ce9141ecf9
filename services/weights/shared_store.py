"""Versions through an object store that all nodes reach (`streamrl.weights.transport.stored`). Both ends, of
`streamrl.services.weights.transports`."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncGenerator, Collection
from typing import Any

from streamrl.services.actors.deadline import within
from streamrl.services.weights.endpoints import Given, RunNode
from streamrl.storage.open import open_store
from streamrl.weights.transport.pulls import Buffer, TransferStep, in_thread
from streamrl.weights.transport.shelf import Item, VersionShelf
from streamrl.weights.transport.stored import StoreShelf, stored_pieces


class StoreSender:
    """Puts what a node asks for: at the first time, and when a node asks for it again. What it put goes away however
    this process ends, as far as the store is reached then."""

    def __init__(self, shelf: VersionShelf, address: str, name: str) -> None:
        self._stored = StoreShelf(shelf, open_store(address), name)
        self._given = Given()
        self._one = asyncio.Lock()
        self._removals: set[asyncio.Task[None]] = set()
        self._cleaner = subprocess.Popen(
            [sys.executable, "-P", "-m", "streamrl.services.weights.store_cleanup", address, name],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )

    async def give(self, node: str, item: Item, told: Any) -> str:
        """The key of the object."""
        async with self._one:
            return await in_thread(self._stored.lay_out, item, self._given.again(node, item))

    def keep_only(self, items: Collection[Item]) -> None:
        """The store is asked beside: who says what is needed does not wait for it."""
        self._given.keep_only(items)
        self._stored.let_go(items)
        removal = asyncio.get_running_loop().create_task(self._remove_old())
        self._removals.add(removal)
        removal.add_done_callback(self._removals.discard)

    async def close(self) -> None:
        async with self._one:
            await in_thread(self._stored.close)
        await asyncio.to_thread(self._cleaner.communicate)

    async def _remove_old(self) -> None:
        async with self._one:
            await in_thread(self._stored.remove_old)


class StoreTransport:
    """The node's end."""

    def __init__(self, run_node: RunNode, address: str) -> None:
        self._run_node = run_node
        self._address = address

    async def receive(self, step: TransferStep) -> AsyncGenerator[Buffer, None]:
        item, node = str(Item(step.kind, step.version)), self._run_node
        key = await node.give(step)
        store = await within(
            node.limit_s, asyncio.to_thread(open_store, self._address), who=node.node, what="opening weights.folder"
        )
        read = stored_pieces(store, key, item)
        while True:
            # Not waited for when it takes too long: a store that hangs ends when it likes.
            piece = await within(node.limit_s, asyncio.to_thread(next, read, None), who=node.node, what=item)
            if piece is None:
                return
            yield piece

    async def close(self) -> None:
        pass
