"""Memory maps of version files that one reader keeps from version to version.

    lend  -->  lent  -- its last view is gone -->  idle  -- lend of the same file, another version by now -->  lent
                                                    +----- that file is gone -->  unmapped

The publisher writes a later version over the memory of an earlier one (`streamrl.weights.shm.version_files`). To map
500 MB and touch all of its pages takes twice as long as to check their digests, so who follows the versions maps each
file once. Guarantees: what is lent is not written to until the array and every view of it is gone: the shared lock of a
version (`folder.lock_version`) is held by a descriptor beside the map, whatever becomes of the process. An idle map
holds no lock and nobody can read it. What is mapped is the file itself, for reading: who writes to it is ended by a
signal. It does not know what is in a version. Without torch.
"""

import mmap
import os
import threading
import weakref
from collections import deque
from pathlib import Path
from typing import NamedTuple

import numpy as np

from streamrl.weights.delta.files import Content
from streamrl.weights.folder import lock_version


class KeptMap(NamedTuple):
    """All of a file, for reading."""

    inode: int
    content: mmap.mmap


class LentMapping(NamedTuple):
    """All bytes of a file, for reading, and which file it is."""

    content: Content
    inode: int


class _Memory:
    """The bytes of a map as an array that says it could be written: torch takes no other, and warns of a copy that a
    shared version must not have."""

    def __init__(self, content: mmap.mmap) -> None:
        self._content = content
        address = np.frombuffer(content, np.uint8).__array_interface__["data"][0]
        self.__array_interface__ = {"version": 3, "shape": (len(content),), "typestr": "|u1", "data": (address, False)}


class VersionMappings:
    """The maps of one reader. Any thread may lend, and drop what was lent.

    Example:
        content = mappings.lend(Path(manifest.location)).content
        ...                                                  # content and its views: the version, as it was published
        del content                                          # its memory may be written again from here on
    """

    def __init__(self) -> None:
        self._one = threading.Lock()
        # What was lent may come back in the middle of anything, by the garbage collector too: an append takes no lock.
        self._idle: deque[KeptMap] = deque()

    @property
    def idle(self) -> int:
        """Maps that nobody has."""
        return len(self._idle)

    def lend(self, path: Path) -> LentMapping:
        """All bytes of a version.

        Raises FileNotFoundError when the version was taken back, at any moment, OSError when it cannot be opened, and
        ValueError when it is empty.
        """
        lock = lock_version(path)
        try:
            file = os.fstat(lock)
            kept = self._take(path.parent, file.st_ino)
            # Of another length: somebody else cut it, and what it lacks would be a signal.
            if kept is None or len(kept.content) != file.st_size:
                kept = KeptMap(file.st_ino, _map(path, file.st_ino))
            content = np.asarray(_Memory(kept.content))
        except BaseException:
            os.close(lock)
            raise
        weakref.finalize(content, self._back, kept, lock).atexit = False
        return LentMapping(content, kept.inode)

    def _back(self, kept: KeptMap, lock: int) -> None:
        self._idle.append(kept)
        os.close(lock)

    def _take(self, folder: Path, inode: int) -> KeptMap | None:
        """The idle map of a file. Those of files that are gone go, and with them their memory."""
        found = None
        with self._one:
            there = {entry.inode() for entry in os.scandir(folder)}
            for _ in range(len(self._idle)):
                kept = self._idle.popleft()
                if kept.inode == inode:
                    found = kept
                elif kept.inode in there:
                    self._idle.append(kept)
        return found


def _map(path: Path, inode: int) -> mmap.mmap:
    """By a descriptor of its own: a map keeps the lock of the descriptor that it was made by."""
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if os.fstat(fd).st_ino != inode:
            raise FileNotFoundError(f"{path} was taken back")
        return mmap.mmap(fd, 0, access=mmap.ACCESS_READ)
    finally:
        os.close(fd)
