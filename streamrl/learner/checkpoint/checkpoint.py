"""Checkpoints: one atomic commit of everything that a resumed run needs.

Guarantees: a folder under its final name is complete, was synced, and was read back and verified before it got
that name; a crash or a power cut at any moment leaves the newest committed one in place, and at most temporary
folders, which the next save removes. Older checkpoints go only after a newer one is verified and its name is
durable. A full disk is waited out; any other failure of the disk is an error, and leaves the older ones as they are.

Saving has two parts: `Snapshot.take` copies the state, and only for that the learner stands still; `save` writes the
copy, in any thread, and lets go of each tensor once it is written. Knows nothing of models: it stores named tensors, a
version, a ledger position and JSON (`manifest` and `format` have the files, `retention` which ones go).
"""

import os
import shutil
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import torch
import xxhash

from streamrl.errors import ComponentError, DataError, ResourceError
from streamrl.learner.checkpoint.digest import tensor_digest
from streamrl.learner.checkpoint.format import verify
from streamrl.learner.checkpoint.manifest import (
    FORMAT,
    MANIFEST,
    MARKER,
    REPLACED,
    TEMPORARY,
    CheckpointInfo,
    FileEntry,
    Manifest,
    read_manifest,
)
from streamrl.learner.checkpoint.retention import free_space, remove_leftovers, remove_older
from streamrl.learner.checkpoint.tensor_file import pieces
from streamrl.system.disk import create_preallocated, make_folder, sync_data, sync_folder, write_all
from streamrl.system.disk_space import DiskSpace
from streamrl.types import Version

__all__ = [
    "CheckpointInfo",
    "Search",
    "Snapshot",
    "find_newest",
    "prove_loaded",
    "read_manifest",
    "save",
    "verify",
]

FILE_BYTES = 256 * 2**20
"""A file is full with this many bytes of tensors: what a save lets go of at once."""

ENTRY_BYTES = 512
"""What a tensor takes beside its contents, generously: its place in a file's head and in the manifest."""
MANIFEST_BYTES = 64 * 2**10
"""The same for the rest of a checkpoint, the caller's JSON included."""

NamedTensors = Iterable[tuple[str, torch.Tensor]]


class Snapshot:
    """The state at one moment, in CPU memory of its own: the model goes on while it is written.

    num_bytes: of the checkpoint that it makes, at most. Iterating hands each tensor out once and forgets it.
    """

    def __init__(self, version: Version, tensors: NamedTensors, *, ledger_position: int, extra: dict[str, Any]) -> None:
        """Collective where `tensors` is. extra: JSON values of the caller's."""
        self.version = version
        self.ledger_position = ledger_position
        self.extra = extra
        # Copies: two names may share memory, which safetensors refuses, and the next step changes the weights in place.
        self._tensors = deque((name, _copied(tensor)) for name, tensor in tensors)
        self.num_bytes = sum(tensor.nbytes + ENTRY_BYTES for _, tensor in self._tensors) + MANIFEST_BYTES

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        while self._tensors:
            yield self._tensors.popleft()


@dataclass(frozen=True, slots=True)
class Search:
    """newest: the newest verified checkpoint. skipped: a line with the reason for each newer one, or
    unreadable one, that was passed over."""

    newest: CheckpointInfo | None
    skipped: tuple[str, ...]


def save(
    root: Path, snapshot: Snapshot, *, keep: int, byte_budget: int | None = None, room: DiskSpace | None = None
) -> CheckpointInfo:
    """Commit one checkpoint and remove those that `keep` no longer covers. The snapshot is empty afterwards.

    byte_budget: of everything under `root`; None is room for `keep` + 2 checkpoints of this size. Older ones go before
    it would be passed, never the newest verified one. A full disk is waited out, for as long as `room` is open. The
    parent of `root` exists.

    Raises:
        ComponentError: the disk failed. DataError: what was read back is not what was written. ResourceError: no
            room, and `room` was closed, or the budget has none. All of them leave the newest checkpoint as it is.
    """
    room = room or DiskSpace()
    final = root / f"step_{snapshot.version.step:06d}"
    temporary = root / f"{TEMPORARY}{final.name}"
    try:
        remove_leftovers(root)
        free_space(root, snapshot.num_bytes, (keep + 2) * snapshot.num_bytes if byte_budget is None else byte_budget)
        room.wait_for(lambda: make_folder(root.parent, f"{root.name}/{temporary.name}"))
        files = tuple(_write_tensors(temporary, snapshot, room))
        manifest = Manifest(FORMAT, snapshot.version, snapshot.ledger_position, files, snapshot.extra)
        _write_manifest(temporary, manifest, room)
        info = verify(temporary)
        _rename(temporary, final)
        remove_older(root, snapshot.version, keep)
    except ResourceError:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    except OSError as error:
        raise ComponentError(
            f"checkpoint {final}: {error}; look at the disk and its permissions, then resume the run"
        ) from error
    return CheckpointInfo(final, info.manifest)


def find_newest(root: Path) -> Search:
    """The checkpoint of the highest version whose every byte is what its manifest says."""
    infos, skipped = [], []
    for path in sorted(root.glob("step_*")) if root.is_dir() else []:
        try:
            infos.append(read_manifest(path))
        except DataError as error:
            skipped.append(str(error))
    for info in sorted(infos, key=lambda info: info.version, reverse=True):
        try:
            return Search(verify(info.path), tuple(skipped))
        except DataError as error:
            skipped.append(str(error))
    return Search(None, tuple(skipped))


def prove_loaded(info: CheckpointInfo, state: NamedTensors) -> None:
    """Compare what a learner holds after it loaded `info`, tensor by tensor, with what was saved. Collective where
    `state` is. Raises DataError naming the first tensor that is another one, is missing, or is too many."""
    saved = {name: digest for entry in info.manifest.files for name, digest in entry.tensors.items()}
    differing = [name for name, tensor in state if saved.pop(name, None) != tensor_digest(tensor)]
    differing += saved
    if differing:
        raise DataError(
            f"checkpoint {info.path} was read, but {len(differing)} tensors of the learner are not those saved, "
            f"the first of them {differing[0]}: it is of another model or backend"
        )


def _copied(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().to("cpu", copy=True).contiguous()


def _write_tensors(folder: Path, tensors: NamedTensors, room: DiskSpace) -> Iterator[FileEntry]:
    for number, bucket in enumerate(_buckets(tensors)):
        parts = pieces(bucket)
        name = f"tensors_{number:05d}.safetensors"
        digest = _write(folder / name, parts, room)
        digests = {name: tensor_digest(tensor) for name, tensor in bucket.items()}
        yield FileEntry(name, sum(map(len, parts)), digest, digests)


def _buckets(tensors: NamedTensors) -> Iterator[dict[str, torch.Tensor]]:
    bucket: dict[str, torch.Tensor] = {}
    size = 0
    for name, tensor in tensors:
        bucket[name] = tensor
        size += tensor.nbytes
        if size >= FILE_BYTES:
            yield bucket
            bucket, size = {}, 0
    if bucket:
        yield bucket


def _write_manifest(folder: Path, manifest: Manifest, room: DiskSpace) -> None:
    digest = _write(folder / MANIFEST, [memoryview(msgspec.json.encode(manifest))], room)
    _write(folder / MARKER, [memoryview(digest.encode())], room)
    sync_folder(folder)


def _write(path: Path, parts: list[memoryview], room: DiskSpace) -> str:
    """Write a file, one part after the other; its digest."""
    handle = room.wait_for(lambda: create_preallocated(path, sum(map(len, parts))))
    digest, end = xxhash.xxh3_128(), 0
    try:
        for part in parts:
            write_all(handle, part, end, path)
            digest.update(part)
            end += len(part)
        sync_data(handle, path)
        # Verification is to read what the disk has, as far as the kernel lets us.
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(handle)
    return digest.hexdigest()


def _rename(temporary: Path, final: Path) -> None:
    """Give the new folder its name. One of the same step (of a lost branch of history) steps aside under a
    name that `find_newest` still looks at, so at every moment one of the two is there."""
    if final.exists():
        os.rename(final, final.with_name(final.name + REPLACED))
    os.rename(temporary, final)
    sync_folder(final.parent)
