"""Copies of segments of other nodes: what the owner's side reads, and what the reader's side keeps.

Guaranteed: no byte is kept before its checksum held; a copy has the segment's name, and its frames lie at the
segment's offsets, so `streamrl.buffers.segments.reader` reads it as if it had been written here; room is allocated
before a write. A copy is not synced: after a power cut `has` tells what is left of it. Nothing here knows how bytes
travel, or what is wanted.
"""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from streamrl.buffers.segments.format import ENTRY_BYTES, MAGIC, IndexEntry, frame_checksum, read_index
from streamrl.buffers.segments.places import NODES_DIR, resolve
from streamrl.errors import DataError
from streamrl.system.disk import allocate, make_folder, remove_file, write_all
from streamrl.types import FrameRef

_HEAD_BYTES = len(MAGIC) + ENTRY_BYTES


class SegmentHead(NamedTuple):
    """What makes a file of frames a segment: the first bytes of its index, and the schema message that they name."""

    entry: bytes
    schema: bytes


def read_head(run_folder: Path, path: str) -> SegmentHead:
    """The head of a segment that lies here.

    Raises:
        DataError: it is not there, or its writer never finished creating it. Names the file.
    """
    index = _read(resolve(run_folder, path).with_suffix(".idx"), 0, _HEAD_BYTES, path)
    entry = _schema_entry(index, path)
    return SegmentHead(index, _read(resolve(run_folder, path), entry.offset, entry.length, path))


def read_range(run_folder: Path, path: str, offset: int, length: int) -> bytes:
    """Bytes of a segment that lies here.

    Raises:
        DataError: it is not there, or it is shorter. Names file and offset.
    """
    return _read(resolve(run_folder, path), offset, length, path)


class SegmentCopies:
    """The copies below one node's folder.

    Example:
        copies.write(frames, head, data)
        batch = SegmentReader(run_folder).read(frames[0])
    """

    def __init__(self, run_folder: Path) -> None:
        self._run_folder = run_folder

    def there(self) -> Iterator[tuple[str, int]]:
        """(path, bytes on the disk) of each copy that an earlier process left."""
        for file in sorted((self._run_folder / NODES_DIR).glob("*/queue/*/*.arrow")):
            yield str(file.relative_to(self._run_folder)), file.stat().st_blocks * 512

    def write(self, frames: Sequence[FrameRef], head: SegmentHead, data: bytes) -> None:
        """Keep frames of one segment that lie one behind the other; `data` is theirs.

        Raises:
            DataError: head or data are not what was written. Nothing is kept then. ResourceError: the disk is full.
        """
        path, offset = frames[0].path, frames[0].offset
        entry = _schema_entry(head.entry, path)
        if frame_checksum(entry.salt, head.schema) != entry.checksum:
            raise DataError(f"{path}: offset {entry.offset}: the schema was damaged on its way here")
        view = memoryview(data)
        for frame in frames:
            start = frame.offset - offset
            if frame_checksum(frame.salt, view[start : start + frame.length]) != frame.checksum:
                raise DataError(f"{path}: offset {frame.offset}: {frame.length} bytes do not have their checksum")
        file = self._run_folder / path
        if not file.exists():
            make_folder(self._run_folder, str(Path(path).parent), sync=False)
        # A second index entry of zeros: the reader takes the index for that of a living segment.
        _put(file.with_suffix(".idx"), 0, head.entry + bytes(ENTRY_BYTES))
        _put(file, entry.offset, head.schema)
        _put(file, offset, data)

    def has(self, frame: FrameRef) -> bool:
        """Whether a frame is there, whole."""
        try:
            read_head(self._run_folder, frame.path)
            data = read_range(self._run_folder, frame.path, frame.offset, frame.length)
        except DataError:
            return False
        return frame_checksum(frame.salt, data) == frame.checksum

    def remove(self, path: str) -> None:
        """Remove a copy. Whoever has it mapped keeps what it sees."""
        file = self._run_folder / path
        for part in (file.with_suffix(".idx"), file):
            if part.exists():
                remove_file(part)


def _schema_entry(index: bytes, path: str) -> IndexEntry:
    entries = read_index(index[:_HEAD_BYTES] + bytes(ENTRY_BYTES), str(Path(path).with_suffix(".idx")))
    if not entries:
        raise DataError(f"{path}: offset 0: its index names no schema: the writer never finished creating it")
    return entries[0]


def _read(file: Path, offset: int, length: int, path: str) -> bytes:
    try:
        fd = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise DataError(f"{path}: {file.name} cannot be read: {error.strerror}") from error
    try:
        data = os.pread(fd, length, offset)
    finally:
        os.close(fd)
    if len(data) < length:
        raise DataError(f"{path}: offset {offset}: {file.name} has {len(data)} of {length} bytes there: it was cut")
    return data


def _put(file: Path, offset: int, data: bytes) -> None:
    fd = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        allocate(fd, offset, len(data), file)
        write_all(fd, memoryview(data), offset, file)
    finally:
        os.close(fd)
