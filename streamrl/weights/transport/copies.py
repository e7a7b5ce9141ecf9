"""Copies of published versions on a node that the publisher does not run on, in that node's shared memory.

Guarantees: a copy is there whole or not at all, and only after every tensor had the digest that its signed manifest
names; room is reserved before its first byte; `close` leaves nothing. It does not know how the bytes travel, nor which
versions are needed, and does not import torch. `streamrl.weights.shm.shm.ShmSource` opens the copies.
"""

import contextlib
import mmap
import os
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import xxhash

from streamrl.errors import DataError
from streamrl.system.disk import allocate, write_all
from streamrl.types import Version
from streamrl.weights.folder import make_folder, mapped, remove_folder, version_file
from streamrl.weights.manifest import WeightManifest, verify


class VersionCopies:
    """The copies of one run on one node. What an earlier process left in `folder` goes first.

    Example:
        incoming = copies.begin(manifest)
        for bucket in buckets: incoming.add(bucket)
        incoming.finish()                           # or incoming.abandon()
        copies.keep_only([manifest.version])
    """

    def __init__(self, run_id: str, key: bytes, folder: Path) -> None:
        self._run_id = run_id
        self._key = key
        self._folder = folder
        remove_folder(folder)
        make_folder(folder)

    def has(self, version: Version) -> bool:
        return version_file(self._folder, version).exists()

    def begin(self, manifest: WeightManifest) -> "IncomingVersion":
        """Take in the bytes of a version.

        Raises DataError (not ours, changed) and ResourceError (no room); there is nothing then.
        """
        verify(manifest, self._key, self._run_id)
        return IncomingVersion(version_file(self._folder, manifest.version), manifest)

    def apply(self, before: WeightManifest, after: WeightManifest, delta: Any) -> None:
        """Make a copy of `after` out of the copy of `before`, which stays as it is, and the bytes of their delta.

        Raises DataError (no copy of `before`, not ours, or what comes out is not what `after` says) and ResourceError
        (no room); there is nothing then.
        """
        # Not above: who takes whole versions only has no use for a compiler.
        from streamrl.weights.delta.delta import apply_delta

        incoming = self.begin(after)
        try:
            with incoming.mapped() as target, mapped(version_file(self._folder, before.version), before) as base:
                apply_delta(delta, before, after, target, base=base, threads=1)
        except FileNotFoundError as error:
            incoming.abandon()
            what = f"weights: version {after.version}: there is no copy of {before.version} here to apply its delta to"
            raise DataError(f"{what}; take the version in full") from error
        except BaseException:
            incoming.abandon()
            raise
        incoming.keep()

    def keep_only(self, versions: Collection[Version]) -> None:
        """Remove all other copies. Whoever has one mapped keeps its view."""
        kept = {version_file(self._folder, version) for version in versions}
        for copy in set(self._folder.glob("*.weights")) - kept:
            copy.unlink(missing_ok=True)

    def close(self) -> None:
        """Remove all copies, and their folder."""
        remove_folder(self._folder)


class IncomingVersion:
    """A copy that grows. One thread at a time uses it; `finish` or `abandon` ends it."""

    def __init__(self, path: Path, manifest: WeightManifest) -> None:
        self._path = path
        self._part = path.with_suffix(".part")
        self._manifest = manifest
        self._end = 0
        self._fd = os.open(self._part, os.O_CREAT | os.O_TRUNC | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            allocate(self._fd, 0, manifest.total_bytes, self._part)
        except BaseException:
            self.abandon()
            raise

    def add(self, data: "bytes | memoryview") -> None:
        """The next bytes. Raises DataError when they are too many."""
        view = memoryview(data)
        if self._end + len(view) > self._manifest.total_bytes:
            raise DataError(f"{self._what}: more than the {self._manifest.total_bytes} bytes of its manifest arrive")
        write_all(self._fd, view, self._end, self._part)
        self._end += len(view)

    def finish(self) -> None:
        """Check all of it; then the copy is there. Raises DataError: too few bytes, or a digest that does not hold."""
        self._check()
        self.keep()

    def keep(self) -> None:
        """It is there from now on: whoever filled it by `mapped` has checked it."""
        self._part.rename(self._path)
        os.close(self._fd)

    @contextlib.contextmanager
    def mapped(self) -> Iterator[mmap.mmap]:
        """All of its bytes, to be written in place, inside the context."""
        content = mmap.mmap(self._fd, self._manifest.total_bytes)
        try:
            yield content
        finally:
            # BufferError: an array of an error's traceback still refers to it, and the last one unmaps it.
            with contextlib.suppress(BufferError):
                content.close()

    def abandon(self) -> None:
        """Leave nothing of it."""
        self._part.unlink(missing_ok=True)
        os.close(self._fd)

    def _check(self) -> None:
        if self._end != self._manifest.total_bytes:
            raise DataError(f"{self._what}: {self._end} bytes arrived, its manifest says {self._manifest.total_bytes}")
        with mmap.mmap(self._fd, self._end, access=mmap.ACCESS_READ) as content, memoryview(content) as view:
            for entry in self._manifest.tensors:
                with view[entry.offset : entry.offset + entry.nbytes] as tensor:
                    found = xxhash.xxh3_64_hexdigest(tensor)
                if found != entry.digest:
                    raise DataError(
                        f"{self._what}: tensor {entry.name!r} has digest {found}, its manifest says {entry.digest}: "
                        "the bytes were damaged on their way to this node"
                    )

    @property
    def _what(self) -> str:
        return f"weights: version {self._manifest.version}"
