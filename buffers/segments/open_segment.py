"""One segment while it is written: its two files, what fits into them, and how they end.

Guaranteed: both files are preallocated when `create` returns, and durable with their names if `sync`; an entry of the
index is written after the bytes that it vouches for are synced. The index is a new file of zeros. What lies in the
other one behind its last frame may be anything, since it may have been a segment before
(`streamrl.buffers.segments.spare_files`). One thread at a time uses a segment. Nothing here chooses which segment is
written.
"""

import os
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from streamrl.buffers.segments.format import END_OF_STREAM, ENTRY_BYTES, MAGIC, IndexEntry, frame_checksum, pack_entry
from streamrl.buffers.segments.spare_files import take_spare
from streamrl.errors import ComponentError, ResourceError
from streamrl.system.disk import (
    allocate,
    create_empty,
    create_preallocated,
    remove_file,
    sync_data,
    sync_folder,
    truncate,
    write_all,
)

_BYTES_PER_FRAME = 1024
"""Fewest bytes of a frame, generously: the metadata of its columns alone takes more. Sizes the index file."""
_MASK_64 = 2**63 - 1


class Frame(NamedTuple):
    """A serialised batch."""

    data: memoryview
    num_rows: int


class OpenSegment:
    """A segment that takes frames until it is sealed. Make it with `create`."""

    def __init__(self, path: Path, data_fd: int, index_fd: int, segment_bytes: int, sync: bool) -> None:
        self.path = path
        self._data_fd = data_fd
        self._index_fd = index_fd
        self._limit = segment_bytes - len(END_OF_STREAM)
        self._sync = sync
        self._max_entries = _max_entries(segment_bytes)
        self._salt = secrets.randbits(64) & _MASK_64
        self._end = 0
        self._num_entries = 0
        self._num_commits = 0

    @classmethod
    def create(cls, path: Path, schema_message: memoryview, segment_bytes: int, sync: bool) -> "OpenSegment":
        """Allocate both files and write the schema.

        Raises:
            FencedError: a file of that name exists. ResourceError: no room; nothing is left behind. ComponentError.
        """
        data_fd = _create_data_file(path, segment_bytes)
        index = path.with_suffix(".idx")
        try:
            index_fd = create_preallocated(index, len(MAGIC) + _max_entries(segment_bytes) * ENTRY_BYTES)
        except (ResourceError, ComponentError):
            os.close(data_fd)
            remove_file(path)
            raise
        segment = cls(path, data_fd, index_fd, segment_bytes, sync)
        write_all(index_fd, memoryview(MAGIC), 0, index)
        segment.write([Frame(schema_message, 0)])
        if sync:
            sync_folder(path.parent)
        return segment

    @property
    def over_half(self) -> bool:
        """Whether more than half of it is written."""
        return 2 * self._end > self._limit

    def that_fit(self, frames: Sequence[Frame]) -> Sequence[Frame]:
        """The longest head of `frames` that it takes, an end-of-stream marker kept free."""
        end = self._end
        most = self._max_entries - self._num_entries - 1
        for count, frame in enumerate(frames[:most]):
            end += len(frame.data)
            if end > self._limit:
                return frames[:count]
        return frames[:most]

    def write(self, frames: Sequence[Frame]) -> list[IndexEntry]:
        """Write frames as one commit; durable when it returns if the segment syncs."""
        entries: list[IndexEntry] = []
        for frame in frames:
            entries.append(self._put(frame, left=len(frames) - len(entries) - 1))
        self._sync_file(self._data_fd, self.path)
        self._put_entries(entries)
        return entries

    def seal(self) -> None:
        """End the stream, cut the preallocated rest, and close."""
        try:
            entry = self._put(Frame(memoryview(END_OF_STREAM), 0), left=0)
            truncate(self._data_fd, self._end, self.path)
            self._sync_file(self._data_fd, self.path)
            self._put_entries([entry])
            size = len(MAGIC) + self._num_entries * ENTRY_BYTES
            truncate(self._index_fd, size, self.path.with_suffix(".idx"))
        finally:
            self.close()

    def close(self) -> None:
        """Leave it as a killed process would."""
        os.close(self._data_fd)
        os.close(self._index_fd)

    def discard(self) -> None:
        """Remove it. Only for one that nobody was told of."""
        self.close()
        remove_file(self.path)
        remove_file(self.path.with_suffix(".idx"))

    def _put(self, frame: Frame, *, left: int) -> IndexEntry:
        """Write bytes at the end and return the entry that will vouch for them. left: frames of the commit to come."""
        offset, length = self._end, len(frame.data)
        write_all(self._data_fd, frame.data, offset, self.path)
        self._end += length
        checksum = frame_checksum(self._salt, frame.data)
        return IndexEntry(offset, length, checksum, self._salt, frame.num_rows, self._num_commits, left)

    def _put_entries(self, entries: Sequence[IndexEntry]) -> None:
        """Write the entries of one commit, after the bytes that they name are synced."""
        packed = b"".join(pack_entry(entry, self._num_entries + i) for i, entry in enumerate(entries))
        index = self.path.with_suffix(".idx")
        write_all(self._index_fd, memoryview(packed), len(MAGIC) + self._num_entries * ENTRY_BYTES, index)
        self._sync_file(self._index_fd, index)
        self._num_entries += len(entries)
        self._num_commits += 1

    def _sync_file(self, fd: int, path: Path) -> None:
        if self._sync:
            sync_data(fd, path)


def _create_data_file(path: Path, num_bytes: int) -> int:
    """A file of this name, which must not exist: a spare one where there is one. Errors: `create_preallocated`."""
    fd = create_empty(path)
    try:
        spare = take_spare(path)
        if spare is not None:
            os.close(fd)
            fd = spare
        allocate(fd, 0, num_bytes, path)
    except (ResourceError, ComponentError):
        os.close(fd)
        remove_file(path)
        raise
    return fd


def _max_entries(segment_bytes: int) -> int:
    return segment_bytes // _BYTES_PER_FRAME + 16
