"""The scorer of the queue's benchmark, a process of its own: python -m queue_parts.scorer SOCKET RUN DURABILITY

It gives each row a reward of 1, and encodes and writes the verdicts as the reward stage does.
"""

import asyncio
import sys
import time
from pathlib import Path
from typing import cast

import msgspec
import numpy as np

from queue_parts.wire import COMMIT_INTERVAL_S, SCORER, Unscored, Verdicts, Wanted, processor_s, receive, send
from streamrl.buffers.rows.arrow import scores_batch
from streamrl.buffers.rows.schema import SCORES
from streamrl.buffers.segments.places import SCORES_DIR
from streamrl.buffers.segments.writer import Durability, SegmentWriter
from streamrl.types import Score

SEGMENT_BYTES = 2**24


class Scorer:
    """Takes rows as they come; several frames of verdicts are on their way to disk at once."""

    def __init__(self, run: Path, durability: Durability) -> None:
        self._log = SegmentWriter(run, SCORES_DIR, SCORER, 0, SCORES, SEGMENT_BYTES, durability, COMMIT_INTERVAL_S)
        self._score = Score.ok(1.0)
        self._writing: set[asyncio.Task[None]] = set()
        self._sequence = 0

    async def run(self, socket: str) -> None:
        reader, writer = await asyncio.open_unix_connection(socket)
        send(writer, Wanted(SCORER, 0))
        await receive(reader)
        started_cpu_s = processor_s()
        while (rows := msgspec.msgpack.decode(await receive(reader), type=Unscored)).number:
            self._writing.add(task := asyncio.ensure_future(self._write(writer, rows, self._sequence)))
            task.add_done_callback(self._writing.discard)
            self._sequence += 1
        await asyncio.gather(*self._writing)
        self._log.close()
        send(writer, None)
        send(writer, Wanted(SCORER, -1, processor_s() - started_cpu_s))
        await writer.drain()
        writer.close()

    async def _write(self, writer: asyncio.StreamWriter, rows: Unscored, sequence: int) -> None:
        number, sample = np.frombuffer(rows.number, np.int64), np.frombuffer(rows.sample_index, np.int32)
        names = [f"g{n}/{s}" for n, s in zip(number.tolist(), sample.tolist(), strict=True)]
        scores = [self._score] * len(names)
        branch = np.frombuffer(rows.branch, np.int32)
        batch = scores_batch(names, branch, scores, scorer=SCORER, scored_ns=time.time_ns())
        frame = await asyncio.wrap_future(self._log.append(batch))
        valid, reward = np.ones(len(names), np.bool_), np.ones(len(names))
        send(writer, Verdicts(sequence, frame, rows, valid.tobytes(), reward.tobytes()))


def main(socket: str, run: str, durability: str) -> None:
    asyncio.run(Scorer(Path(run), cast(Durability, durability)).run(socket))


if __name__ == "__main__":
    main(*sys.argv[1:])
