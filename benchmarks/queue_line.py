"""One producer process and one consumer process around the real replay queue, joined by a Unix socket.

The producer makes rollouts of 1,280 tokens for the groups it was given, encodes and writes them as a replica does,
and announces each durable frame. The consumer hosts the queue: it accepts, scores, leases, reads every byte of every
token column, commits, and removes what a checkpoint would let go. Nothing is left out but Ray's calls between the two.
"""

import asyncio
import os
import resource
import struct
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np

from buffers.queue import COMPLETIONS_DIR, SCORES_DIR, ReplayQueue
from buffers.records import AcceptedRows, QueueSettings, ScoredRows, UnscoredFrame
from buffers.retention import remove_segments
from buffers.rows import CompletionRows, TokenColumns, completions_batch, scores_batch
from buffers.schema import COMPLETIONS, SCORES
from buffers.segment_reader import SegmentReader
from buffers.segment_writer import Durability, SegmentWriter
from streamrl.clock import SystemClock
from streamrl.types import FrameRef, SamplingParams, Score, ScoreStatus, TokenOrigin, Version

TOKENS, PROMPT_TOKENS = 1280, 64
RECORD_BYTES = TOKENS * 8
GROUP_SIZE = 8
GROUPS_PER_STEP = 64
SCORED_AT_ONCE = 1024
STEPS_PER_CHECKPOINT = 16
FRAMES_OUT = 24
"""Frames whose groups a producer has at once."""
COMMIT_INTERVAL_S = 0.005
SEGMENT_BYTES = 2**26
SAMPLING = SamplingParams(max_new_tokens=TOKENS - PROMPT_TOKENS)
_SIZE = struct.Struct("<I")


class Order:
    """An endless data set of a thousand prompts."""

    def at(self, n: int, /) -> tuple[int, int]:
        return divmod(n, 1000)


class Announcement(msgspec.Struct, array_like=True):
    """One durable frame: its reference, the groups of its rows, and when its rows were handed to the writer."""

    replica: str
    sequence: int
    frame: FrameRef
    numbers: list[int]
    handed_over: float


class Wanted(msgspec.Struct, array_like=True):
    """A producer that is ready for groups, or (frames = -1) at its end with the processor seconds that it took."""

    replica: str
    frames: int
    cpu_s: float = 0.0


def settings(durability: Durability, retain: Literal["all", "covered"] = "all") -> QueueSettings:
    """No bound but the producer's own speed: what is measured is the queue."""
    return QueueSettings(
        group_size=GROUP_SIZE,
        groups_per_step=GROUPS_PER_STEP,
        max_staleness=10**6,
        byte_budget=2**40,
        rollout_bytes=2 * RECORD_BYTES,
        durability=durability,
        commit_interval_s=COMMIT_INTERVAL_S,
        retain=retain,
    )


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
        stream="train",
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


# ---- the producer, a program of its own: python queue_line.py SOCKET RUN REPLICA DURABILITY FRAMES IN_FLIGHT PAUSE_S


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


# ---- the consumer


@dataclass
class Measured:
    """What one run gave. latencies_s: from handing a frame's rows to the writer to their durable acceptance."""

    records: int
    wall_s: float
    cpu_s: float
    latencies_s: list[float]


class Consumer:
    """Hosts the queue, and is its scorer and its learner."""

    def __init__(
        self, run: Path, durability: Durability, rows_per_frame: int, retain: Literal["all", "covered"] = "covered"
    ) -> None:
        self._run = run
        self._groups = rows_per_frame // GROUP_SIZE
        self._queue = ReplayQueue.open(run, settings(durability, retain), Order(), SystemClock())
        self._scores = SegmentWriter(run, SCORES_DIR, "scorer", 0, SCORES, 2**24, durability, COMMIT_INTERVAL_S)
        self._reader = SegmentReader(run)
        self._steps = 0
        self._started = self._started_cpu_s = 0.0
        self._latencies: list[float] = []
        self._producers_cpu = 0.0
        self._writing: set[asyncio.Task[None]] = set()

    async def consume(self, start: Callable[[str], Any], producers: int, frames_each: int) -> Measured:
        """Serve `producers` that `start(socket)` starts; the clock runs from the first groups given out."""
        total = producers * frames_each
        steps, over = divmod(total * self._groups, GROUPS_PER_STEP)
        assert not over, f"{total} frames are not a whole number of steps: the last batch would never fill"
        ready = asyncio.Barrier(producers)
        socket = str(self._run / "line")
        served: list[asyncio.Future[None]] = []

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            served.append(done)
            await self._serve(reader, writer, ready)
            done.set_result(None)

        server = await asyncio.start_unix_server(serve, socket)
        start(socket)
        scoring = asyncio.ensure_future(self._score())
        await self._learn(steps)
        wall_s = time.monotonic() - self._started
        cpu_s = processor_s() - self._started_cpu_s
        await asyncio.gather(*served)
        server.close()
        self._queue.close()
        await scoring
        self._scores.close()
        os.unlink(socket)
        return Measured(total * self._groups * GROUP_SIZE, wall_s, cpu_s + self._producers_cpu, self._latencies)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, ready: asyncio.Barrier) -> None:
        wanted = msgspec.msgpack.decode(await receive(reader), type=Wanted)
        epoch = await self._queue.next_epoch(wanted.replica)
        await ready.wait()
        if not self._started:
            self._started, self._started_cpu_s = time.monotonic(), processor_s()
        send(writer, "begin")
        places = asyncio.Semaphore(FRAMES_OUT)
        giving = asyncio.ensure_future(self._give(writer, wanted, epoch, places))
        accepting = []
        for _ in range(wanted.frames):
            announced = msgspec.msgpack.decode(await receive(reader), type=Announcement)
            accepting.append(asyncio.ensure_future(self._accept(announced, places)))
        await asyncio.gather(giving, *accepting)
        self._producers_cpu += msgspec.msgpack.decode(await receive(reader), type=Wanted).cpu_s
        send(writer, "seen")
        await writer.drain()
        writer.close()

    async def _give(self, writer: asyncio.StreamWriter, wanted: Wanted, epoch: int, places: asyncio.Semaphore) -> None:
        """The groups of one frame after the other, as many at once as a replica runs."""
        for _ in range(wanted.frames):
            await places.acquire()
            numbers: list[int] = []
            while len(numbers) < self._groups:
                tickets = await self._queue.take(wanted.replica, epoch, Version(0, 0), self._groups - len(numbers))
                numbers += [ticket.number for ticket in tickets]
            send(writer, numbers)

    async def _accept(self, announced: Announcement, places: asyncio.Semaphore) -> None:
        await self._queue.accept(
            announced.replica, 0, announced.sequence, announced.frame, accepted_rows(announced.numbers)
        )
        self._latencies.append(time.monotonic() - announced.handed_over)
        places.release()

    async def _score(self) -> None:
        sequence = 0
        await self._queue.next_epoch("scorer")
        while parts := await self._queue.unscored("scorer", 0, SCORED_AT_ONCE):
            rows = scored_rows(parts)
            self._writing.add(task := asyncio.ensure_future(self._add(sequence, rows)))
            task.add_done_callback(self._writing.discard)
            sequence += 1
        await asyncio.gather(*self._writing)

    async def _add(self, sequence: int, rows: ScoredRows) -> None:
        count = len(rows.number)
        score = Score(status=ScoreStatus.OK, reward=1.0)
        names = [f"g{n}/{s}" for n, s in zip(rows.number.tolist(), rows.sample_index.tolist(), strict=True)]
        batch = scores_batch(names, rows.branch, [score] * count, scorer="scorer", scored_ns=time.time_ns())
        frame = await asyncio.wrap_future(self._scores.append(batch))
        await self._queue.add_scores("scorer", 0, sequence, frame, rows)

    async def _learn(self, steps: int) -> None:
        for step in range(steps):
            lease = await self._queue.lease(step)
            assert lease is not None, "the queue was closed under the learner"
            for index in np.unique(lease.frame_index).tolist():
                touch(self._reader, lease.frames[index])
            await self._queue.commit(step)
            if (step + 1) % STEPS_PER_CHECKPOINT == 0:
                await self._cover(step + 1)

    async def _cover(self, step: int) -> None:
        """What a checkpoint lets go: a running system writes into the memory of the log files that it removed."""
        await self._queue.covered(step)
        going, _ = self._queue.removable(step)
        await asyncio.to_thread(remove_segments, self._run, going)


def scored_rows(parts: list[UnscoredFrame]) -> ScoredRows:
    """A reward of 1 for each row that waits."""
    names = ("number", "sample_index", "branch", "attempt")
    columns = [np.concatenate([getattr(part, name) for part in parts]) for name in names]
    count = len(columns[0])
    return ScoredRows(*columns, valid=np.ones(count, np.bool_), reward=np.ones(count))


def accepted_rows(numbers: list[int]) -> AcceptedRows:
    """What the queue is told of a frame that holds these groups whole."""
    count = len(numbers) * GROUP_SIZE
    return AcceptedRows(
        number=np.repeat(np.array(numbers, np.int64), GROUP_SIZE),
        sample_index=np.tile(np.arange(GROUP_SIZE, dtype=np.int32), len(numbers)),
        branch=np.zeros(count, np.int32),
        attempt=np.zeros(count, np.int32),
        prompt_tokens=np.full(count, PROMPT_TOKENS, np.int32),
        sampled_tokens=np.full(count, TOKENS - PROMPT_TOKENS, np.int32),
        oldest_step=np.zeros(count, np.int64),
        finish=np.ones(count, np.uint8),
    )


def touch(reader: SegmentReader, frame: FrameRef) -> int:
    """Read a frame, verified, and look at every byte of its ids and log-probs."""
    batch = reader.read(frame)
    total = 0
    for name in ("token_ids", "rollout_logprobs"):
        values = batch.column(batch.schema.get_field_index(name)).flatten().to_numpy()
        total ^= int(np.bitwise_xor.reduce(values.view(np.uint64)))
    return total


def main(socket: str, run: str, replica: str, durability: str, frames: str, in_flight: str, pause_s: str) -> None:
    producer = Producer(replica, Path(run), durability, float(pause_s))  # type: ignore[arg-type]
    asyncio.run(producer.run(socket, int(frames), int(in_flight)))


if __name__ == "__main__":
    main(*sys.argv[1:])
