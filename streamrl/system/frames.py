"""Messages between a process and its children: a 4-byte little-endian length, and msgpack of a closed schema.

Nothing in one can be code.
"""

import asyncio
import socket
import struct
from typing import Final

import msgspec

from streamrl.errors import DataError

HEADER: Final = struct.Struct("<I")
MAX_FRAME: Final = 2**30
"""Bytes; a length beyond it is a broken stream, not a message."""


def pack(message: msgspec.Struct) -> bytes:
    """The frame of a message."""
    body = msgspec.msgpack.encode(message)
    return HEADER.pack(len(body)) + body


def body_length(header: bytes) -> int:
    """Bytes that follow a header. Raises DataError when no message of ours is that long."""
    (length,) = HEADER.unpack(header)
    if length > MAX_FRAME:
        raise DataError(f"a message announces {length} bytes, more than {MAX_FRAME}")
    return int(length)


def receive_exactly(channel: socket.socket, count: int) -> bytearray | None:
    """`count` bytes from a blocking socket; None when the other end closed."""
    data = bytearray(count)
    view, filled = memoryview(data), 0
    while filled < count:
        received = channel.recv_into(view[filled:])
        if not received:
            return None
        filled += received
    return data


def receive_body(channel: socket.socket) -> bytearray | None:
    """The body of the next frame from a blocking socket; None when the other end closed."""
    header = receive_exactly(channel, HEADER.size)
    return None if header is None else receive_exactly(channel, body_length(bytes(header)))


async def receive_body_async(channel: socket.socket) -> bytes:
    """The body of the next frame from a socket that does not block. Raises EOFError when the other end closed."""
    return await _exactly(channel, body_length(await _exactly(channel, HEADER.size)))


async def _exactly(channel: socket.socket, count: int) -> bytes:
    data = bytearray()
    while len(data) < count:
        part = await asyncio.get_running_loop().sock_recv(channel, count - len(data))
        if not part:
            raise EOFError("the other end closed the channel")
        data += part
    return bytes(data)
