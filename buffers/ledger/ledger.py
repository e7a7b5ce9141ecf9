"""The append-only ledger: the queue's decisions, in order, each group of them under one checksum.

A folder of files `000000.log`, `000001.log`, ...; each opening of the run starts a new file and never touches
an older one. A file is a row of frames (`streamrl.buffers.ledger.frames`); the payload of a frame is the msgpack list
of the records of one commit, and a file that was closed ends with a frame that says so.

Guaranteed: the future of `append` resolves after the record is durable, and records are durable in the order
in which they were appended. A commit is one frame, so a torn commit is an unfinished last frame, which reading
cuts; any other bad frame is damage, and so is a file that ends before the place where its successor says it
ended, or where a file that was not closed keeps room. Nothing here knows what a record means.
"""

import os
import re
from concurrent.futures import Future
from itertools import chain, pairwise
from pathlib import Path
from typing import Final, Literal, NamedTuple

import msgspec

from streamrl.buffers.ledger.frames import CLOSING, FRAME_BYTES, pack_frame, read_frames
from streamrl.buffers.ledger.group_commit import GroupCommitter
from streamrl.buffers.ledger.records import Record, RunHeader
from streamrl.errors import DataError
from streamrl.system.disk import allocate, create_preallocated, sync_data, sync_folder, truncate, write_all
from streamrl.system.disk_space import DiskSpace

_ALLOCATE_BYTES: Final = 2**20
"""Room taken ahead at once: a full disk shows there, before a frame is begun."""
_NAME: Final = re.compile(r"[0-9]{6,}\.log")


class LedgerFile(NamedTuple):
    """A file of the ledger up to its torn tail. torn_bytes: what a write that stopped left behind the good bytes."""

    path: Path
    good_bytes: int
    records: list[Record]
    torn_bytes: int


class Ledger:
    """Writes a new file of the ledger in `folder`; `append` from one thread, one more thread commits.

    Example:
        ledger = Ledger(folder, header, durability="disk", commit_interval_s=0.005)
        ledger.append(Covered(50)).result()
        ledger.close()

    Raises:
        FencedError: another process has just opened this ledger.
        ResourceError: the disk is full.
    """

    def __init__(
        self,
        folder: Path,
        header: RunHeader,
        *,
        durability: Literal["disk", "memory"],
        commit_interval_s: float,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._path = folder / f"{len(ledger_files(folder)):06d}.log"
        self._sync = durability == "disk"
        self._encoder = msgspec.msgpack.Encoder()
        self._end = 0
        self._place = 0
        self._allocated = _ALLOCATE_BYTES
        self._fd = create_preallocated(self._path, _ALLOCATE_BYTES)
        self._closed = False
        self._room = DiskSpace()
        self._committer = GroupCommitter[tuple[Record, ...], None]("ledger", self._commit, interval_s=commit_interval_s)
        if self._sync:
            sync_folder(folder)
        self._committer.submit((header,)).result()

    @property
    def pause(self) -> str:
        """What a full disk keeps it waiting for, in words; "" while it does not wait."""
        return self._room.pause

    def append(self, *records: Record) -> "Future[None]":
        """Queue records that stand or fall together; the future resolves when they and all before them are durable. A
        full disk makes it wait.

        Raises:
            ComponentError: closed, or an earlier commit failed.
        """
        return self._committer.submit(records)

    def close(self) -> None:
        """Commit what is pending, end the file and cut the preallocated rest. A second call does nothing.

        What waits for room on a full disk is given up, and its future fails with ResourceError. After a failure
        the file stays as it is, as that of a process that was killed.

        Raises:
            ComponentError: the end could not be written.
        """
        self._room.close()
        self._committer.close()
        if not self._closed:
            self._closed = True
            try:
                if self._committer.failure is None:
                    self._put(CLOSING)
                    truncate(self._fd, self._end, self._path)
            finally:
                os.close(self._fd)

    def _commit(self, appended: list[tuple[Record, ...]]) -> list[None]:
        # One frame, so that no reader ever has a part of what was appended together.
        self._put(self._encoder.encode(list(chain.from_iterable(appended))))
        return [None] * len(appended)

    def _put(self, payload: bytes) -> None:
        """Write one frame, with room kept behind it for the frame that closes the file."""
        frame = pack_frame(payload, self._place)
        if self._end + len(frame) + FRAME_BYTES > self._allocated and payload != CLOSING:
            self._grow(max(_ALLOCATE_BYTES, len(frame)))
        write_all(self._fd, memoryview(frame), self._end, self._path)
        if self._sync:
            sync_data(self._fd, self._path)
        self._end += len(frame)
        self._place += 1

    def _grow(self, num_bytes: int) -> None:
        """Take room, durably before a frame is begun in it: a frame beyond the file's end is a cut file."""
        self._room.wait_for(lambda: allocate(self._fd, self._allocated, num_bytes, self._path))
        if self._sync:
            sync_data(self._fd, self._path)
        self._allocated += num_bytes


def ledger_files(folder: Path) -> list[Path]:
    """The files of a ledger in order; empty if there is none.

    Raises:
        DataError: one of the row is missing, or a foreign file lies among them. Names it.
    """
    paths = sorted(folder.glob("*.log"))
    for number, path in enumerate(paths):
        if not _NAME.fullmatch(path.name):
            raise DataError(f"{path}: no ledger file has such a name; streamrl did not write it: take it away")
        if path.name != f"{number:06d}.log":
            raise DataError(f"{folder}: {number:06d}.log is missing (found {path.name}): restore it, or start afresh")
    return paths


def read_ledger(folder: Path) -> list[LedgerFile]:
    """All files of the ledger, each up to its torn tail.

    Raises:
        DataError: damage, a missing file, or records that this release does not know. Names file and offset.
    """
    files = [read_ledger_file(path) for path in ledger_files(folder)]
    for file, successor in pairwise(files):
        check_end(file, successor)
    return files


def check_end(file: LedgerFile, successor: LedgerFile) -> None:
    """Refuse a file that ends elsewhere than where the one after it says.

    Raises:
        DataError: frames are missing. Names file and offset.
    """
    header = next(iter(successor.records), None)
    if isinstance(header, RunHeader) and header.previous_bytes != file.good_bytes:
        raise DataError(
            f"{file.path}: offset {file.good_bytes}: the good frames end here, but {successor.path.name} "
            f"was begun after {header.previous_bytes} bytes of them: the file is damaged; restore it"
        )


def read_ledger_file(path: Path) -> LedgerFile:
    """One file of the ledger, up to its torn tail.

    Raises:
        DataError: damage, or records that this release does not know. Names file and offset.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}: restore it, or start afresh") from error
    decoder = msgspec.msgpack.Decoder(list[Record])
    records: list[Record] = []
    end = 0
    for frame in read_frames(memoryview(data), str(path)):
        end = frame.end
        if frame.closes:
            break
        try:
            records += decoder.decode(frame.payload)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise DataError(
                f"{path}: offset {frame.start}: a record that this release does not know: {error}"
            ) from error
    return LedgerFile(path, end, records, len(data[end:].rstrip(b"\0")))
