"""Deltas as files beside the versions that they are of: written by the publisher, read by whoever sends them on.

    bytes of the manifest (8, little-endian) | the manifest of the version, encoded | the delta

Guarantees: a file has its name only when it is whole; a delta that would not pay, or has no room, is none, and nothing
fails for that. What there is stays below a bound, the oldest goes first: deltas are spare, whoever lacks one takes the
version in full. It trusts the files, since the folder is ours alone; whoever applies a delta checks it.
Without torch.
"""

import contextlib
import os
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from streamrl.errors import DataError, ResourceError
from streamrl.system.disk import allocate, write_all
from streamrl.types import Version
from streamrl.weights.folder import mapped
from streamrl.weights.manifest import WeightManifest, encode

Content = npt.NDArray[np.uint8]
_PRELUDE: Final = struct.Struct("<Q")


class DeltaFiles:
    """The deltas in one folder. One process writes, in one thread at a time; any may read.

    Example:
        deltas.add(before, after, most_bytes=10**9)
        manifest, delta = deltas.open(after.version)
        deltas.keep(after.total_bytes)
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def add(self, before: WeightManifest, after: WeightManifest, most_bytes: int, threads: int = 1) -> int:
        """Make the delta of two versions that lie where their manifests say, and keep it if it pays.

        most_bytes: that there is room for. Returns the bytes that it takes, 0 when there is none: it does not pay, has
        no room, or a version is gone. Raises DataError when the versions do not follow each other.
        """
        # Not above: who only reads deltas, or writes none, has no use for a compiler.
        from streamrl.weights.delta.delta import encode_delta

        with contextlib.ExitStack() as opened:
            try:
                old, new = (opened.enter_context(mapped(Path(one.location), one)) for one in (before, after))
            except FileNotFoundError:
                return 0
            buffers = encode_delta(before, after, old, new, threads=threads)
            if buffers is None:
                return 0
            manifest = encode(after)
            parts = [_PRELUDE.pack(len(manifest)), manifest, *buffers]
            size = sum(map(len, parts))
            return size if size <= most_bytes and self._write(after.version, parts, size) else 0

    def sizes(self) -> dict[Version, int]:
        """Bytes of each file, by the version that it makes."""
        found = {}
        for path in self._folder.glob("*.delta"):
            with contextlib.suppress(FileNotFoundError):
                found[_version(path)] = path.stat().st_size
        return found

    @property
    def bytes_held(self) -> int:
        return sum(self.sizes().values())

    def open(self, version: Version) -> tuple[bytes, Content]:
        """The encoded manifest of a version, and its delta: a view of the file that stays when that is removed.

        Raises DataError when there is none, or the file is cut off.
        """
        path = delta_file(self._folder, version)
        what = f"weights: the delta of version {version}"
        try:
            content = np.memmap(path, np.uint8, mode="c")
        except (FileNotFoundError, ValueError) as error:
            raise DataError(f"{what}: {path} is gone or empty; take the version in full") from error
        size = _PRELUDE.unpack(content[: _PRELUDE.size].data)[0] if len(content) >= _PRELUDE.size else len(content)
        end = _PRELUDE.size + size
        if end > len(content):
            raise DataError(f"{what}: {path} is cut off at byte {len(content)}; take the version in full")
        return bytes(content[_PRELUDE.size : end]), content[end:]

    def keep(self, num_bytes: int) -> None:
        """Remove the oldest until all together take less than `num_bytes`."""
        sizes = self.sizes()
        held = sum(sizes.values())
        for version in sorted(sizes):
            if held < num_bytes:
                return
            delta_file(self._folder, version).unlink(missing_ok=True)
            held -= sizes[version]

    def _write(self, version: Version, parts: Sequence[Any], size: int) -> bool:
        """Whether there was room."""
        path = delta_file(self._folder, version)
        part = path.with_suffix(".delta-part")
        fd = os.open(part, os.O_CREAT | os.O_TRUNC | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            allocate(fd, 0, size, part)
            at = 0
            for data in parts:
                write_all(fd, memoryview(data).cast("B"), at, part)
                at += len(data)
            part.rename(path)
        except ResourceError:
            part.unlink()
            return False
        except BaseException:
            part.unlink()
            raise
        finally:
            os.close(fd)
        return True


def delta_file(folder: Path, version: Version) -> Path:
    return folder / f"{version}.delta"


def _version(path: Path) -> Version:
    incarnation, step = path.stem.split(".")
    return Version(int(incarnation), int(step))
