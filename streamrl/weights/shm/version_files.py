"""The files of versions in shared memory: made, written once as a version, and their memory used again for a later one.

    new or spare  --begin-->  0.7.part  --keep-->  0.7.weights  --retire-->  0.7.spare
                                  |                                              |
                                  +------------- abandon: gone                   +---> begin, or gone

Fresh pages of shared memory cost several times the copy into them, and so does mapping them: a retired version's file
and its mapping become the next one's. Guarantees: a file has a version's name only when it is whole; what a reader has
mapped is never written to. A reader holds a shared lock for as long as its mapping lives (`folder.open_version`), the
writer has to have an exclusive one before it touches a byte of a spare file, and takes a new one when it cannot. At
most one file is spare. It does not know what is in a version. Without torch.
"""

import contextlib
import errno
import fcntl
import mmap
import os
import threading
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from streamrl.errors import FencedError, ResourceError
from streamrl.types import Version
from streamrl.weights.folder import version_file
from streamrl.weights.manifest import is_base

NO_SPACE = (errno.ENOSPC, errno.EFBIG, errno.EDQUOT)
WHOLE, PART, SPARE = ".weights", ".part", ".spare"


@dataclass(slots=True)
class SharedFile:
    """A file of shared memory, mapped to be written. mapping: all of it."""

    path: Path
    fd: int
    mapping: mmap.mmap

    def rename(self, path: Path) -> None:
        self.path.rename(path)
        self.path = path

    def lock(self) -> bool:
        """Whether nobody has it mapped, and nobody can map it until `unlock`."""
        try:
            fcntl.flock(self.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def unlock(self) -> None:
        fcntl.flock(self.fd, fcntl.LOCK_UN)

    def remove(self) -> None:
        """Give its memory back, once its last reader is done."""
        self.path.unlink(missing_ok=True)
        self.close()

    def close(self) -> None:
        # BufferError: an array of an error's traceback still refers to it, and the last one unmaps it.
        with contextlib.suppress(BufferError):
            self.mapping.close()
        os.close(self.fd)


class VersionFiles:
    """The files of one publisher. One thread begins and keeps; `retire` may be called from another.

    Example:
        growing = files.begin(version, num_bytes)
        growing.content[:] = ...
        growing.keep()                       # or growing.abandon()
        files.retire(version)
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._kept: dict[Version, SharedFile] = {}
        self._spare: SharedFile | None = None

    def begin(self, version: Version, num_bytes: int) -> "GrowingVersion":
        """A file to be filled, what is in it is anything.

        Raises FencedError (there is one of that name) and ResourceError (no room); there is nothing then.
        """
        path = version_file(self._folder, version)
        if path.exists():
            raise _exists(path, version)
        part = path.with_suffix(PART)
        return GrowingVersion(self, version, self._reused(part, num_bytes) or _made(part, num_bytes))

    def retire(self, version: Version) -> None:
        """Nobody opens this version any more; who has it open keeps it. One that is not there is no error. A base is
        no spare: nothing of its size is written before the next incarnation's."""
        path = version_file(self._folder, version)
        with self._lock:
            file = self._kept.pop(version, None)
            if file is None:  # an earlier process wrote it, or none
                path.unlink(missing_ok=True)
            elif self._spare is not None or is_base(version) or not path.exists():
                file.remove()
            else:
                file.rename(path.with_suffix(SPARE))
                self._spare = file

    def keep_only(self, versions: Collection[Version]) -> None:
        """Remove all others, and what a process before this one left half done."""
        with self._lock:
            for version in self._kept.keys() - set(versions):
                self._kept.pop(version).close()
            self._drop_spare()
        kept = {version_file(self._folder, version) for version in versions}
        for path in set(self._folder.iterdir()) - kept:
            if path.suffix in (WHOLE, PART, SPARE):
                path.unlink(missing_ok=True)

    @property
    def version_bytes(self) -> int:
        """Of all versions in the folder, whoever wrote them."""
        total = 0
        for path in self._folder.glob(f"*{WHOLE}"):
            with contextlib.suppress(FileNotFoundError):  # another process may have removed it
                total += path.stat().st_size
        return total

    @property
    def spare_bytes(self) -> int:
        """Of memory that waits for the next version."""
        spare = self._spare
        return len(spare.mapping) if spare is not None else 0

    def close(self) -> None:
        """Let go of all files, which stay."""
        with self._lock:
            for file in self._kept.values():
                file.close()
            self._kept.clear()
            self._drop_spare()

    def kept(self, version: Version, file: SharedFile) -> None:
        """A growing version has been kept."""
        with self._lock:
            self._kept[version] = file

    def _reused(self, part: Path, num_bytes: int) -> SharedFile | None:
        with self._lock:
            spare = self._spare
            if spare is None:
                return None
            if len(spare.mapping) != num_bytes or not spare.path.exists() or not spare.lock():
                self._drop_spare()
                return None
            self._spare = None
        spare.rename(part)
        return spare

    def _drop_spare(self) -> None:
        if self._spare is not None:
            self._spare.remove()
            self._spare = None


class GrowingVersion:
    """A version that is being written. `content`: all of its bytes, writable. `keep` or `abandon` ends it."""

    def __init__(self, files: VersionFiles, version: Version, file: SharedFile) -> None:
        self._files = files
        self._version = version
        self._file = file
        self.content: np.ndarray[Any, np.dtype[np.uint8]] = np.frombuffer(file.mapping, np.uint8)

    def keep(self) -> Path:
        """It is there from now on, and is not written again. Raises FencedError when there is one of that name."""
        path = version_file(self._file.path.parent, self._version)
        del self.content
        # Before it has a name that anybody opens, and after its last byte.
        self._file.unlock()
        try:
            os.link(self._file.path, path)  # where a rename would put itself in the place of what is there
        except FileExistsError:
            self._file.remove()
            raise _exists(path, self._version) from None
        self._file.path.unlink(missing_ok=True)
        self._file.path = path
        self._files.kept(self._version, self._file)
        return path

    def abandon(self) -> None:
        """Leave nothing of it."""
        del self.content
        self._file.remove()


def _exists(path: Path, version: Version) -> FencedError:
    return FencedError(
        f"weights: version {version} exists as {path} and is never overwritten: "
        "a resumed learner publishes under a higher incarnation"
    )


def _made(part: Path, num_bytes: int) -> SharedFile:
    """A new file with all bytes reserved, so that a full memory shows here and is no signal at the copy or in a
    reader."""
    fd = os.open(part, os.O_CREAT | os.O_TRUNC | os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        _reserve(fd, part, num_bytes)
        return SharedFile(part, fd, mmap.mmap(fd, num_bytes))
    except BaseException:
        os.close(fd)
        part.unlink(missing_ok=True)
        raise


def _reserve(fd: int, path: Path, num_bytes: int) -> None:
    free = os.fstatvfs(fd)
    if num_bytes > free.f_bavail * free.f_frsize:
        raise _full(path, num_bytes)
    try:
        os.posix_fallocate(fd, 0, num_bytes)
    except OSError as error:
        if error.errno in NO_SPACE:
            raise _full(path, num_bytes) from error
        raise


def _full(path: Path, num_bytes: int) -> ResourceError:
    free = os.statvfs(path.parent)
    return ResourceError(
        f"weights: {path} needs {num_bytes:,} bytes of shared memory, {free.f_bavail * free.f_frsize:,} are "
        f"free: remove what others left in {path.parent.parent}, or give it more room"
    )
