"""What the processes of the queue's benchmark say to each other over a Unix socket, and the sizes that they share."""

import asyncio
import resource
import struct
from typing import Any

import msgspec
import numpy as np

from streamrl.buffers.rows.records import ScoredRows
from streamrl.types import FrameRef

TOKENS, PROMPT_TOKENS = 1280, 64
RECORD_BYTES = TOKENS * 8
GROUP_SIZE = 8
SCORER = "scorer"
COMMIT_INTERVAL_S = 0.005
_SIZE = struct.Struct("<I")


class Announcement(msgspec.Struct, array_like=True):
    """One durable frame: its reference, the groups of its rows, and when its rows were handed to the writer."""

    replica: str
    sequence: int
    frame: FrameRef
    numbers: list[int]
    handed_over: float


class Wanted(msgspec.Struct, array_like=True):
    """A producer that is ready for groups (the scorer: for rows, frames = 0), or (frames = -1) at its end with the
    processor seconds that it took."""

    replica: str
    frames: int
    cpu_s: float = 0.0


class Unscored(msgspec.Struct, array_like=True):
    """Rows to score, columns as bytes; none at the end."""

    number: bytes = b""
    sample_index: bytes = b""
    branch: bytes = b""
    attempt: bytes = b""


class Verdicts(msgspec.Struct, array_like=True):
    """One durable frame of scores, of the rows of an `Unscored`."""

    sequence: int
    frame: FrameRef
    rows: Unscored
    valid: bytes
    reward: bytes

    def scored_rows(self) -> ScoredRows:
        return ScoredRows(
            number=np.frombuffer(self.rows.number, np.int64),
            sample_index=np.frombuffer(self.rows.sample_index, np.int32),
            branch=np.frombuffer(self.rows.branch, np.int32),
            attempt=np.frombuffer(self.rows.attempt, np.int32),
            valid=np.frombuffer(self.valid, np.bool_),
            reward=np.frombuffer(self.reward, np.float64),
        )


def send(writer: asyncio.StreamWriter, message: Any) -> None:
    body = msgspec.msgpack.encode(message)
    writer.write(_SIZE.pack(len(body)) + body)


async def receive(reader: asyncio.StreamReader) -> bytes:
    (size,) = _SIZE.unpack(await reader.readexactly(_SIZE.size))
    return await reader.readexactly(size)


def processor_s() -> float:
    """User and system seconds of this process so far."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime
