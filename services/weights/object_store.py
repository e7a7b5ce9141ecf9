"""Versions through Ray's object store: put once, pulled once by each node. Both ends, of `transports`."""

import asyncio
from collections.abc import AsyncGenerator, Collection
from typing import Any

import numpy as np
import ray

from streamrl.services.weights.endpoints import Given, RunNode
from streamrl.weights.transport.pulls import Buffer, TransferStep
from streamrl.weights.transport.shelf import Item, VersionShelf

BUCKET_BYTES = 16 * 2**20
"""Of one object: several of them fit into the smallest store that Ray makes."""


class ObjectStoreSender:
    """Puts what a node asks for into the store, in buckets: at the first time, and when a node asks for it again."""

    def __init__(self, shelf: VersionShelf, bucket_bytes: int = BUCKET_BYTES) -> None:
        self._shelf = shelf
        self._bucket_bytes = bucket_bytes
        self._buckets: dict[Item, list[ray.ObjectRef]] = {}
        self._given = Given()
        self._one = asyncio.Lock()

    async def give(self, node: str, item: Item, told: Any) -> list[ray.ObjectRef]:
        """The buckets, in their order: uint8 arrays, the last one shorter."""
        async with self._one:
            if self._given.again(node, item) or item not in self._buckets:
                self._buckets[item] = await asyncio.to_thread(self._put, item)
            return self._buckets[item]

    def keep_only(self, items: Collection[Item]) -> None:
        """Let go of all others; the store frees them when no node pulls them any more."""
        for item in self._buckets.keys() - set(items):
            del self._buckets[item]
        self._given.keep_only(items)

    async def close(self) -> None:
        self._buckets.clear()

    def _put(self, item: Item) -> list[ray.ObjectRef]:
        content = self._shelf.content(item)
        starts = range(0, len(content), self._bucket_bytes)
        return [ray.put(np.asarray(content[start : start + self._bucket_bytes])) for start in starts]


class ObjectStoreTransport:
    """The node's end."""

    def __init__(self, run_node: RunNode) -> None:
        self._run_node = run_node

    async def receive(self, step: TransferStep) -> AsyncGenerator[Buffer, None]:
        for ref in await self._run_node.give(step):
            yield memoryview(await self._run_node.bounded(ref, f"a piece of {Item(step.kind, step.version)}"))

    async def close(self) -> None:
        pass
