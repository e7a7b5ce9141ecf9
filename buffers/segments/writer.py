"""Append-only Arrow segments: the one place where a producer's rows go to disk.

Guaranteed: the future of `append` resolves after the rows are on stable storage (`disk`) or in the kernel's
page cache (`memory`); a segment is preallocated, so a full disk shows before a write and never in the middle
of one, and is waited out; a sealed segment opens in any Arrow tool. A sync that fails is fatal and is not tried
again. Two writers of one name and epoch never share a file. A full segment is sealed, and the next one made, beside
the appends, which wait for neither unless they fill segments faster than the disk makes them. Nothing here knows of
groups, scores or the ledger.
"""

import re
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Literal

import pyarrow as pa

from streamrl.buffers.ledger.group_commit import GroupCommitter
from streamrl.buffers.rows.checks import RowGate
from streamrl.buffers.segments.format import END_OF_STREAM
from streamrl.buffers.segments.open_segment import Frame, OpenSegment
from streamrl.errors import ConfigError, ResourceError
from streamrl.system.disk import make_folder
from streamrl.system.disk_space import DiskSpace
from streamrl.types import FrameRef

Durability = Literal["disk", "memory"]

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")


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
        self._gate = RowGate(schema)
        self._schema_message = memoryview(schema.serialize())
        self._segment_bytes = segment_bytes
        self._sync = durability == "disk"
        self._next_segment = 0
        self._room = DiskSpace()
        self._segment: OpenSegment | None = None
        self._ahead: Future[OpenSegment] | None = None
        self._sealing: Future[None] | None = None
        make_folder(run_folder, relative_dir, self._sync)
        with suppress(ResourceError):
            self._segment = self._create_segment()
        self._beside = ThreadPoolExecutor(max_workers=1, thread_name_prefix=f"segments-{writer}-beside")
        self._committer = GroupCommitter[Frame, FrameRef](
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
            DataError, NonFiniteError: the batch may not be written (`RowGate`).
            ConfigError: the batch alone is larger than a segment.
            ComponentError: closed, or failed before.
        """
        self._gate.check(batch)
        data = memoryview(batch.serialize())
        room = self._segment_bytes - len(self._schema_message) - len(END_OF_STREAM)
        if len(data) > room:
            raise ConfigError(
                f"a batch of {batch.num_rows} rows takes {len(data)} bytes and a segment holds {room}: "
                "raise queue.segment_bytes, or append fewer rows at once"
            )
        return self._committer.submit(Frame(data, batch.num_rows))

    def close(self) -> None:
        """Commit what is pending, then seal the last segment. A second call does nothing.

        Raises:
            ComponentError: the disk failed the seal, or what was done beside the appends.
        """
        self._room.close()
        self._committer.close()
        self._beside.shutdown(wait=True)
        segment, self._segment = self._segment, None
        try:
            self._end_prepared()
        finally:
            if segment is not None and self._committer.failure is None:
                segment.seal()
            elif segment is not None:
                segment.close()

    def _end_prepared(self) -> None:
        """Remove what was made ahead and not used; pass on what failed, but for want of room."""
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            with suppress(ResourceError):
                ahead.result().discard()
        self._check_seal(wait=True)

    def _check_seal(self, *, wait: bool) -> None:
        """Pass on the failure of the seal before, once it is known."""
        if self._sealing is not None and (wait or self._sealing.done()):
            sealing, self._sealing = self._sealing, None
            sealing.result()

    def _commit(self, frames: list[Frame]) -> list[FrameRef]:
        """Write a group in order, one part for each segment that it reaches into."""
        self._check_seal(wait=False)
        refs: list[FrameRef] = []
        while len(refs) < len(frames):
            segment = self._segment or self._next()
            self._segment = segment
            part = segment.that_fit(frames[len(refs) :])
            if part:
                refs += self._write(segment, part)
            else:
                self._segment = None
                self._check_seal(wait=True)
                self._sealing = self._beside.submit(segment.seal)
        if self._ahead is None and self._segment is not None and self._segment.over_half:
            self._ahead = self._beside.submit(self._create_segment)
        return refs

    def _write(self, segment: OpenSegment, frames: Sequence[Frame]) -> list[FrameRef]:
        entries = segment.write(frames)
        name = str(segment.path.relative_to(self._run_folder))
        return [FrameRef(name, e.offset, e.length, e.rows, e.checksum, e.salt) for e in entries]

    def _next(self) -> OpenSegment:
        """The segment that was made ahead; without one, or without room for it then, one that is made now."""
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            with suppress(ResourceError):
                return ahead.result()
        return self._room.wait_for(self._create_segment)

    def _create_segment(self) -> OpenSegment:
        path = self._run_folder / f"{self._stem}-{self._next_segment}.arrow"
        segment = OpenSegment.create(path, self._schema_message, self._segment_bytes, self._sync)
        self._next_segment += 1
        return segment
