"""The index file of a segment: what lies where, so that a reader trusts no byte that was not vouched for.

A segment `x.arrow` is a plain Arrow IPC stream: schema message, record-batch messages, and once it is sealed
an end-of-stream marker. Live, it is preallocated and ends in zeros. Beside it lies `x.idx`: eight bytes of
magic, then entries of a fixed size, zeros after the last. Entry 0 is the schema message, each further one a
frame (record-batch message), and a sealed segment ends with the entry of its end-of-stream marker.

Guaranteed: an entry is written only after the bytes it names are synced, so under a good entry other bytes
are damage. An entry names its commit and how many entries of that commit follow: a bad entry with a later
commit behind it is damage too, and without one it is the torn end of a commit that was never acknowledged.
Its own checksum is seeded by its place, so an entry that was moved is a bad one. Nothing here does I/O.
"""

import struct
from typing import Final, NamedTuple

import xxhash

from streamrl.errors import DataError

MAGIC: Final = b"SRLIDX\x01\n"
"""The byte before the newline is the format's version; a reader refuses any other."""
END_OF_STREAM: Final = b"\xff\xff\xff\xff\x00\x00\x00\x00"
_BODY: Final = struct.Struct("<QQQQIII4x")
_CHECKSUM: Final = struct.Struct("<Q")
ENTRY_BYTES: Final = _BODY.size + _CHECKSUM.size


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
    return body + _CHECKSUM.pack(xxhash.xxh3_64_intdigest(body, seed=place))


def unpack_entry(data: "bytes | memoryview", place: int) -> IndexEntry | None:
    """The entry, or None if its checksum says that it is not one."""
    body, checksum = data[: _BODY.size], data[_BODY.size : ENTRY_BYTES]
    if len(checksum) < _CHECKSUM.size or xxhash.xxh3_64_intdigest(body, seed=place) != _CHECKSUM.unpack(checksum)[0]:
        return None
    return IndexEntry(*_BODY.unpack(body))


def is_end(entry: IndexEntry) -> bool:
    """Whether the entry is the end-of-stream marker of a sealed segment."""
    return entry.offset > 0 and entry.rows == 0


def read_index(data: bytes, source: str) -> list[IndexEntry]:
    """The good entries of an index file, up to its end or its torn tail.

    Raises:
        DataError: not an index file, or a bad entry that a later commit follows. Names `source` and the
        offset.
    """
    if not data.strip(b"\x00"):
        return []
    if data[: len(MAGIC)] != MAGIC:
        raise DataError(f"{source}: offset 0: {data[: len(MAGIC)]!r} is not {MAGIC!r}; no index file of this release")
    view = memoryview(data)[len(MAGIC) :]
    places = range(len(view) // ENTRY_BYTES)
    entries: list[IndexEntry] = []
    for place in places:
        entry = unpack_entry(view[place * ENTRY_BYTES :], place)
        if entry is None:
            _refuse_damage(view, place, entries, source)
            break
        entries.append(entry)
    return entries


def _refuse_damage(view: memoryview, bad: int, good: list[IndexEntry], source: str) -> None:
    """Raise if the bad entry belongs to a commit that was synced: an entry of a later one lies behind it."""
    if not bytes(view[bad * ENTRY_BYTES :]).strip(b"\x00"):
        return
    last = good[-1] if good else IndexEntry(0, 0, 0, 0, 0, -1, 0)
    commit = last.commit if last.left else last.commit + 1
    for place in range(bad + 1, len(view) // ENTRY_BYTES):
        chunk = view[place * ENTRY_BYTES : (place + 1) * ENTRY_BYTES]
        entry = unpack_entry(chunk, place)
        if entry is not None and entry.commit > commit:
            raise DataError(
                f"{source}: offset {len(MAGIC) + bad * ENTRY_BYTES}: damaged entry, with a good one of a "
                f"later commit behind it at offset {len(MAGIC) + place * ENTRY_BYTES}: restore the file"
            )
