"""The versions of one node that does not publish: which are pulled, on which way, and what of them may be seen.

    find_way (have, wanted)  ->  steps: an anchor (a version in full), deltas against the version before
    transport.receive(step)  ->  its bytes, piece by piece, in order
    copies                   ->  a file that is named after the last digest held

Guarantees: whatever comes, or does not come, a copy is there only if every tensor has the digest of its signed
manifest; a way that fails leaves nothing and is followed by one in full, once; a version is pulled once, however many
ask for it; where versions hold adapters their base is pulled before the first, and stays as long as a copy needs it.
One pull at a time: two ways that share a version would write it twice. It does not know how bytes travel,
how long that may take (the transport does), nor which versions are needed.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

import msgspec

from streamrl.errors import ComponentError, DataError
from streamrl.types import Version
from streamrl.weights.delta.chain import Kind, version_before
from streamrl.weights.manifest import WeightManifest, decode, encode, is_base, verify
from streamrl.weights.transport.copies import IncomingVersion, VersionCopies

T = TypeVar("T")
Buffer = bytes | bytearray | memoryview


class TransferStep(msgspec.Struct, frozen=True, array_like=True):
    """A step on the way to a version. num_bytes: that travel. manifest: of the step's version, encoded."""

    kind: Kind
    version: Version
    num_bytes: int
    manifest: bytes


class Transport(Protocol):
    """How the bytes of a step travel."""

    def receive(self, step: TransferStep) -> AsyncGenerator[Buffer, None]:
        """Its bytes, in order; a piece is valid until the next is asked for. Raises DataError and ComponentError, a
        DeadlineError among them, within a bounded time."""
        ...

    async def close(self) -> None:
        """Leave nothing behind. No `receive` is under way."""
        ...


FindWay = Callable[[bytes, Version | None], Awaitable[Sequence[TransferStep]]]
"""(encoded manifest of the version that is wanted, the version that is here) -> the steps; None: with an anchor."""


class PullFigures(msgspec.Struct):
    """What was taken by one process: versions in full, deltas, the bytes of both, and ways that failed."""

    anchors: int = 0
    deltas: int = 0
    bytes: int = 0
    failed_ways: int = 0


class VersionPulls:
    """See the module. One event loop uses it. What an earlier process left in `folder` goes first.

    Example:
        await pulls.fetch(manifest, encode(manifest))
        pulls.keep_only([manifest.version])
        await pulls.close()
    """

    def __init__(self, run_id: str, key: bytes, folder: Path, find_way: FindWay, transport: Transport) -> None:
        self._run_id = run_id
        self._key = key
        self._copies = VersionCopies(run_id, key, folder)
        self._find_way = find_way
        self._transport = transport
        self._manifests: dict[Version, WeightManifest] = {}
        """Of the copies that are here."""
        self._pulls: dict[Version, asyncio.Task[None]] = {}
        self._stands_on: set[Version] = set()
        """What the pull under way needs next."""
        self._passing: set[Version] = set()
        """What of that goes again as soon as it is not needed any more."""
        self._base: Version | None = None
        """Of the version that is pulled now."""
        self._one = asyncio.Lock()
        self.figures = PullFigures()

    async def fetch(self, manifest: WeightManifest, encoded: bytes) -> None:
        """Have a version here; whoever asks meanwhile waits for the same pull.

        Raises DataError when it is not what its manifest says, ComponentError when it cannot be had (DeadlineError when
        that takes too long), ResourceError when there is no room.
        """
        version = manifest.version
        if version not in self._pulls:
            if version in self._manifests and version not in self._passing:
                return
            self._pulls[version] = asyncio.create_task(self._pull(manifest, encoded), name=f"pull {version}")
            self._pulls[version].add_done_callback(lambda _: self._pulls.pop(version))
        await asyncio.shield(self._pulls[version])

    def keep_only(self, versions: Collection[Version]) -> None:
        """Remove all other copies but the newest, to which the next delta applies."""
        self._keep({*versions, *self._stands_on, *sorted(self._manifests)[-1:]})

    async def close(self) -> None:
        """End what is under way, and remove all copies."""
        pulls = list(self._pulls.values())
        for pull in pulls:
            pull.cancel()
        await asyncio.gather(*pulls, return_exceptions=True)
        await self._transport.close()
        self._manifests.clear()
        self._copies.close()

    # ---- one pull

    async def _pull(self, manifest: WeightManifest, encoded: bytes) -> None:
        async with self._one:
            if manifest.version in self._manifests:
                return  # it was on the way to another one
            verify(manifest, self._key, self._run_id)
            base = manifest.base
            try:
                self._base = base.version if base is not None else None
                if base is not None and base.version not in self._manifests:
                    await self._pull_one(base, encode(base))
                await self._pull_one(manifest, encoded)
            finally:
                self._base = None

    async def _pull_one(self, manifest: WeightManifest, encoded: bytes) -> None:
        try:
            await self._go(manifest, encoded, self._nearest(manifest.version))
        except (DataError, ComponentError):
            self.figures.failed_ways += 1
            await self._go(manifest, encoded, None)

    def _nearest(self, wanted: Version) -> Version | None:
        """The newest copy from which deltas could lead to a version; none where nothing compiles what reads deltas."""
        # Here and not above: numba costs a process that meets no delta a third of a second.
        from streamrl.system.kernel_cache import compiles_kernels

        if not compiles_kernels():
            return None
        same = (one for one in self._manifests if one.incarnation == wanted.incarnation and not is_base(one))
        older = (one for one in same if one < wanted)
        return max(older, default=None)

    async def _go(self, wanted: WeightManifest, encoded: bytes, have: Version | None) -> None:
        """From `have` to a version. What came in between is gone in the end."""
        before = set(self._manifests)
        self._stands_on = {have} if have is not None else set()
        try:
            for step in await self._find_way(encoded, have):
                after = wanted if step.version == wanted.version else self._verified(step)
                await (self._take_anchor(step, after) if step.kind == "anchor" else self._take_delta(step, after))
                self._stands_on, self._passing = {after.version}, {after.version} - {*before, wanted.version}
                self._keep({*before, after.version})
            if wanted.version not in self._manifests:
                raise DataError(f"weights: version {wanted.version}: the way to it from {have} ends before it")
        finally:
            self._stands_on, self._passing = set(), set()
            self._keep({*before, wanted.version})

    def _verified(self, step: TransferStep) -> WeightManifest:
        manifest = decode(step.manifest)
        verify(manifest, self._key, self._run_id)
        if manifest.version != step.version:
            raise DataError(f"weights: version {step.version} comes with the manifest of {manifest.version}")
        return manifest

    async def _take_anchor(self, step: TransferStep, manifest: WeightManifest) -> None:
        incoming = await self._begin(manifest)
        try:
            async with contextlib.aclosing(self._transport.receive(step)) as pieces:
                async for piece in pieces:
                    await in_thread(incoming.add, piece)
            await in_thread(incoming.finish)
        except BaseException:
            incoming.abandon()
            raise
        self._took(manifest)
        self.figures.anchors += 1
        self.figures.bytes += manifest.total_bytes

    async def _begin(self, manifest: WeightManifest) -> IncomingVersion:
        """Who is cancelled meanwhile leaves no file open."""
        beginning = asyncio.ensure_future(asyncio.to_thread(self._copies.begin, manifest))
        try:
            return await asyncio.shield(beginning)
        except asyncio.CancelledError:
            await asyncio.wait({beginning})
            if beginning.exception() is None:
                beginning.result().abandon()
            raise

    async def _take_delta(self, step: TransferStep, manifest: WeightManifest) -> None:
        what = f"weights: the delta of version {step.version}"
        base = self._manifests.get(version_before(step.version))
        if base is None:
            raise DataError(f"{what}: the version before it is not here; take the version in full")
        if not 0 < step.num_bytes <= manifest.total_bytes:
            raise DataError(f"{what} is said to be {step.num_bytes} bytes, of a version of {manifest.total_bytes}")
        delta = bytearray()
        async with contextlib.aclosing(self._transport.receive(step)) as pieces:
            async for piece in pieces:
                delta += piece
                if len(delta) > step.num_bytes:
                    break
        if len(delta) != step.num_bytes:
            raise DataError(f"{what}: {len(delta)} of {step.num_bytes} bytes arrived, or more")
        await in_thread(self._copies.apply, base, manifest, delta)
        self._took(manifest)
        self.figures.deltas += 1
        self.figures.bytes += len(delta)

    def _took(self, manifest: WeightManifest) -> None:
        self._manifests[manifest.version] = manifest

    def _keep(self, versions: Collection[Version]) -> None:
        """These, and the bases that they need."""
        wanted = [manifest for version, manifest in self._manifests.items() if version in versions]
        bases = {manifest.base.version for manifest in wanted if manifest.base is not None}
        for version in self._manifests.keys() - {*versions, *bases, self._base}:
            del self._manifests[version]
        self._copies.keep_only(self._manifests)


async def in_thread(call: Callable[..., T], *args: Any) -> T:
    """Run a call beside the event loop. Who is cancelled still waits for its end: else what the call uses would be
    closed under it."""
    work = asyncio.ensure_future(asyncio.to_thread(call, *args))
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        await asyncio.wait({work})
        raise
