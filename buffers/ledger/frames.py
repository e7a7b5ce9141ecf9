"""The framing of a ledger file: payloads in a row, each under one checksum, in a preallocated file.

    frame    header | payload | end mark
    header   magic, payload length, place, XXH3-64 of the payload, 32-bit checksum of all that

A frame without a payload closes the file; zeros follow the last frame of a file that was not closed.

Guaranteed: a frame is read as it was written or not at all. A bad frame is a torn end, which is cut, only if it
can be a write that stopped (`streamrl.buffers.ledger.torn`) and no good frame lies behind it; anything else is damage.
So is a file that ends where a living one keeps room, or inside a frame: room is taken before a frame is begun. Nothing
here knows what a payload means, and nothing does I/O.
"""

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

import xxhash

from streamrl.buffers.ledger.torn import is_unfinished, is_zero
from streamrl.errors import DataError

MAGIC: Final = b"SRL\x02"
"""The last byte is the framing's version; a reader refuses any other."""
_HEAD: Final = struct.Struct("<4sIQQ")
_CHECK: Final = struct.Struct("<I")
_END: Final = b"\xa5"
HEADER_BYTES: Final = _HEAD.size + _CHECK.size
FRAME_BYTES: Final = HEADER_BYTES + len(_END)
"""What a frame takes beside its payload, and so what the closing frame takes."""
CLOSING: Final = b""
"""The payload of the frame that closes a file."""
_MARK: Final = 0xC0000000
"""Bits that every header checksum has, so that a whole header never ends in a zero byte."""


class Frame(NamedTuple):
    """A good frame: where it starts and ends in its file, and its payload."""

    start: int
    end: int
    payload: memoryview

    @property
    def closes(self) -> bool:
        """Whether the writer ended the file with it."""
        return len(self.payload) == len(CLOSING)


class _Header(NamedTuple):
    length: int
    place: int
    checksum: int


def pack_frame(payload: bytes, place: int) -> bytes:
    """The frame's bytes. place: the frame's number in its file, from 0."""
    head = _HEAD.pack(MAGIC, len(payload), place, xxhash.xxh3_64_intdigest(payload))
    return head + _CHECK.pack(_head_check(head)) + payload + _END


def read_frames(data: memoryview, source: str) -> Iterator[Frame]:
    """The good frames of a file up to its end or its torn tail, the closing one included.

    Raises:
        DataError: damage, a cut file, or another framing. Names `source` and the offset.
    """
    if bytes(data[:3]) == MAGIC[:3] and data[3:4] != MAGIC[3:]:
        raise DataError(
            f"{source}: offset 3: framing version {bytes(data[3:4]).hex()}, this release reads {MAGIC[3:].hex()}: "
            "open the run with the release that wrote it, or start afresh"
        )
    start, place = 0, 0
    while True:
        frame = _frame_at(data, start, place)
        if frame is None:
            _refuse_damage(data, start, place, source)
            return
        yield frame
        if frame.closes:
            return
        start, place = frame.end, place + 1


def _head_check(head: "bytes | memoryview") -> int:
    return int(xxhash.xxh3_64_intdigest(head) & 0xFFFFFFFF | _MARK)


def _header_at(data: memoryview, start: int) -> _Header | None:
    """The header at `start`, or None if its checksum says that it is none."""
    head = data[start : start + _HEAD.size]
    check = data[start + _HEAD.size : start + HEADER_BYTES]
    if len(check) < _CHECK.size or _head_check(head) != _CHECK.unpack(check)[0]:
        return None
    magic, *rest = _HEAD.unpack(head)
    return _Header(*rest) if magic == MAGIC else None


def _frame_at(data: memoryview, start: int, place: int | None) -> Frame | None:
    """The good frame at `start`, or None. place None: any."""
    header = _header_at(data, start)
    if header is None or place not in (None, header.place):
        return None
    payload = data[start + HEADER_BYTES : start + HEADER_BYTES + header.length]
    end = start + FRAME_BYTES + header.length
    if bytes(data[end - 1 : end]) != _END or xxhash.xxh3_64_intdigest(payload) != header.checksum:
        return None
    return Frame(start, end, payload)


def _refuse_damage(data: memoryview, bad: int, place: int, source: str) -> None:
    """Raise unless what lies at `bad` is a torn end, or nothing."""
    if is_zero(data[bad:]) and (bad < len(data) or bad == 0):
        return
    behind = _good_behind(data, bad)
    if behind is not None:
        raise DataError(
            f"{source}: offset {bad}: damaged frame, with a good one behind it at offset {behind}: "
            "restore the file, or start the run afresh"
        )
    header = _header_at(data, bad)
    end = bad + HEADER_BYTES if header is None else bad + FRAME_BYTES + header.length
    if end > len(data):
        raise DataError(
            f"{source}: offset {bad}: the file was cut to {len(data)} bytes: restore it, or start the run afresh"
        )
    if not is_unfinished(data, bad, end) or (header is not None and header.place != place):
        raise DataError(
            f"{source}: offset {bad}: damaged frame, written to its end: restore the file, or start the run afresh"
        )


def _good_behind(data: memoryview, bad: int) -> int | None:
    """Where a good frame lies behind `bad`: a commit is synced before the next begins."""
    whole = bytes(data)
    start = whole.find(MAGIC, bad + 1)
    while start >= 0:
        if _frame_at(data, start, None) is not None:
            return start
        start = whole.find(MAGIC, start + 1)
    return None
