"""The manifest of a checkpoint, and its files as bytes: what is believed of a folder before a tensor of it is read.

    step_000050/  COMMITTED  manifest.json  tensors_00000.safetensors ...

Guarantees: nothing is believed that its digest does not cover: COMMITTED holds that of the manifest, the manifest those
of every file and every tensor (XXH3-128). Nothing on disk is code. Reads only, and without torch.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import xxhash

from streamrl.errors import DataError
from streamrl.types import Version

if TYPE_CHECKING:
    import torch

FORMAT = 2
MARKER = "COMMITTED"
MANIFEST = "manifest.json"
TEMPORARY = "tmp_"
REPLACED = ".replaced"


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

    def tensor(self, name: str) -> "torch.Tensor":
        """One tensor, whole, on CPU. Raises DataError when the checkpoint has none of that name."""
        # Here and not above: who looks for the newest checkpoint, or copies it, has no use for torch.
        from safetensors import safe_open

        for entry in self.manifest.files:
            if name in entry.tensors:
                with safe_open(self.path / entry.name, framework="pt") as file:
                    return file.get_tensor(name)
        raise DataError(f"the checkpoint {self.path} has no tensor {name!r}: it is of another model or backend")


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


def verify_files(info: CheckpointInfo) -> None:
    """Read every byte of the files that a manifest lists, and compare digests. Raises DataError naming the file."""
    for entry in info.manifest.files:
        try:
            with (info.path / entry.name).open("rb") as file:
                digest, size = _digest(file)
        except OSError as error:
            raise DataError(f"checkpoint {info.path} is damaged: {entry.name}: {error}") from error
        if (digest, size) != (entry.digest, entry.size):
            raise DataError(
                f"checkpoint {info.path} is damaged: {entry.name} has {size} bytes with digest {digest}, expected "
                f"{entry.size} with {entry.digest}"
            )


def manifests(root: Path) -> list[CheckpointInfo]:
    """The committed checkpoints of a folder by their manifests, the newest first; what cannot be read is left out."""
    infos = []
    for path in root.glob("step_*") if root.is_dir() else []:
        try:
            infos.append(read_manifest(path))
        except DataError:
            continue
    return sorted(infos, key=lambda info: info.version, reverse=True)


def newest_by_bytes(root: Path) -> CheckpointInfo | None:
    """The checkpoint of the highest version whose files have the bytes that its manifest says. No tensor is looked at:
    `checkpoint.find_newest` does that."""
    for info in manifests(root):
        try:
            verify_files(info)
        except DataError:
            continue
        return info
    return None


def _digest(file: Any) -> tuple[str, int]:
    state, size = xxhash.xxh3_128(), 0
    while block := file.read(2**20):
        state.update(block)
        size += len(block)
    return state.hexdigest(), size
