"""Brings rows that lie on other nodes here, for whoever reads them on this one.

Guarantees: what `bring` does not name as lost can be read here as if it had been written here, until the same reader
asks again; each frame travels once, whoever asks for it meanwhile; its bytes are checked on arrival. A frame is lost
when its node is gone and there is no copy of it. What is wanted and what goes is decided by
`streamrl.buffers.segments.fetch_plan`; how a node is found is not known here. One event loop uses it.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import ray
from ray.actor import ActorHandle

from streamrl.buffers.segments.copies import SegmentCopies, SegmentHead
from streamrl.buffers.segments.fetch_plan import Fetch, FetchPlan
from streamrl.buffers.segments.places import node_of
from streamrl.config import Config
from streamrl.services.actors.deaths import explain_death, node_is_gone
from streamrl.system.disk_space import DiskSpace
from streamrl.types import FrameRef

AT_ONCE = 4
"""Fetches under way: more would fill the object store, and wait for one another."""


class Segments:
    """The copies of one node, and how they come.

    find: gives the actor that serves a node's segments (`read_head`, `read_range`), None when the node is gone.
    """

    def __init__(self, run_folder: Path, plan: FetchPlan, find: Callable[[str], Awaitable[ActorHandle | None]]) -> None:
        self._find = find
        self._plan = plan
        self._copies = SegmentCopies(run_folder)
        self._room = DiskSpace()
        self._tasks: dict[Fetch, asyncio.Task[bool]] = {}
        self._heads: dict[str, SegmentHead] = {}
        self._slots = asyncio.Semaphore(AT_ONCE)
        self._fetched = {"frames": 0, "rows": 0, "bytes": 0}
        for path, num_bytes in self._copies.there():
            self._plan.adopt(path, num_bytes)

    async def bring(self, reader: str, frames: Sequence[FrameRef]) -> list[FrameRef]:
        """Have frames of other nodes here; returns those that are lost.

        Raises DataError when bytes are not those that were written, or not at their node, which lives.
        """
        for frame in await asyncio.to_thread(self._found, self._plan.unknown(frames)):
            self._plan.found(frame)
        wanted = self._plan.want(reader, frames)
        for fetch in wanted.begin:
            self._tasks[fetch] = asyncio.create_task(self._fetch(fetch), name=f"fetch {fetch.path}")
        lost: set[FrameRef] = set()
        tasks = {fetch: self._tasks[fetch] for fetch in (*wanted.begin, *wanted.coming)}
        if tasks:
            await asyncio.wait(tasks.values())
        for fetch, task in tasks.items():
            if not task.result():
                lost.update(fetch.frames)
        for path in self._plan.evict():
            self._heads.pop(path, None)
            self._copies.remove(path)
        return [frame for frame in frames if frame in lost]

    @property
    def pause(self) -> str:
        """What a full disk keeps it waiting for, in words; "" while it does not wait."""
        return self._room.pause

    def figures(self) -> dict[str, int]:
        """Frames, rows and bytes fetched by this process, and the bytes of the copies that there are."""
        return {**self._fetched, "bytes_kept": self._plan.num_bytes}

    def _found(self, frames: Sequence[FrameRef]) -> list[FrameRef]:
        return [frame for frame in frames if self._copies.has(frame)]

    async def _fetch(self, fetch: Fetch) -> bool:
        """Whether it is here now; False when its node is gone."""
        arrived = False
        try:
            async with self._slots:
                arrived = await self._transfer(fetch)
        finally:
            del self._tasks[fetch]
            (self._plan.arrived if arrived else self._plan.failed)(fetch)
        if arrived:
            self._count(fetch)
        return arrived

    async def _transfer(self, fetch: Fetch) -> bool:
        owner = await self._find(node_of(fetch.path))
        if owner is None:
            return False
        try:
            if fetch.path not in self._heads:
                self._heads[fetch.path] = SegmentHead(*await owner.read_head.remote(fetch.path))
            data = await owner.read_range.remote(fetch.path, fetch.offset, fetch.length)
        except ray.exceptions.RayError as error:
            if node_is_gone(error):
                return False
            raise explain_death(f"node {node_of(fetch.path)}", error) from error
        head = self._heads[fetch.path]
        await asyncio.to_thread(self._room.wait_for, lambda: self._copies.write(fetch.frames, head, data))
        return True

    def _count(self, fetch: Fetch) -> None:
        added: dict[str, Any] = {
            "frames": len(fetch.frames),
            "rows": sum(frame.num_rows for frame in fetch.frames),
            "bytes": fetch.length,
        }
        for name, amount in added.items():
            self._fetched[name] += amount


def fetch_plan(config: Config) -> FetchPlan:
    """What the copies of a run's own node begin with."""
    return FetchPlan(config.queue.fetched_bytes)
