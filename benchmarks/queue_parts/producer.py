"""The producer of the queue's benchmark, a process of its own.

    python -m queue_parts.producer SOCKET RUN REPLICA DURABILITY FRAMES IN_FLIGHT PAUSE_S

It makes rollouts of 1,280 tokens for the groups it was given, encodes and writes them as a replica does, and announces
each durable frame.
"""

import asyncio
import sys
import time
from pathlib import Path

import msgspec
import numpy as np

from queue_parts.wire import (
    COMMIT_INTERVAL_S,
    GROUP_SIZE,
    PROMPT_TOKENS,
    TOKENS,
    Announcement,
    Wanted,
    processor_s,
    receive,
    send,
)
from streamrl.buffers.rows.arrow import CompletionRows, TokenColumns, completions_batch
from streamrl.buffers.rows.schema import COMPLETIONS
from streamrl.buffers.segments.places import COMPLETIONS_DIR
from streamrl.buffers.segments.writer import Durability, SegmentWriter
from streamrl.types import SamplingParams, TokenOrigin

SEGMENT_BYTES = 2**26
SAMPLING = SamplingParams(max_new_tokens=TOKENS - PROMPT_TOKENS)


class Producer:
    """Fills frames for the groups that the consumer gives it, several in flight."""

    def __init__(self, replica: str, run: Path, durability: Durability, pause_s: float) -> None:
        self._replica = replica
        self._pause_s = pause_s
        self._writer = SegmentWriter(
            run, COMPLETIONS_DIR, replica, 0, COMPLETIONS, SEGMENT_BYTES, durability, COMMIT_INTERVAL_S
        )
        self._columns: list[TokenColumns] = []
        self._sequence = 0

    async def run(self, socket: str, frames: int, in_flight: int) -> None:
        reader, writer = await asyncio.open_unix_connection(socket)
        send(writer, Wanted(self._replica, frames))
        await receive(reader)
        started_cpu_s = processor_s()
        places = asyncio.Semaphore(in_flight)
        tasks = []
        for _ in range(frames):
            numbers = msgspec.msgpack.decode(await receive(reader))
            await places.acquire()
            if self._pause_s:
                await asyncio.sleep(self._pause_s)
            tasks.append(asyncio.ensure_future(self._announce(writer, numbers, places)))
        await asyncio.gather(*tasks)
        self._writer.close()
        send(writer, Wanted(self._replica, -1, processor_s() - started_cpu_s))
        await receive(reader)
        writer.close()

    async def _announce(self, writer: asyncio.StreamWriter, numbers: list[int], places: asyncio.Semaphore) -> None:
        if not self._columns:
            self._columns = [token_columns(len(numbers) * GROUP_SIZE, seed) for seed in range(4)]
        sequence = self._sequence
        self._sequence += 1
        started = time.monotonic()
        batch = completions_batch(rows_of(self._columns[sequence % len(self._columns)], numbers, self._replica))
        frame = await asyncio.wrap_future(self._writer.append(batch))
        send(writer, Announcement(self._replica, sequence, frame, numbers, started))
        places.release()


def token_columns(rows: int, seed: int) -> TokenColumns:
    """The columns of one frame: random ids, log-probs that are finite, one version span a row."""
    random = np.random.default_rng(seed)
    count = rows * TOKENS
    origin = np.full((rows, TOKENS), TokenOrigin.SAMPLED, np.uint8)
    origin[:, :PROMPT_TOKENS] = TokenOrigin.PROMPT
    logprobs = -random.random((rows, TOKENS), dtype=np.float32)
    logprobs[:, :PROMPT_TOKENS] = 0
    return TokenColumns(
        offsets=np.arange(rows + 1, dtype=np.int64) * TOKENS,
        token_ids=random.integers(0, 150_000, count, dtype=np.int32),
        token_origin=origin.reshape(-1),
        rollout_logprobs=logprobs.reshape(-1),
        span_offsets=np.arange(rows + 1, dtype=np.int64),
        span_start=np.full(rows, PROMPT_TOKENS, np.int32),
        span_incarnation=np.zeros(rows, np.int32),
        span_step=np.zeros(rows, np.int64),
    )


def rows_of(tokens: TokenColumns, numbers: list[int], replica: str) -> CompletionRows:
    """The rollouts of the groups `numbers`, as a replica hands them to its writer."""
    count = len(numbers) * GROUP_SIZE
    groups = [f"g{number}" for number in numbers]
    samples = np.tile(np.arange(GROUP_SIZE, dtype=np.int32), len(numbers))
    now = np.full(count, time.time_ns())
    return CompletionRows(
        tokens=tokens,
        rollout_id=[f"{group}/{sample}" for group in groups for sample in range(GROUP_SIZE)],
        branch=np.zeros(count, np.int32),
        group_id=[group for group in groups for _ in range(GROUP_SIZE)],
        prompt_id=[group for group in groups for _ in range(GROUP_SIZE)],
        stream=["train"] * count,
        data_pass=np.zeros(count, np.int32),
        sample_index=samples,
        attempt=np.zeros(count, np.int32),
        finish_reason=["length"] * count,
        sampling=SAMPLING,
        seed=np.arange(count, dtype=np.int64),
        turns=np.ones(count, np.int32),
        replica=replica,
        started_ns=now,
        finished_ns=now,
        payload=["{}"] * count,
    )


def main(socket: str, run: str, replica: str, durability: str, frames: str, in_flight: str, pause_s: str) -> None:
    producer = Producer(replica, Path(run), durability, float(pause_s))  # type: ignore[arg-type]
    asyncio.run(producer.run(socket, int(frames), int(in_flight)))


if __name__ == "__main__":
    main(*sys.argv[1:])
