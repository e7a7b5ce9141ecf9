"""Checkpoints: one atomic commit of everything that a resumed run needs.

Guarantees: a folder under its final name is complete, was synced, and was read back and verified before it got
that name; a crash or a power cut at any moment leaves the newest committed one in place, and at most temporary
folders, which the next save removes. Older checkpoints go only after a newer one is verified and its name is
durable. A full disk is waited out; any other failure of the disk is an error, and leaves the older ones as they are.
Nothing on disk is code: safetensors and JSON, with an XXH3-128 digest for each file and each tensor in the
manifest and one for the manifest in COMMITTED.

    checkpoints/step_000050/  COMMITTED  manifest.json  tensors_00000.safetensors ...

Knows nothing of models: it stores named tensors, a version, a ledger position and JSON. In a sharded run
all ranks iterate the tensors, and rank 0 alone writes.
"""

import os
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import torch
import xxhash
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as to_safetensors

from streamrl.disk import create_preallocated, make_folder, sync_data, sync_folder, write_all
from streamrl.disk_room import DiskRoom
from streamrl.errors import ComponentError, DataError, ResourceError
from streamrl.learner.digest import tensor_digest
from streamrl.types import Version

FORMAT = 2
MARKER = "COMMITTED"
MANIFEST = "manifest.json"
TEMPORARY = "tmp_"
REPLACED = ".replaced"
FILE_BYTES = 256 * 2**20
"""Tensors are gathered up to this many bytes, then written: it bounds the memory of a save."""

NamedTensors = Iterable[tuple[str, torch.Tensor]]


class FileEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One tensor file: its size, digest (XXH3-128, hex), and the tensors in it with theirs (`tensor_digest`)."""

    name: str
    size: int
    digest: str
    tensors: dict[str, str]


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a checkpoint holds. `extra` is the caller's JSON."""

    format: int
    version: Version
    ledger_position: int
    files: tuple[FileEntry, ...]
    extra: dict[str, Any]


@dataclass(frozen=True, slots=True)
class CheckpointInfo:
    """A verified checkpoint."""

    path: Path
    manifest: Manifest

    @property
    def version(self) -> Version:
        return self.manifest.version

    @property
    def ledger_position(self) -> int:
        return self.manifest.ledger_position

    @property
    def extra(self) -> dict[str, Any]:
        return self.manifest.extra

    def tensor(self, name: str) -> torch.Tensor:
        """One tensor, whole, on CPU. Raises DataError when the checkpoint has none of that name."""
        for entry in self.manifest.files:
            if name in entry.tensors:
                with safe_open(self.path / entry.name, framework="pt") as file:
                    return file.get_tensor(name)
        raise DataError(f"the checkpoint {self.path} has no tensor {name!r}: it is of another model or backend")


@dataclass(frozen=True, slots=True)
class Search:
    """newest: the newest verified checkpoint. skipped: a line with the reason for each newer one, or
    unreadable one, that was passed over."""

    newest: CheckpointInfo | None
    skipped: tuple[str, ...]


def save(
    root: Path,
    version: Version,
    tensors: NamedTensors,
    *,
    ledger_position: int,
    extra: dict[str, Any],
    keep: int,
    writer: bool = True,
    room: DiskRoom | None = None,
) -> CheckpointInfo | None:
    """Commit one checkpoint and remove those that `keep` no longer covers. Collective where `tensors` is.

    `writer` is True on rank 0; the others only take part in iterating `tensors` and get None. A full disk is
    waited out, for as long as `room` is open. The parent of `root` exists.

    Raises:
        ComponentError: the disk failed. DataError: what was read back is not what was written. ResourceError: no
            room, and `room` was closed. All of them leave the older checkpoints as they are.
    """
    if not writer:
        for _ in tensors:
            pass
        return None
    room = room or DiskRoom()
    final = root / f"step_{version.step:06d}"
    temporary = root / f"{TEMPORARY}{final.name}"
    try:
        _remove_leftovers(root)
        room.wait_for(lambda: make_folder(root.parent, f"{root.name}/{temporary.name}"))
        files = tuple(_write_tensors(temporary, tensors, room))
        manifest = Manifest(FORMAT, version, ledger_position, files, extra)
        _write_manifest(temporary, manifest, room)
        info = verify(temporary)
        _rename(temporary, final)
        _remove_older(root, version, keep)
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


def read_manifest(path: Path) -> CheckpointInfo:
    """The manifest of a committed checkpoint; its tensor files are not looked at. Raises DataError."""
    try:
        raw, marker = (path / MANIFEST).read_bytes(), (path / MARKER).read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"checkpoint {path} is not committed: {error}") from error
    if xxhash.xxh3_128_hexdigest(raw) != marker:
        raise DataError(f"checkpoint {path} is damaged: {MANIFEST} is not the one that was committed")
    try:
        manifest = msgspec.json.decode(raw, type=Manifest)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise DataError(f"checkpoint {path} is not readable: {MANIFEST}: {error}") from error
    if manifest.format != FORMAT:
        raise DataError(f"checkpoint {path} has format {manifest.format}; this program reads {FORMAT}")
    return CheckpointInfo(path, manifest)


def verify(path: Path) -> CheckpointInfo:
    """Read every byte and compare digests. Raises DataError naming the file."""
    info = read_manifest(path)
    for entry in info.manifest.files:
        try:
            with (path / entry.name).open("rb") as file:
                digest, size = _digest(file)
        except OSError as error:
            raise DataError(f"checkpoint {path} is damaged: {entry.name}: {error}") from error
        if (digest, size) != (entry.digest, entry.size):
            raise DataError(
                f"checkpoint {path} is damaged: {entry.name} has {size} bytes with digest {digest}, expected "
                f"{entry.size} with {entry.digest}"
            )
        _require_tensors(path, entry)
    return info


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


def _require_tensors(path: Path, entry: FileEntry) -> None:
    try:
        with safe_open(path / entry.name, framework="pt") as file:
            names = set(file.keys())
    except SafetensorError as error:
        raise DataError(f"checkpoint {path}: {entry.name} is not a safetensors file: {error}") from error
    if names != set(entry.tensors):
        raise DataError(f"checkpoint {path}: {entry.name} does not hold the tensors that {MANIFEST} lists")


def _digest(file: Any) -> tuple[str, int]:
    state, size = xxhash.xxh3_128(), 0
    while block := file.read(2**20):
        state.update(block)
        size += len(block)
    return state.hexdigest(), size


def _write_tensors(folder: Path, tensors: NamedTensors, room: DiskRoom) -> Iterator[FileEntry]:
    for number, bucket in enumerate(_buckets(tensors)):
        raw = to_safetensors(bucket)
        name = f"tensors_{number:05d}.safetensors"
        _write(folder / name, raw, room)
        digests = {name: tensor_digest(tensor) for name, tensor in bucket.items()}
        yield FileEntry(name, len(raw), xxhash.xxh3_128_hexdigest(raw), digests)


def _buckets(tensors: NamedTensors) -> Iterator[dict[str, torch.Tensor]]:
    bucket: dict[str, torch.Tensor] = {}
    size = 0
    for name, tensor in tensors:
        # A copy: two names may share memory, which safetensors refuses, and the model goes on.
        bucket[name] = tensor.detach().to("cpu", copy=True).contiguous()
        size += tensor.numel() * tensor.element_size()
        if size >= FILE_BYTES:
            yield bucket
            bucket, size = {}, 0
    if bucket:
        yield bucket


def _write_manifest(folder: Path, manifest: Manifest, room: DiskRoom) -> None:
    raw = msgspec.json.encode(manifest)
    _write(folder / MANIFEST, raw, room)
    _write(folder / MARKER, xxhash.xxh3_128_hexdigest(raw).encode(), room)
    sync_folder(folder)


def _write(path: Path, raw: bytes, room: DiskRoom) -> None:
    handle = room.wait_for(lambda: create_preallocated(path, len(raw)))
    try:
        write_all(handle, memoryview(raw), 0, path)
        sync_data(handle, path)
        # Verification is to read what the disk has, as far as the kernel lets us.
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(handle)


def _rename(temporary: Path, final: Path) -> None:
    """Give the new folder its name. One of the same step (of a lost branch of history) steps aside under a
    name that `find_newest` still looks at, so at every moment one of the two is there."""
    if final.exists():
        os.rename(final, final.with_name(final.name + REPLACED))
    os.rename(temporary, final)
    sync_folder(final.parent)


def _remove_leftovers(root: Path) -> None:
    for path in root.glob(f"{TEMPORARY}*") if root.is_dir() else []:
        shutil.rmtree(path)


def _remove_older(root: Path, newest: Version, keep: int) -> None:
    """Keep the `keep` highest versions up to `newest`; what cannot be read stays for a person to look at."""
    found = []
    for path in root.glob("step_*"):
        try:
            found.append((read_manifest(path).version, path))
        except DataError:
            if path.name.endswith(REPLACED):
                _remove(path)
    found = sorted((pair for pair in found if pair[0] <= newest), reverse=True)
    for _version, path in found[keep:]:
        _remove(path)


def _remove(path: Path) -> None:
    """Take the name away first: a half-removed folder must not look like a damaged checkpoint."""
    leftover = path.with_name(f"{TEMPORARY}old_{path.name}")
    os.rename(path, leftover)
    shutil.rmtree(leftover)
