"""Versions through Ray's object store, for replicas on other nodes: put once, pulled once by each node.

The publisher's side stands beside `ShmPublisher`: what that wrote is put into the store when the first node asks for
it, in buckets, and stays there until it is let go. The source's side writes the buckets into its own node's shared
memory, verified; `ShmSource` opens them there. Neither decides which versions are needed.
"""

import asyncio
from collections.abc import Collection
from pathlib import Path

import numpy as np
import ray

from streamrl.errors import DataError
from streamrl.types import Version
from streamrl.weights.copies import VersionCopies
from streamrl.weights.manifest import WeightManifest, verify

BUCKET_BYTES = 16 * 2**20
"""Of one object: several of them fit into the smallest store that Ray makes."""


class ObjectStorePublisher:
    """Puts versions that lie in this node's shared memory into the object store. Blocks: call it off the event loop.

    Example:
        refs = publisher.publish(manifest)       # the same refs every time
        publisher.keep_only([manifest.version])
    """

    def __init__(self, run_id: str, key: bytes, bucket_bytes: int = BUCKET_BYTES) -> None:
        self._run_id = run_id
        self._key = key
        self._bucket_bytes = bucket_bytes
        self._buckets: dict[Version, list[ray.ObjectRef]] = {}

    def publish(self, manifest: WeightManifest) -> list[ray.ObjectRef]:
        """The buckets of a version, in their order: uint8 arrays, the last one shorter. Put at the first call.

        Raises DataError when the manifest is not ours, or the version was taken back meanwhile.
        """
        verify(manifest, self._key, self._run_id)
        if manifest.version not in self._buckets:
            self._buckets[manifest.version] = self._put(manifest)
        return self._buckets[manifest.version]

    def keep_only(self, versions: Collection[Version]) -> None:
        """Let go of all other versions; the store frees them when no node pulls them any more."""
        for version in self._buckets.keys() - set(versions):
            del self._buckets[version]

    def close(self) -> None:
        self._buckets.clear()

    def _put(self, manifest: WeightManifest) -> list[ray.ObjectRef]:
        try:
            content = np.memmap(manifest.location, np.uint8, mode="r", shape=(manifest.total_bytes,))
        except (OSError, ValueError) as error:
            what = f"weights: version {manifest.version}: {manifest.location} cannot be read"
            raise DataError(f"{what}: {error}") from error
        starts = range(0, manifest.total_bytes, self._bucket_bytes)
        return [ray.put(np.asarray(content[start : start + self._bucket_bytes])) for start in starts]


class ObjectStoreSource:
    """Keeps the copies of one node. One event loop uses it.

    publisher: the actor whose `buckets(manifest)` gives the refs of a version, encoded as it comes.
    """

    def __init__(self, run_id: str, key: bytes, folder: Path, publisher: ray.actor.ActorHandle) -> None:
        self._copies = VersionCopies(run_id, key, folder)
        self._publisher = publisher
        self._pulls: dict[Version, asyncio.Task[None]] = {}

    async def fetch(self, manifest: WeightManifest, encoded: bytes) -> None:
        """Have a version here; whoever asks meanwhile waits for the same pull.

        Raises DataError when it is not what its manifest says, ResourceError when there is no room.
        """
        version = manifest.version
        if self._copies.has(version):
            return
        if version not in self._pulls:
            self._pulls[version] = asyncio.create_task(self._pull(manifest, encoded), name=f"pull {version}")
            self._pulls[version].add_done_callback(lambda _: self._pulls.pop(version))
        await asyncio.shield(self._pulls[version])

    def keep_only(self, versions: Collection[Version]) -> None:
        """Remove all other copies."""
        self._copies.keep_only(versions)

    def close(self) -> None:
        """Remove all copies."""
        self._copies.close()

    async def _pull(self, manifest: WeightManifest, encoded: bytes) -> None:
        incoming = await asyncio.to_thread(self._copies.begin, manifest)
        try:
            for ref in await self._publisher.buckets.remote(encoded):
                await asyncio.to_thread(incoming.add, memoryview(await ref))
            await asyncio.to_thread(incoming.finish)
        except BaseException:
            incoming.abandon()
            raise
