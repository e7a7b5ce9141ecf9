"""The actor of the run's own node, in a run that has other nodes: what these need of it, and what it needs of them.

A thin shell. Readers here (the learner's ranks, the reward stage) have it bring the rows that they are about to read;
other nodes take published versions and the model's files from it. Of rows that are lost with their node it tells the
queue, which issues their groups again, and the controller, which tells the user. Ray starts it again when its process
dies: all that it holds can be made again.
"""

import asyncio
import secrets
from pathlib import Path
from typing import Any

import msgspec
import xxhash
from ray.actor import ActorHandle

from streamrl.config import Config
from streamrl.errors import DataError
from streamrl.services.queue.segments import Segments, fetch_plan
from streamrl.services.run.folder import RunFolder
from streamrl.services.run.layout import MODEL_FOLDER, STACKS_FOLDER
from streamrl.services.weights.transports import make_sender
from streamrl.system.stacks import answer
from streamrl.types import FrameRef, Version
from streamrl.weights.delta.chain import Kind
from streamrl.weights.folder import shm_folder
from streamrl.weights.transport.pulls import TransferStep
from streamrl.weights.transport.shelf import Item, VersionShelf


class RunNodeActor:
    """See the module."""

    def __init__(
        self, run_folder: str, config: dict[str, Any], controller: ActorHandle, queue: ActorHandle, store: ActorHandle
    ) -> None:
        self._run = RunFolder.open(Path(run_folder))
        answer("run_node", self._run.path / STACKS_FOLDER)
        self._controller = controller
        self._queue = queue
        self._store = store
        settings = msgspec.convert(config, Config)
        plan = fetch_plan(settings)
        self._segments = Segments(self._run.path, plan, self._find)
        self._shelf = VersionShelf(self._run.run_id, self._run.key(), shm_folder(self._run.run_id))
        # Of this process alone: what one before it left may be about to be removed.
        own_name = f"streamrl-{self._run.run_id}-{secrets.token_hex(4)}"
        self._sender: Any = make_sender(settings, self._shelf, own_name)

    async def bring(self, reader: str, frames: list[FrameRef], leased: bool) -> list[FrameRef]:
        """Have frames of other nodes here until `reader` asks again. Returns those that are lost: the queue knows.

        leased: the reader has the lease of a step, and can say that it will not train on it.
        """
        lost = await self._segments.bring(reader, frames)
        if lost:
            groups, rows = await self._queue.lose.remote(lost, leased)
            if groups:
                await self._controller.rows_lost.remote(sorted({frame.path for frame in lost}), groups, rows)
        return lost

    async def plan(self, manifest: bytes, have: Version | None) -> list[TransferStep]:
        """The steps by which a node comes to a version from the one that it has, or from nothing."""
        kept = [Version(*version) for version in await self._store.kept.remote()]
        self._sender.keep_only(self._shelf.still_there(kept))
        return await asyncio.to_thread(self._shelf.plan, manifest, Version(*have) if have is not None else None)

    async def meet(self, node: str) -> Any:
        """Where a node is to come, which cannot be given anything before (`streamrl.services.weights.collective`)."""
        return await self._sender.meet(node)

    async def give(self, node: str, kind: Kind, version: Version, told: Any) -> Any:
        """Have a node get what a step of its way brings. The two ends of `weights.between_nodes` know the answer."""
        return await self._sender.give(node, Item(kind, Version(*version)), told)

    async def model_files(self) -> dict[str, tuple[int, str]]:
        """Size and XXH3-64 of each file of the model's folder in the run folder; none when the model is elsewhere."""
        return await asyncio.to_thread(file_digests, self._run.path / MODEL_FOLDER)

    async def model_bytes(self, name: str, offset: int, length: int) -> bytes:
        """A piece of one of these files."""
        with (self._run.path / MODEL_FOLDER / Path(name).name).open("rb") as file:
            file.seek(offset)
            return file.read(length)

    async def pause(self) -> str:
        """What a full disk keeps the copies waiting for, in words; "" while they do not wait."""
        return self._segments.pause

    async def figures(self) -> dict[str, int]:
        """What was fetched, as plain numbers."""
        return self._segments.figures()

    async def close(self) -> None:
        """Give back what was prepared for other nodes."""
        await self._sender.close()

    async def _find(self, node: str) -> ActorHandle | None:
        if not node:
            raise DataError("rows of the run's own node are read where they are, and never fetched")
        return await self._controller.find_node.remote(node)


def file_digests(folder: Path) -> dict[str, tuple[int, str]]:
    """Bytes and XXH3-64, 16 hex digits, of each file of a folder."""
    found: dict[str, tuple[int, str]] = {}
    for path in sorted(folder.glob("*")):
        digest = xxhash.xxh3_64()
        with path.open("rb") as file:
            while piece := file.read(2**20):
                digest.update(piece)
        found[path.name] = (path.stat().st_size, digest.hexdigest())
    return found
