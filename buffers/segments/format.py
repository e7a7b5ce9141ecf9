"""The index file of a segment: what lies where, so that a reader trusts no byte that was not vouched for.

A segment `x.arrow` is a plain Arrow IPC stream: schema message, record-batch messages, and once it is sealed
an end-of-stream marker. Live, it is preallocated and ends in zeros. Beside it lies `x.idx`: eight bytes of
magic, then entries of a fixed size, zeros after the last. Entry 0 is the schema message, each further one a
frame (record-batch message), and a sealed segment ends with the entry of its end-of-stream marker.

Guaranteed: an entry is written only after the bytes it names are synced, so under a good entry other bytes
are damage. An entry names its commit and how many entries of that commit follow. A bad entry is the torn end
of a commit that was never acknowledged, which is cut, only if it can be a write that stopped
(`streamrl.buffers.ledger.torn`) and no entry of a later commit lies behind it; anything else is damage, and so is an
index that ends without the end-of-stream entry: a living one keeps room for it. Its own checksum is seeded by its
place, so an entry that was moved is a bad one. Nothing here does I/O.
"""

import struct
from typing import Final, NamedTuple

import xxhash

from streamrl.buffers.ledger.torn import is_unfinished, is_zero
from streamrl.errors import DataError

MAGIC: Final = b"SRLIDX\x02\n"
"""The byte before the newline is the format's version; a reader refuses any other."""
END_OF_STREAM: Final = b"\xff\xff\xff\xff\x00\x00\x00\x00"
_MARK: Final = b"\xa5E"
"""Around each entry, so that a whole one neither begins nor ends with a zero byte."""
_BODY: Final = struct.Struct("<QQQQIII")
_CHECKSUM: Final = struct.Struct("<Q")
ENTRY_BYTES: Final = len(_MARK) + _BODY.size + _CHECKSUM.size + len(_MARK)


class IndexEntry(NamedTuple):
    """Bytes `offset:offset + length` of the segment, their XXH3-64 over salt and bytes, and their commit.

    rows is 0 for the schema message and for the end-of-stream marker. left: entries of the same commit to
    follow.
    """

    offset: int
    length: int
    checksum: int
    salt: int
    rows: int
    commit: int
    left: int


def frame_checksum(salt: int, frame: "bytes | memoryview") -> int:
    """XXH3-64 over the salt (8 bytes, little-endian) and the frame."""
    digest = xxhash.xxh3_64(_CHECKSUM.pack(salt))
    digest.update(frame)
    return int(digest.intdigest())


def pack_entry(entry: IndexEntry, place: int) -> bytes:
    """`ENTRY_BYTES` bytes. place: the entry's number in the file, from 0."""
    body = _BODY.pack(*entry)
    return _MARK + body + _CHECKSUM.pack(xxhash.xxh3_64_intdigest(body, seed=place)) + _MARK


def unpack_entry(data: "bytes | memoryview", place: int) -> IndexEntry | None:
    """The entry, or None if its checksum says that it is not one."""
    data = data[:ENTRY_BYTES]
    if len(data) < ENTRY_BYTES or data[: len(_MARK)] != _MARK or data[-len(_MARK) :] != _MARK:
        return None
    body = data[len(_MARK) : len(_MARK) + _BODY.size]
    checksum = data[len(_MARK) + _BODY.size : -len(_MARK)]
    if xxhash.xxh3_64_intdigest(body, seed=place) != _CHECKSUM.unpack(checksum)[0]:
        return None
    return IndexEntry(*_BODY.unpack(body))


def is_end(entry: IndexEntry) -> bool:
    """Whether the entry is the end-of-stream marker of a sealed segment."""
    return entry.offset > 0 and entry.rows == 0


def read_index(data: bytes, source: str) -> list[IndexEntry]:
    """The good entries of an index file, up to its end or its torn tail; none if it was never begun.

    Raises:
        DataError: not an index file, a damaged entry, or a file that was cut. Names `source` and the offset.
    """
    view = memoryview(data)
    if data[: len(MAGIC)] != MAGIC:
        if is_zero(view[len(MAGIC) - 1 :]):
            return []
        raise DataError(f"{source}: offset 0: {data[: len(MAGIC)]!r} is not {MAGIC!r}; no index file of this release")
    entries: list[IndexEntry] = []
    for place in range((len(view) - len(MAGIC)) // ENTRY_BYTES):
        entry = unpack_entry(view[_offset(place) :], place)
        if entry is None:
            _refuse_damage(view, place, entries, source)
            return entries
        entries.append(entry)
        if is_end(entry):
            return entries
    raise DataError(f"{source}: offset {_offset(len(entries))}: the file was cut to {len(view)} bytes: restore it")


def _offset(place: int) -> int:
    return len(MAGIC) + place * ENTRY_BYTES


def _refuse_damage(view: memoryview, bad: int, good: list[IndexEntry], source: str) -> None:
    """Raise unless the bad entry is the torn end of a commit that was never acknowledged, or nothing."""
    start = _offset(bad)
    if is_zero(view[start:]):
        return
    last = good[-1] if good else IndexEntry(0, 0, 0, 0, 0, -1, 0)
    commit = last.commit if last.left else last.commit + 1
    for place in range(bad + 1, (len(view) - len(MAGIC)) // ENTRY_BYTES):
        entry = unpack_entry(view[_offset(place) :], place)
        if entry is not None and entry.commit > commit:
            raise DataError(
                f"{source}: offset {start}: damaged entry, with a good one of a later commit behind it at offset "
                f"{_offset(place)}: restore the file"
            )
    if not is_unfinished(view, start, start + ENTRY_BYTES):
        raise DataError(f"{source}: offset {start}: damaged entry, written to its end: restore the file")
