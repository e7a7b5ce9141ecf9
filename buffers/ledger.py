"""The append-only ledger: the queue's decisions, in order, each group of them under one checksum.

A folder of files `000000.log`, `000001.log`, ...; each opening of the run starts a new file and never touches
an older one. A file is a row of frames, zeros after the last: magic, payload length, place, XXH3-64, payload;
the payload is the msgpack list of the records of one commit.

Guaranteed: the future of `append` resolves after the record is durable, and records are durable in the order
in which they were appended. A commit is one frame, so a torn commit is a bad last frame, which reading cuts;
a bad frame with a good one behind it is damage, and so is a file that ends before the place where its
successor says it ended. Nothing here knows what a record means.
"""

import os
import struct
from collections.abc import Iterator
from concurrent.futures import Future
from itertools import pairwise
from pathlib import Path
from typing import Final, Literal, NamedTuple

import msgspec
import xxhash

from buffers.disk import allocate, create_preallocated, sync_data, sync_folder, write_all
from buffers.group_commit import GroupCommitter
from buffers.ledger_records import Record, RunHeader
from streamrl.errors import DataError

MAGIC: Final = b"SRL\x01"
"""The last byte is the framing's version."""
_HEAD: Final = struct.Struct("<4sIQ")
_CHECKSUM: Final = struct.Struct("<Q")
HEADER_BYTES: Final = _HEAD.size + _CHECKSUM.size
_ALLOCATE_BYTES: Final = 2**20
"""Room taken ahead at once: a full disk shows there, before a frame is begun."""


class Frame(NamedTuple):
    """A good frame: where it starts and ends in its file, and its records."""

    start: int
    end: int
    records: list[Record]


class LedgerFile(NamedTuple):
    """A file of the ledger up to its torn tail."""

    path: Path
    good_bytes: int
    records: list[Record]


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
        self._committer = GroupCommitter[Record, None]("ledger", self._commit, interval_s=commit_interval_s)
        if self._sync:
            sync_folder(folder)
        self._committer.submit(header).result()

    def append(self, record: Record) -> "Future[None]":
        """Queue a record; the future resolves when it and all before it are durable.

        Raises:
            ComponentError: closed, or an earlier commit failed.
        """
        return self._committer.submit(record)

    def close(self) -> None:
        """Commit what is pending and cut the preallocated rest. A second call does nothing."""
        self._committer.close()
        if not self._closed:
            self._closed = True
            os.ftruncate(self._fd, self._end)
            os.close(self._fd)

    def _commit(self, records: list[Record]) -> list[None]:
        frame = pack_frame(self._encoder.encode(records), self._place)
        if self._end + len(frame) > self._allocated:
            wanted = max(_ALLOCATE_BYTES, len(frame))
            allocate(self._fd, self._allocated, wanted, self._path)
            self._allocated += wanted
        write_all(self._fd, memoryview(frame), self._end, self._path)
        if self._sync:
            sync_data(self._fd, self._path)
        self._end += len(frame)
        self._place += 1
        return [None] * len(records)


def pack_frame(payload: bytes, place: int) -> bytes:
    """The frame's bytes; the checksum covers all else. place: the frame's number in its file."""
    head = _HEAD.pack(MAGIC, len(payload), place)
    return head + _CHECKSUM.pack(xxhash.xxh3_64_intdigest(head + payload)) + payload


def ledger_files(folder: Path) -> list[Path]:
    """The files of a ledger in order; empty if there is none.

    Raises:
        DataError: one of the row is missing.
    """
    paths = sorted(folder.glob("*.log"))
    for number, path in enumerate(paths):
        if path.name != f"{number:06d}.log":
            raise DataError(f"{folder}: {number:06d}.log is missing (found {path.name}): restore it, or start afresh")
    return paths


def read_ledger(folder: Path) -> list[LedgerFile]:
    """All files of the ledger, each up to its torn tail.

    Raises:
        DataError: damage, a missing file, or records that this release does not know. Names file and offset.
    """
    files = [_read_file(path) for path in ledger_files(folder)]
    for file, successor in pairwise(files):
        header = next(iter(successor.records), None)
        if isinstance(header, RunHeader) and header.previous_bytes != file.good_bytes:
            raise DataError(
                f"{file.path}: offset {file.good_bytes}: the good frames end here, but {successor.path.name} "
                f"was begun after {header.previous_bytes} bytes of them: the file is damaged; restore it"
            )
    return files


def _read_file(path: Path) -> LedgerFile:
    data = path.read_bytes()
    records: list[Record] = []
    end = 0
    for frame in _frames(memoryview(data), path):
        records += frame.records
        end = frame.end
    return LedgerFile(path, end, records)


def _frames(data: memoryview, path: Path) -> Iterator[Frame]:
    decoder = msgspec.msgpack.Decoder(list[Record])
    start, place = 0, 0
    while start < len(data):
        payload = _payload(data, start, place)
        if payload is None:
            _refuse_damage(data, start, path)
            return
        end = start + HEADER_BYTES + len(payload)
        try:
            records = decoder.decode(payload)
        except msgspec.DecodeError as error:
            raise DataError(f"{path}: offset {start}: a record that this release does not know: {error}") from error
        yield Frame(start, end, records)
        start, place = end, place + 1


def _payload(data: memoryview, start: int, place: int | None) -> memoryview | None:
    """The payload of a good frame at `start`, or None. place None: any."""
    head = data[start : start + _HEAD.size]
    checksum = data[start + _HEAD.size : start + HEADER_BYTES]
    if len(checksum) < _CHECKSUM.size:
        return None
    magic, length, at = _HEAD.unpack(head)
    payload = data[start + HEADER_BYTES : start + HEADER_BYTES + length]
    if magic != MAGIC or len(payload) < length or place not in (None, at):
        return None
    digest = xxhash.xxh3_64(head)
    digest.update(payload)
    return payload if digest.intdigest() == _CHECKSUM.unpack(checksum)[0] else None


def _refuse_damage(data: memoryview, bad: int, path: Path) -> None:
    """Raise if a good frame lies behind the bad one: a commit is synced before the next begins."""
    whole = bytes(data)
    start = whole.find(MAGIC, bad + 1)
    while start >= 0:
        if _payload(data, start, None) is not None:
            raise DataError(
                f"{path}: offset {bad}: damaged frame, with a good one behind it at offset {start}: "
                "restore the file, or start the run afresh"
            )
        start = whole.find(MAGIC, start + 1)
