"""The actor of one node that is not the run's own: the folder of the run there, and all that passes between the two.

A thin shell. Whoever writes rows on this node writes them below its folder; this actor gives them out, whichever
process wrote them and whether that still lives. Replicas here have it bring the versions that they take up. Ray starts
it again when its process dies, on the same node or, when that is gone, not at all. What it has in shared memory goes
away however it ends: a small process of its own waits for that.
"""

import asyncio
import secrets
import subprocess
import sys
from typing import Any

import msgspec
import ray
from ray.actor import ActorHandle

from streamrl.buffers.segments.copies import read_head, read_range
from streamrl.buffers.segments.places import node_of
from streamrl.buffers.segments.removal import SegmentRemover
from streamrl.config import Config
from streamrl.config.estimates import sizes as limits
from streamrl.errors import DataError
from streamrl.services.actors import cleanup as leave_nothing
from streamrl.services.actors.deaths import explain_death
from streamrl.services.actors.stack_dump import dump, find_py_spy
from streamrl.services.run.layout import MODEL_FOLDER, STACKS_FOLDER
from streamrl.services.weights.endpoints import RunNode
from streamrl.services.weights.node_folder import Visit, enter
from streamrl.services.weights.run_node import file_digests
from streamrl.services.weights.transports import make_transport
from streamrl.system.stacks import answer
from streamrl.types import Version
from streamrl.weights.folder import shm_folder
from streamrl.weights.manifest import decode
from streamrl.weights.transport.pulls import VersionPulls

MODEL_PIECE_BYTES = 8 * 2**20


class NodeSlot(msgspec.Struct, frozen=True):
    """What a part on another node is told of it. folder: of the run there. service: the node's actor."""

    node: str
    folder: str
    service: ActorHandle


class NodeActor:
    """See the module."""

    def __init__(self, visit: Visit, config: dict[str, Any], run_node: ActorHandle, store: ActorHandle) -> None:
        self._run, self._node = enter(visit)
        answer("node", self._run.path / STACKS_FOLDER)
        self._run_node = run_node
        self._store = store
        # Of this process alone: what one before it left may be about to be removed.
        self._folder = shm_folder(f"{self._run.run_id}-{self._node}-{secrets.token_hex(4)}")
        settings = msgspec.convert(config, Config)
        self._remover = SegmentRemover(
            self._run.path, settings.queue.durability, limits.spare_bytes(settings), self._node
        )
        far = RunNode(run_node, self._node, settings.deadlines.update_s)
        transport = make_transport(settings, far)
        self._weights = VersionPulls(self._run.run_id, visit.key, self._folder, far.plan, transport)
        self._cleaner = subprocess.Popen(
            [sys.executable, "-S", "-P", leave_nothing.__file__, str(self._folder)],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )

    async def open(self) -> tuple[str, str]:
        """The node's id and its folder, with what its parts read in it."""
        await self._copy_model()
        await self._remover.clear()
        return self._node, str(self._run.path)

    async def read_head(self, path: str) -> tuple[bytes, bytes]:
        """The head of a segment of this node (`streamrl.buffers.segments.copies.SegmentHead`)."""
        self._check_ours(path)
        head, checksums = await asyncio.to_thread(read_head, self._run.path, path)
        return head, checksums

    async def read_range(self, path: str, offset: int, length: int) -> bytes:
        """Bytes of a segment of this node."""
        self._check_ours(path)
        return await asyncio.to_thread(read_range, self._run.path, path, offset, length)

    async def remove(self, paths: list[str]) -> None:
        """Remove segments of this node that no resume can need. One that is not there is no error."""
        for path in paths:
            self._check_ours(path)
        await self._remover.remove(paths)

    async def fetch_version(self, manifest: bytes) -> str:
        """Have a version in this node's shared memory; returns the folder that it is in. Those that nobody needs go."""
        weights = decode(manifest)
        await self._weights.fetch(weights, manifest)
        kept = [Version(*version) for version in await self._store.kept.remote()]
        self._weights.keep_only([*kept, weights.version])
        return str(self._folder)

    async def figures(self) -> dict[str, int]:
        """What this process took of versions, as plain numbers."""
        return msgspec.to_builtins(self._weights.figures)

    async def stacks(self) -> tuple[str, int]:
        """Of the processes of the run on this node (`streamrl.services.actors.stack_dump`)."""
        return await asyncio.to_thread(dump, self._run.path / STACKS_FOLDER, find_py_spy())

    async def close(self) -> None:
        """Give the shared memory back, and the disk's spare files."""
        await self._remover.close()
        await self._weights.close()
        await asyncio.to_thread(self._cleaner.communicate)

    def _check_ours(self, path: str) -> None:
        if node_of(path) != self._node:
            raise DataError(f"{path} is asked of node {self._node}, which did not write it")

    async def _copy_model(self) -> None:
        """The model's files, if the run made them: what is here already, and the same, stays."""
        folder = self._run.path / MODEL_FOLDER
        there = await self._run_node.model_files.remote()
        here = await asyncio.to_thread(file_digests, folder)
        folder.mkdir(exist_ok=True)
        for name, (size, digest) in there.items():
            if here.get(name) == (size, digest):
                continue
            with (folder / name).open("wb") as file:
                for offset in range(0, size, MODEL_PIECE_BYTES):
                    file.write(await self._run_node.model_bytes.remote(name, offset, MODEL_PIECE_BYTES))
        if await asyncio.to_thread(file_digests, folder) != there:
            raise DataError(f"the files in {folder}, copied, are not those of the run's model: remove them")


async def remove_on(seat: NodeSlot, paths: list[str]) -> str | None:
    """Have a node remove log files that nothing needs. Returns why it cannot, if it says so: the run goes on, as the
    rows that it has are still read, and its own writers end when its disk is broken. None too when it went away."""
    try:
        await seat.service.remove.remote(paths)
    except ray.exceptions.RayTaskError as error:
        return f"{explain_death(f'node {seat.node}', error)}; log files that nothing needs take room there"
    except ray.exceptions.RayError:
        pass  # it went away
    return None


def id_on(ray_node: str, run_id: str) -> "ray.ObjectRef":
    """Ask a node for its id in a run; None when it never had a part of it."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    from streamrl.services.weights.node_folder import id_here

    return (
        ray.remote(id_here)
        .options(num_cpus=0, scheduling_strategy=NodeAffinitySchedulingStrategy(ray_node, soft=False))
        .remote(run_id)
    )
