"""Reading segments by memory map: rows without a copy, and no byte believed before its checksum.

Guaranteed: `read` returns a batch whose bytes have the checksum that the reference names, that Arrow has
validated in full, and whose rows pass the gate of the writer (`streamrl.buffers.rows.checks`), checked once for each
frame; a path outside the run folder is refused. A segment whose file was removed is let go with the next new frame.
`scan` yields the frames that a segment's own index vouches for, `verify` reads each of them. Batches stay valid after
`forget`. One thread uses a reader. Nothing here knows which frames the ledger accepted.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from streamrl.buffers.rows.checks import RowGate
from streamrl.buffers.rows.schema import check_readable
from streamrl.buffers.segments.format import END_OF_STREAM, IndexEntry, frame_checksum, is_end, read_index
from streamrl.buffers.segments.places import HOME, node_of, resolve
from streamrl.errors import DataError, NonFiniteError
from streamrl.types import FrameRef

_ARROW_ERRORS = (pa.ArrowException, OSError, EOFError)
"""What Arrow says of bytes that are not what they should be."""


class _Mapping(NamedTuple):
    path: Path
    data: pa.Buffer
    schema: pa.Schema
    gate: RowGate
    verified: dict[int, FrameRef]
    """Frames that passed, by offset."""


class SegmentReader:
    """Maps each segment of a run once and hands out its frames.

    Example:
        reader = SegmentReader(run)
        batch = reader.read(frame)
        for frame in reader.scan("queue/completions/replica-0-0-0.arrow"):
            ...
    """

    def __init__(self, run_folder: Path) -> None:
        self._run_folder = run_folder.resolve()
        self._mappings: dict[str, _Mapping] = {}

    def read(self, frame: FrameRef) -> pa.RecordBatch:
        """The rows of one frame, zero-copy.

        Raises:
            DataError: the path leaves the run folder or is not there, the segment is shorter than the frame
                or of another schema, the bytes are not those that were written, or they hold a row that may
                not be. Names file and offset.
        """
        mapping = self._mapping(frame.path, frame.offset + frame.length)
        data = mapping.data.slice(frame.offset, frame.length)
        if mapping.verified.get(frame.offset) == frame:
            return pa.ipc.read_record_batch(data, mapping.schema)
        self._forget_removed()
        self._verify_size(mapping, frame.offset + frame.length)
        if frame_checksum(frame.salt, memoryview(data)) != frame.checksum:
            raise DataError(f"{frame.path}: offset {frame.offset}: {frame.length} bytes do not have their checksum")
        batch = _decode(data, mapping, frame)
        mapping.verified[frame.offset] = frame
        return batch

    def has(self, path: str) -> bool:
        """Whether the segment is there. Raises DataError for a path that leaves the run folder."""
        return self._resolve(path).exists()

    def scan(self, path: str) -> Iterator[FrameRef]:
        """The frames of a segment, in the order in which they were written, up to a torn tail.

        Raises:
            DataError: damage before the last synced entry. Names file and offset.
        """
        for entry in self._entries(self._resolve(path), path)[1:]:
            if not is_end(entry):
                yield FrameRef(path, entry.offset, entry.length, entry.rows, entry.checksum, entry.salt)

    def verify(self, path: str) -> int:
        """Read every byte of a segment that its index vouches for; returns the number of frames.

        Raises:
            DataError: damage. Names file and offset.
        """
        frames = list(self.scan(path))
        for frame in frames:
            self.read(frame)
        entries = self._entries(self._resolve(path), path)
        if entries and is_end(entries[-1]):
            self._verify_end(path, entries[-1])
        return len(frames)

    def sealed(self, path: str) -> bool:
        """Whether the segment's writer ended it."""
        entries = self._entries(self._resolve(path), path)
        return bool(entries) and is_end(entries[-1])

    def forget(self, path: str) -> None:
        """Drop the mapping of a segment; batches already read keep theirs alive."""
        self._mappings.pop(path, None)

    def forget_copies(self) -> None:
        """Drop the mappings of segments of other nodes: their copies here may be replaced."""
        for path in [path for path in self._mappings if node_of(path) != HOME]:
            del self._mappings[path]

    def _resolve(self, path: str) -> Path:
        return resolve(self._run_folder, path)

    def _mapping(self, path: str, needed: int) -> _Mapping:
        mapping = self._mappings.get(path)
        if mapping is None or mapping.data.size < needed:
            mapping = self._map(path)
            self._mappings[path] = mapping
        if mapping.data.size < needed:
            raise DataError(f"{path}: {mapping.data.size} bytes, but a frame ends at {needed}: the file was cut")
        return mapping

    def _forget_removed(self) -> None:
        """A file that was let go takes its place on the disk as long as somebody has it mapped."""
        for path in [path for path, mapping in self._mappings.items() if not mapping.path.exists()]:
            del self._mappings[path]

    def _map(self, path: str) -> _Mapping:
        resolved = self._resolve(path)
        entries = self._entries(resolved, path)
        if not entries:
            raise DataError(f"{path}: offset 0: its index names no schema: the writer never finished creating it")
        try:
            with pa.memory_map(str(resolved)) as source:
                data = source.read_buffer()
        except OSError as error:
            raise DataError(f"{path}: cannot be mapped: {error}") from error
        schema = _read_schema(data, entries[0], path)
        return _Mapping(resolved, data, schema, RowGate(schema), {})

    def _verify_size(self, mapping: _Mapping, needed: int) -> None:
        """A map outlives a cut of its file, and reading past the cut would end the process: look first."""
        try:
            size = mapping.path.stat().st_size
        except OSError as error:
            raise DataError(f"{mapping.path}: cannot be read any more: {error.strerror}") from error
        if size < needed:
            raise DataError(f"{mapping.path}: {size} bytes, but a frame ends at {needed}: the file was cut")

    def _verify_end(self, path: str, entry: IndexEntry) -> None:
        """A sealed segment ends with its marker, where its index says."""
        end = entry.offset + entry.length
        self.forget(path)  # it may have been mapped while it was written, with room that the seal has cut
        mapping = self._mapping(path, end)
        self._verify_size(mapping, end)
        marker = mapping.data.slice(entry.offset, entry.length)
        if marker.to_pybytes() != END_OF_STREAM or mapping.data.size != end:
            raise DataError(f"{path}: offset {entry.offset}: the sealed segment does not end here with its marker")

    def _entries(self, resolved: Path, path: str) -> list[IndexEntry]:
        index = resolved.with_suffix(".idx")
        try:
            data = index.read_bytes()
        except OSError as error:
            raise DataError(f"{path}: its index {index.name} cannot be read: {error.strerror}") from error
        return read_index(data, str(Path(path).with_suffix(".idx")))


def _read_schema(data: pa.Buffer, entry: IndexEntry, path: str) -> pa.Schema:
    if data.size < entry.offset + entry.length:
        raise DataError(f"{path}: {data.size} bytes, but its schema ends at {entry.offset + entry.length}: it was cut")
    message = data.slice(entry.offset, entry.length)
    if frame_checksum(entry.salt, memoryview(message)) != entry.checksum:
        raise DataError(f"{path}: offset {entry.offset}: the schema does not have its checksum")
    try:
        schema = pa.ipc.read_schema(message)
    except _ARROW_ERRORS as error:
        raise DataError(f"{path}: offset {entry.offset}: not a valid Arrow schema: {error}") from error
    check_readable(schema, path)
    return schema


def _decode(data: pa.Buffer, mapping: _Mapping, frame: FrameRef) -> pa.RecordBatch:
    try:
        batch = pa.ipc.read_record_batch(data, mapping.schema)
        batch.validate(full=True)
    except _ARROW_ERRORS as error:
        raise DataError(f"{frame.path}: offset {frame.offset}: not a valid record batch: {error}") from error
    if batch.num_rows != frame.num_rows:
        raise DataError(f"{frame.path}: offset {frame.offset}: {batch.num_rows} rows, expected {frame.num_rows}")
    try:
        mapping.gate.check(batch)
    except (DataError, NonFiniteError) as error:
        raise DataError(f"{frame.path}: offset {frame.offset}: {error}") from error
    return batch
