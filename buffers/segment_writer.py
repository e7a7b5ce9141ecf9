"""Append-only Arrow segments: the one place where a producer's rows go to disk.

Guaranteed: the future of `append` resolves after the rows are on stable storage (`disk`) or in the kernel's
page cache (`memory`); a segment is preallocated, so a full disk shows before a write and never in the middle
of one, and is waited out; a sealed segment opens in any Arrow tool. A sync that fails is fatal and is not tried
again. Two writers of one name and epoch never share a file. Nothing here knows of groups, scores or the ledger.
"""

import os
import re
import secrets
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

import pyarrow as pa

from buffers.checks import check_batch
from buffers.group_commit import GroupCommitter
from buffers.segment_format import (
    END_OF_STREAM,
    ENTRY_BYTES,
    MAGIC,
    IndexEntry,
    frame_checksum,
    pack_entry,
)
from streamrl.disk import (
    create_preallocated,
    make_folder,
    remove_file,
    sync_data,
    sync_folder,
    truncate,
    write_all,
)
from streamrl.disk_room import DiskRoom
from streamrl.errors import ComponentError, ConfigError, ResourceError
from streamrl.types import FrameRef

Durability = Literal["disk", "memory"]

_BYTES_PER_FRAME = 1024
"""Fewest bytes of a frame, generously: the metadata of its columns alone takes more. Sizes the index file."""
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
_MASK_64 = 2**63 - 1


class _Frame(NamedTuple):
    data: memoryview
    num_rows: int


@dataclass(slots=True)
class _OpenSegment:
    """A segment that is being written. `end` and `place` are the next free byte and index entry."""

    path: Path
    data_fd: int
    index_fd: int
    salt: int
    max_entries: int
    end: int = 0
    place: int = 0
    commit: int = 0


class SegmentWriter:
    """Writes the batches of one producer under `run_folder / relative_dir`.

    writer, writer_epoch: the producer's name and fencing number; they make the file names
    `<writer>-<epoch>-<n>.arrow`. segment_bytes: size of a segment, and so the largest frame.

    Example:
        writer = SegmentWriter(run, "queue/completions", "replica-0", 0, COMPLETIONS, 2**24, "disk", 0.005)
        frame = writer.append(batch).result()
        writer.close()

    Raises:
        FencedError: a file of that name exists: a writer of this name and epoch has been here.
        ComponentError: the disk fails. A full one is no error: the first `append` waits for it.
    """

    def __init__(
        self,
        run_folder: Path,
        relative_dir: str,
        writer: str,
        writer_epoch: int,
        schema: pa.Schema,
        segment_bytes: int,
        durability: Durability,
        commit_interval_s: float,
    ) -> None:
        if not _NAME.fullmatch(writer):
            raise ConfigError(f"writer name {writer!r} cannot be part of a file name: use letters, digits, '-' and '_'")
        self._run_folder = run_folder
        self._stem = f"{relative_dir}/{writer}-{writer_epoch}"
        self._schema = schema
        self._schema_message = memoryview(schema.serialize())
        self._segment_bytes = segment_bytes
        self._sync = durability == "disk"
        self._next_segment = 0
        self._room = DiskRoom()
        self._segment: _OpenSegment | None = None
        make_folder(run_folder, relative_dir, self._sync)
        with suppress(ResourceError):
            self._segment = self._create_segment()
        self._committer = GroupCommitter[_Frame, FrameRef](
            f"segments-{writer}", self._commit, interval_s=commit_interval_s
        )

    @property
    def pause(self) -> str:
        """What a full disk keeps it waiting for, in words; "" while it does not wait."""
        return self._room.pause

    def append(self, batch: pa.RecordBatch) -> "Future[FrameRef]":
        """Queue one batch; the future resolves when it is durable. The batch is checked and encoded at once.

        Where there is no room for a further segment the future waits until there is; only `close` ends that,
        with ResourceError, and no reference to the batch exists then.

        Raises:
            DataError, NonFiniteError: the batch may not be written (`check_batch`).
            ConfigError: the batch alone is larger than a segment.
            ComponentError: closed, or failed before.
        """
        check_batch(batch, self._schema)
        data = memoryview(batch.serialize())
        room = self._segment_bytes - len(self._schema_message) - len(END_OF_STREAM)
        if len(data) > room:
            raise ConfigError(
                f"a batch of {batch.num_rows} rows takes {len(data)} bytes and a segment holds {room}: "
                "raise queue.segment_bytes, or append fewer rows at once"
            )
        return self._committer.submit(_Frame(data, batch.num_rows))

    def close(self) -> None:
        """Commit what is pending, then seal the last segment. A second call does nothing.

        Raises:
            ComponentError: the seal could not be synced.
        """
        self._room.close()
        self._committer.close()
        segment, self._segment = self._segment, None
        if segment is None:
            return
        if self._committer.failure is None:
            self._seal(segment)
        else:
            _close_files(segment)

    def _commit(self, frames: list[_Frame]) -> list[FrameRef]:
        """Write a group in order, one part for each segment that it reaches into."""
        refs: list[FrameRef] = []
        while len(refs) < len(frames):
            segment = self._segment or self._room.wait_for(self._create_segment)
            self._segment = segment
            part = self._that_fit(segment, frames[len(refs) :])
            if part:
                refs += self._write(segment, part)
            else:
                self._segment = None
                self._seal(segment)
        return refs

    def _that_fit(self, segment: _OpenSegment, frames: Sequence[_Frame]) -> Sequence[_Frame]:
        """The longest head of `frames` that the segment takes, an end-of-stream marker kept free."""
        end, limit = segment.end, self._segment_bytes - len(END_OF_STREAM)
        most = segment.max_entries - segment.place - 1
        for count, frame in enumerate(frames[:most]):
            end += len(frame.data)
            if end > limit:
                return frames[:count]
        return frames[:most]

    def _write(self, segment: _OpenSegment, frames: Sequence[_Frame]) -> list[FrameRef]:
        entries: list[IndexEntry] = []
        for frame in frames:
            entries.append(self._put(segment, frame.data, frame.num_rows, left=len(frames) - len(entries) - 1))
        self._sync_file(segment.data_fd, segment.path)
        self._put_entries(segment, entries)
        name = str(segment.path.relative_to(self._run_folder))
        return [FrameRef(name, e.offset, e.length, e.rows, e.checksum, e.salt) for e in entries]

    def _put(self, segment: _OpenSegment, data: memoryview, num_rows: int, *, left: int) -> IndexEntry:
        """Write bytes at the segment's end and return the entry that will vouch for them."""
        offset = segment.end
        write_all(segment.data_fd, data, offset, segment.path)
        segment.end += len(data)
        checksum = frame_checksum(segment.salt, data)
        return IndexEntry(offset, len(data), checksum, segment.salt, num_rows, segment.commit, left)

    def _put_entries(self, segment: _OpenSegment, entries: Sequence[IndexEntry]) -> None:
        """Write the entries of one commit, after the bytes that they name are synced."""
        packed = b"".join(pack_entry(entry, segment.place + i) for i, entry in enumerate(entries))
        offset = len(MAGIC) + segment.place * ENTRY_BYTES
        write_all(segment.index_fd, memoryview(packed), offset, segment.path.with_suffix(".idx"))
        self._sync_file(segment.index_fd, segment.path.with_suffix(".idx"))
        segment.place += len(entries)
        segment.commit += 1

    def _create_segment(self) -> _OpenSegment:
        path = self._run_folder / f"{self._stem}-{self._next_segment}.arrow"
        max_entries = self._segment_bytes // _BYTES_PER_FRAME + 16
        data_fd = create_preallocated(path, self._segment_bytes)
        try:
            index_fd = create_preallocated(path.with_suffix(".idx"), len(MAGIC) + max_entries * ENTRY_BYTES)
        except (ResourceError, ComponentError):
            os.close(data_fd)
            remove_file(path)
            raise
        segment = _OpenSegment(path, data_fd, index_fd, secrets.randbits(64) & _MASK_64, max_entries)
        write_all(index_fd, memoryview(MAGIC), 0, path.with_suffix(".idx"))
        entry = self._put(segment, self._schema_message, 0, left=0)
        self._sync_file(data_fd, path)
        self._put_entries(segment, [entry])
        if self._sync:
            sync_folder(path.parent)
        self._next_segment += 1
        return segment

    def _seal(self, segment: _OpenSegment) -> None:
        """End the stream, cut the preallocated rest, and close."""
        try:
            entry = self._put(segment, memoryview(END_OF_STREAM), 0, left=0)
            truncate(segment.data_fd, segment.end, segment.path)
            self._sync_file(segment.data_fd, segment.path)
            self._put_entries(segment, [entry])
            truncate(segment.index_fd, len(MAGIC) + segment.place * ENTRY_BYTES, segment.path.with_suffix(".idx"))
        finally:
            _close_files(segment)

    def _sync_file(self, fd: int, path: Path) -> None:
        if self._sync:
            sync_data(fd, path)


def _close_files(segment: _OpenSegment) -> None:
    os.close(segment.data_fd)
    os.close(segment.index_fd)
