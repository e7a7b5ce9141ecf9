"""The weight store actor: which versions exist, who has which, and what may be unlinked.

It holds manifests only; the tensors lie in shared memory. All decisions are `streamrl.weights.store.WeightStore`'s.
Long-polled by the replicas, fed by the learner.
"""

import asyncio
from pathlib import Path

from streamrl.buffers.queue.signals import Signal
from streamrl.clock import SystemClock
from streamrl.services.run.folder import RunFolder
from streamrl.services.run.layout import STACKS_FOLDER
from streamrl.system.stacks import answer
from streamrl.types import Version
from streamrl.weights.manifest import decode, encode
from streamrl.weights.store import WeightStore
from streamrl.weights.update_times import UpdateLedger, UpdateTimes

EVALUATION = "evaluation"
"""Who pins a version that is to be evaluated."""


class WeightStoreActor:
    """See the module. Versions travel as (incarnation, step)."""

    def __init__(self, run_folder: str, update_deadline_s: float) -> None:
        run = RunFolder.open(Path(run_folder))
        answer("weights", run.path / STACKS_FOLDER)
        self._store = WeightStore(run.run_id, run.key(), SystemClock(), update_deadline_s)
        self._published = asyncio.Condition()
        self._let_go = Signal()
        self._updates = UpdateLedger()
        self._closed = False

    async def publish(self, manifest: bytes, pin_for: str | None = None) -> tuple[list[Version], dict[str, float]]:
        """Make a version known, pinned at once for `pin_for` when given.

        Returns the versions that nobody can need any more, for the publisher to unlink, and what the updates took that
        replicas have acknowledged since the last time (`streamrl.weights.update_times`).
        """
        weights = decode(manifest)
        async with self._published:
            self._store.publish(weights)
            if pin_for is not None:
                self._store.pin(weights.version, pin_for)
            self._published.notify_all()
        return self._store.retirable(), self._updates.take()

    async def retired(self) -> list[Version]:
        """The same, between two publications: at least one, as soon as there is one; none once the store is closed."""
        while not self._closed:
            gone = self._store.retirable()
            if gone:
                return gone
            await self._let_go.wait()
        return []

    async def join(self, replica: str) -> None:
        """A replica that will follow the versions. One that joins again starts over."""
        self._store.leave(replica)
        self._store.join(replica)
        self._let_go.notify()

    async def leave(self, replica: str) -> None:
        self._store.leave(replica)
        self._let_go.notify()

    async def newer_than(
        self, replica: str, version: Version | None, took: tuple[float, float, float] | None = None
    ) -> bytes | None:
        """Wait for a version newer than `version` and hand its manifest out; None once the store is closed.

        To ask is to acknowledge: the replica serves `version`, and to take it up `took` so long (`UpdateTimes`).
        """
        if version is not None:
            self._store.acknowledge(replica, Version(*version))
            if took is not None:
                self._updates.add(UpdateTimes(*took))
            self._let_go.notify()
        async with self._published:
            await self._published.wait_for(lambda: self._closed or self._store.newer_than(version) is not None)
            manifest = None if self._closed else self._store.newer_than(version, replica)
        return encode(manifest) if manifest is not None else None

    async def newer_step(self, version: Version | None) -> Version | None:
        """Wait for a version newer than `version`, and say which; None once the store is closed. For who only looks."""
        known = Version(*version) if version is not None else None
        async with self._published:
            await self._published.wait_for(lambda: self._closed or self._store.newer_than(known) is not None)
        return None if self._closed else await self.latest()

    async def pin(self, version: Version, holder: str) -> bytes:
        """The manifest of a version, kept until `unpin`."""
        return encode(self._store.pin(Version(*version), holder))

    async def pin_newest(self, holder: str) -> bytes | None:
        """The same of the newest version, None before the first: between two calls it may be one that is gone."""
        newest = self._store.latest
        return None if newest is None else encode(self._store.pin(newest.version, holder))

    async def unpin(self, version: Version, holder: str) -> None:
        self._store.unpin(Version(*version), holder)
        self._let_go.notify()

    async def latest(self) -> Version | None:
        newest = self._store.latest
        return newest.version if newest is not None else None

    async def kept(self) -> list[Version]:
        """The versions whose bytes somebody may need."""
        return self._store.kept

    async def late(self) -> dict[str, str]:
        """Replicas that owe an acknowledgement for longer than the deadline, each with what it owes, in words."""
        return {
            one.replica: f"it serves version {one.acknowledged} and owes version {one.latest} for {one.waited_s:.1f} s"
            for one in self._store.late()
        }

    async def close(self) -> None:
        """Wake every waiter with None."""
        async with self._published:
            self._closed = True
            self._published.notify_all()
        self._let_go.notify()
