"""What the reward pool and a child process say to each other, and how it is framed.

A message is a 4-byte little-endian length and msgpack of a closed schema. Nothing in it can be code.
"""

import socket
import struct

import msgspec

from streamrl.config.schema import RewardModelConfig
from streamrl.errors import DataError
from streamrl.rewards.base import RewardItem
from streamrl.types import Score

HEADER = struct.Struct("<I")
MAX_FRAME = 2**30  # bytes; a length beyond it is a broken stream, not a batch


class ChildSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What a child is told on its command line, as JSON.

    channel: number of the inherited socket. parent: pid of the pool's process. import_paths: folders added to
    the end of `sys.path`. memory_bytes: limit of the address space. model: a reward model beside the function. stacks:
    folder in which it answers who asks for its stacks (`streamrl.stacks`); "" for none."""

    channel: int
    parent: int
    function: str
    memory_bytes: int
    import_paths: list[str] = []
    model: RewardModelConfig = RewardModelConfig()
    stacks: str = ""


class Ready(msgspec.Struct, frozen=True, array_like=True):
    """A child's first message. `error` is empty, or says why it cannot score."""

    error: str = ""


class Batch(msgspec.Struct, frozen=True, array_like=True):
    """Items to score; `sequence` counts the batches of one child."""

    sequence: int
    items: list[RewardItem]


class Verdicts(msgspec.Struct, frozen=True, array_like=True):
    """The scores of the batch with that `sequence`, in order."""

    sequence: int
    scores: list[Score]


def pack(message: Ready | Batch | Verdicts) -> bytes:
    """The frame of a message."""
    body = msgspec.msgpack.encode(message)
    return HEADER.pack(len(body)) + body


def body_length(header: bytes) -> int:
    """Bytes that follow a header. Raises DataError when no message of ours is that long."""
    (length,) = HEADER.unpack(header)
    if length > MAX_FRAME:
        raise DataError(f"a reward message announces {length} bytes, more than {MAX_FRAME}")
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
