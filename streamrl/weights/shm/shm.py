"""Versions through shared memory: a file for each, written once, read by memory map.

Guarantees of the publisher: a version's file is complete, finite and digested before its manifest exists; what
can be opened as a version is never written again (`streamrl.weights.shm.version_files`); what cannot be published
leaves no file. Guarantees of the source: tensors are
handed out only after signature, file size and every digest hold; they are views, no copy is made. Neither
knows which version is newest or who still reads one: that is `WeightStore` and the replica.
"""

import contextlib
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import torch
import xxhash

from streamrl.errors import DataError, ResourceError
from streamrl.types import Version
from streamrl.weights.delta.files import Content, DeltaFiles
from streamrl.weights.folder import make_folder, remove_folder, shm_folder, version_file
from streamrl.weights.manifest import AdapterFacts, TensorEntry, WeightManifest, combined_digest, sign, verify
from streamrl.weights.shm.mappings import LentMapping, VersionMappings
from streamrl.weights.shm.shared_checks import SharedChecks, find_damage
from streamrl.weights.shm.version_files import VersionFiles
from streamrl.weights.tensors import NamedTensors, chunks, copy_finite, described, flat_bits

ALIGNMENT = 64
"""A cache line, and the widest vector load."""


class ShmPublisher:
    """Writes versions for the replicas of one node.

    The folder belongs to the run: `close` removes it with every version in it, those of an earlier
    incarnation too. One thread publishes; `unlink` may be called from another.

    Example:
        with ShmPublisher(run_id, key) as publisher:
            manifest = publisher.publish(model.named_parameters(), Version(0, 1))
            ...
            publisher.unlink(manifest.version)
    """

    def __init__(
        self, run_id: str, key: bytes, folder: Path | None = None, byte_budget: int | None = None, threads: int = 1
    ) -> None:
        """byte_budget: of all versions in the folder, and of the deltas beside them; None is no bound.

        threads: that write a version and compare it with the one before.
        """
        self._run_id = run_id
        self._key = key
        self._folder = folder if folder is not None else shm_folder(run_id)
        self.byte_budget = byte_budget
        self._threads = threads
        make_folder(self._folder)
        self._files = VersionFiles(self._folder)
        self._deltas = DeltaFiles(self._folder)
        self.check_s = 0.0
        """Seconds that copying the last version took, NaN and infinity looked for: a part of writing it."""

    def publish(self, tensors: NamedTensors, version: Version, adapters: AdapterFacts | None = None) -> WeightManifest:
        """Copy the tensors into a file of their own and describe it.

        adapters: what they are adapters to, where they are.

        Raises NonFiniteError (a NaN or infinity, named), ResourceError (no room, in memory or in the budget, found
        before the first byte is written), FencedError (the version exists), DataError (no tensors, a name twice, a
        wrong format).
        After an error there is no file and no manifest.
        """
        named = list(tensors)
        plan, total = _layout(named)
        if lack := self.lack(total):
            raise ResourceError(f"weights: version {version} has no room: {lack}")
        growing = self._files.begin(version, total)
        try:
            entries, self.check_s = _write(growing.content, plan, [tensor for _, tensor in named], self._threads)
        except BaseException:
            growing.abandon()
            raise
        path = growing.keep()
        return sign(
            WeightManifest(
                run_id=self._run_id,
                version=version,
                source="shm",
                location=str(path),
                tensors=entries,
                total_bytes=total,
                digest=combined_digest(entries),
                adapters=adapters,
            ),
            self._key,
        )

    def publish_delta(self, before: WeightManifest, after: WeightManifest) -> int:
        """Write the delta of two versions that follow each other, both of them published here.

        Returns the bytes that it takes; 0 when it does not pay, or there is no room: then there is none. All deltas
        together stay below one version in full, the oldest goes first.
        """
        room = after.total_bytes
        if self.byte_budget is not None:
            room = min(room, self.byte_budget - self.bytes_held - self._files.spare_bytes)
        size = self._deltas.add(before, after, room, self._threads)
        self._deltas.keep(after.total_bytes)
        return size

    def lack(self, num_bytes: int) -> str:
        """Why the budget has no room for a further version of `num_bytes`, with the figures; "" when it has. Deltas
        make room for it."""
        if self.byte_budget is None:
            return ""
        held = self.bytes_held
        if held + num_bytes <= self.byte_budget:
            # One byte more than there may be: `keep` stays below what it is told.
            self._deltas.keep(self.byte_budget - held - num_bytes + 1)
            return ""
        return (
            f"older versions that are still needed hold {held:,} bytes, it takes {num_bytes:,}, and "
            f"weights.byte_budget is {self.byte_budget:,}"
        )

    @property
    def bytes_held(self) -> int:
        """Bytes of shared memory in the folder's versions, those of an earlier learner too. Deltas do not count."""
        return self._files.version_bytes

    def unlink(self, version: Version) -> None:
        """Nobody opens this version any more, and its memory is used again or given back once its last reader is
        done. Readers that have it open keep their view."""
        self._files.retire(version)

    def keep_only(self, versions: Collection[Version]) -> None:
        """Unlink all others: those that a publisher before this one left behind, whatever ended it. All deltas go:
        they led to versions of that one."""
        self._files.keep_only(versions)
        self._deltas.keep(0)

    def close(self) -> None:
        """Remove the run's folder and all versions in it."""
        self._files.close()
        remove_folder(self._folder)

    def __enter__(self) -> "ShmPublisher":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class ShmSource:
    """Opens versions of one run: where their manifests say, or from a node's copies in `folder`
    (`streamrl.weights.transport.copies`). One that holds adapters is opened as what it is; `streamrl.weights.served`
    merges.

    Example:
        with ShmSource(run_id, key).open(manifest) as tensors:
            engine.load_weights(tensors, manifest.version, UpdateMode.KEEP)
    """

    def __init__(
        self,
        run_id: str,
        key: bytes,
        folder: Path | None = None,
        mappings: VersionMappings | None = None,
        checks: SharedChecks | None = None,
    ) -> None:
        """mappings: that stay from version to version; each is mapped anew when None. checks: that are shared with the
        other readers of this node; all by this process when None."""
        self._run_id = run_id
        self._key = key
        self._folder = folder
        self._mappings = mappings
        self._checks = checks

    @contextlib.contextmanager
    def open(self, manifest: WeightManifest) -> Iterator[Mapping[str, torch.Tensor]]:
        """The verified tensors of a version, by name: views of the file, valid inside the context.

        They are for reading: who writes to one is ended by a signal. A view that outlives the context stays valid, and
        keeps the version's memory until it is gone.
        Raises DataError when signature, run, size or a digest is wrong, or the version was taken back.
        """
        verify(manifest, self._key, self._run_id)
        copy = version_file(self._folder, manifest.version) if self._folder is not None else None
        content = self._checked(manifest, copy or Path(manifest.location))
        tensors: dict[str, torch.Tensor] = {}
        try:
            base = torch.from_numpy(content)
            tensors.update((entry.name, _view(base, entry)) for entry in manifest.tensors)
            # The tensors have the bytes from here on: these are free with the last view.
            del base, content
            yield tensors
        finally:
            tensors.clear()

    def _checked(self, manifest: WeightManifest, path: Path) -> Content:
        """All bytes, every digest held."""
        content, inode = _lent(self._mappings if self._mappings is not None else VersionMappings(), manifest, path)
        if self._checks is not None:
            fault = self._checks.find_damage(manifest, content, path.parent, inode)
        else:
            fault = find_damage(manifest, content)
        if fault:
            raise DataError(f"weights: version {manifest.version}: {fault}")
        return content


def _layout(named: Sequence[tuple[str, torch.Tensor]]) -> tuple[list[TensorEntry], int]:
    """Entries without digests, each at the next aligned offset, and the bytes of the file."""
    plan, end = [], 0
    for name, tensor in named:
        entry = described(name, tensor, -(-end // ALIGNMENT) * ALIGNMENT)
        plan.append(entry)
        end = entry.offset + entry.nbytes
    if not end:
        raise DataError("weights: there are no tensors to publish")
    if len({entry.name for entry in plan}) != len(plan):
        raise DataError(f"weights: a tensor name occurs twice among {len(plan)}")
    return plan, end


def _write(
    content: Content, plan: Sequence[TensorEntry], tensors: Sequence[torch.Tensor], threads: int
) -> tuple[tuple[TensorEntry, ...], float]:
    """Digest, check and copy all tensors, the largest first. Returns the seconds of the checked copies, too."""
    largest_first = sorted(range(len(plan)), key=lambda number: -plan[number].nbytes)
    with ThreadPoolExecutor(threads, thread_name_prefix="write-version") as pool:
        done = dict(
            zip(
                largest_first,
                pool.map(lambda number: _write_tensor(content, plan[number], tensors[number]), largest_first),
                strict=True,
            )
        )
    written = [done[number] for number in range(len(plan))]
    return tuple(entry for entry, _ in written), sum(check_ns for _, check_ns in written) / 1e9 / threads


def _write_tensor(content: Content, entry: TensorEntry, tensor: torch.Tensor) -> tuple[TensorEntry, int]:
    """One pass through the cache. Returns the entry with its digest, and the nanoseconds of the checked copy."""
    hasher, check_ns = xxhash.xxh3_64(), 0
    bits = flat_bits(tensor)
    targets = chunks(content[entry.offset : entry.offset + entry.nbytes].view(bits.dtype))
    for chunk, target in zip(chunks(bits), targets, strict=True):
        hasher.update(chunk.data)
        began = time.perf_counter_ns()
        copy_finite(entry.name, tensor.dtype, chunk, target)
        check_ns += time.perf_counter_ns() - began
    return msgspec.structs.replace(entry, digest=hasher.hexdigest()), check_ns


def _lent(mappings: VersionMappings, manifest: WeightManifest, path: Path) -> LentMapping:
    what = f"weights: version {manifest.version}"
    try:
        lent = mappings.lend(path)
    except FileNotFoundError:
        raise DataError(f"{what}: {path} is gone; ask the weight store for a newer version") from None
    except (OSError, ValueError) as error:  # ValueError: it is empty
        raise DataError(f"{what}: cannot open {path}: {error}") from error
    if len(lent.content) != manifest.total_bytes:
        raise DataError(f"{what}: {path} has {len(lent.content)} bytes, its manifest says {manifest.total_bytes}")
    return lent


def _view(base: torch.Tensor, entry: TensorEntry) -> torch.Tensor:
    flat = base[entry.offset : entry.offset + entry.nbytes]
    return flat.view(getattr(torch, entry.dtype)).view(entry.shape)
