"""The consumer of the queue's benchmark: one process around the real replay queue, for one producer process or more.

The consumer hosts the queue: it accepts, has rows scored, leases, reads every byte of every token column, commits, and
removes what a checkpoint would let go. The scorer is a process of its own, as the reward stage is. Nothing is left out
but Ray's calls between them.
"""

import asyncio
import os
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np

from queue_parts.wire import (
    COMMIT_INTERVAL_S,
    GROUP_SIZE,
    PROMPT_TOKENS,
    RECORD_BYTES,
    SCORER,
    TOKENS,
    Announcement,
    Unscored,
    Verdicts,
    Wanted,
    processor_s,
    receive,
    send,
)
from streamrl.buffers.queue.replay_queue import ReplayQueue
from streamrl.buffers.rows.records import AcceptedRows, QueueSettings, UnscoredFrame
from streamrl.buffers.segments.reader import SegmentReader
from streamrl.buffers.segments.removal import SegmentRemover
from streamrl.buffers.segments.writer import Durability
from streamrl.clock import SystemClock
from streamrl.types import FrameRef, Version

GROUPS_PER_STEP = 64
SCORED_AT_ONCE = 1024
STEPS_PER_CHECKPOINT = 16
COMMITS_AT_ONCE = 4
"""Commits on their way to disk. The learner publishes while its commit becomes durable, and its step takes longer than
that; a step of this consumer takes less."""
SPARE_BYTES = 2**30
"""Of log files that are kept to be written over: what a run has with the default budget."""
FRAMES_OUT = 24
"""Frames whose groups a producer has at once."""


class Order:
    """An endless data set of a thousand prompts."""

    def at(self, n: int, /) -> tuple[int, int]:
        return divmod(n, 1000)


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


@dataclass
class Measured:
    """What one run gave. cpu_s: of producers and consumer. consumer_cpu_s: of the latter alone. latencies_s: from
    handing a frame's rows to the writer to their durable acceptance."""

    records: int
    wall_s: float
    cpu_s: float
    consumer_cpu_s: float
    scorer_cpu_s: float
    latencies_s: list[float]


class Consumer:
    """Hosts the queue, and is its learner."""

    def __init__(
        self, run: Path, durability: Durability, rows_per_frame: int, retain: Literal["all", "covered"] = "covered"
    ) -> None:
        self._run = run
        self._groups = rows_per_frame // GROUP_SIZE
        self._queue = ReplayQueue.open(run, settings(durability, retain), Order(), SystemClock())
        self._reader = SegmentReader(run)
        self._remover = SegmentRemover(run, durability, SPARE_BYTES)
        self._steps = 0
        self._started = self._started_cpu_s = 0.0
        self._latencies: list[float] = []
        self._producers_cpu = self._scorer_cpu = 0.0
        self._adding: set[asyncio.Task[None]] = set()

    async def consume(self, start: Callable[[str], Any], producers: int, frames_each: int) -> Measured:
        """Serve `producers` that `start(socket)` starts; the clock runs from the first groups given out."""
        total = producers * frames_each
        steps, over = divmod(total * self._groups, GROUPS_PER_STEP)
        assert not over, f"{total} frames are not a whole number of steps: the last batch would never fill"
        ready = asyncio.Barrier(producers + 1)
        socket = str(self._run / "line")
        served: dict[str, asyncio.Future[None]] = {}

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            wanted = msgspec.msgpack.decode(await receive(reader), type=Wanted)
            done = served[wanted.replica] = asyncio.get_running_loop().create_future()
            epoch = await self._queue.next_epoch(wanted.replica)
            await ready.wait()
            if not self._started:
                self._started, self._started_cpu_s = time.monotonic(), processor_s()
            send(writer, "begin")
            if wanted.replica == SCORER:
                await self._have_scored(reader, writer)
            else:
                await self._serve(reader, writer, wanted, epoch)
            writer.close()
            done.set_result(None)

        server = await asyncio.start_unix_server(serve, socket)
        start(socket)
        await self._learn(steps)
        wall_s = time.monotonic() - self._started
        cpu_s = processor_s() - self._started_cpu_s
        scored = served.pop(SCORER)
        await asyncio.gather(*served.values())
        server.close()
        self._queue.close()
        await scored
        # The last files that went are read no more; in a run that goes on their readers let them go with newer ones.
        self._reader = SegmentReader(self._run)
        await self._remover.freed()
        os.unlink(socket)
        records = total * self._groups * GROUP_SIZE
        return Measured(records, wall_s, cpu_s + self._producers_cpu, cpu_s, self._scorer_cpu, self._latencies)

    async def _serve(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, wanted: Wanted, epoch: int
    ) -> None:
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

    async def _give(self, writer: asyncio.StreamWriter, wanted: Wanted, epoch: int, places: asyncio.Semaphore) -> None:
        """Groups for as many frames as the replica has room for, as it asks for them: the answer waits for the disk."""
        given = 0
        while given < wanted.frames:
            await places.acquire()
            frames = 1
            while given + frames < wanted.frames and not places.locked():
                await places.acquire()
                frames += 1
            given += frames
            numbers: list[int] = []
            while len(numbers) < frames * self._groups:
                room = frames * self._groups - len(numbers)
                numbers += [t.number for t in await self._queue.take(wanted.replica, epoch, Version(0, 0), room)]
            for first in range(0, len(numbers), self._groups):
                send(writer, numbers[first : first + self._groups])

    async def _accept(self, announced: Announcement, places: asyncio.Semaphore) -> None:
        await self._queue.accept(
            announced.replica, 0, announced.sequence, announced.frame, accepted_rows(announced.numbers)
        )
        self._latencies.append(time.monotonic() - announced.handed_over)
        places.release()

    async def _have_scored(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asking = asyncio.ensure_future(self._ask(writer))
        while (verdicts := msgspec.msgpack.decode(await receive(reader), type=Verdicts | None)) is not None:
            self._adding.add(task := asyncio.ensure_future(self._add(verdicts)))
            task.add_done_callback(self._adding.discard)
        await asyncio.gather(asking, *self._adding)
        self._scorer_cpu = msgspec.msgpack.decode(await receive(reader), type=Wanted).cpu_s

    async def _ask(self, writer: asyncio.StreamWriter) -> None:
        while parts := await self._queue.unscored(SCORER, 0, SCORED_AT_ONCE):
            send(writer, unscored(parts))
        send(writer, Unscored())

    async def _add(self, verdicts: Verdicts) -> None:
        await self._queue.add_scores(SCORER, 0, verdicts.sequence, verdicts.frame, verdicts.scored_rows())

    async def _learn(self, steps: int) -> None:
        covering = asyncio.ensure_future(asyncio.sleep(0))
        committing: deque[asyncio.Future[None]] = deque()
        for step in range(steps):
            lease = await self._queue.lease(step)
            assert lease is not None, "the queue was closed under the learner"
            for index in np.unique(lease.frame_index).tolist():
                touch(self._reader, lease.frames[index])
            committing.append(asyncio.ensure_future(self._queue.commit(step)))
            if len(committing) > COMMITS_AT_ONCE:
                await committing.popleft()
            await asyncio.sleep(0)
            if (step + 1) % STEPS_PER_CHECKPOINT == 0:
                await covering
                covering = asyncio.ensure_future(self._cover(step + 1))
        await asyncio.gather(*committing, covering)

    async def _cover(self, step: int) -> None:
        """What a checkpoint lets go: a running system writes into the memory of the log files that it removed."""
        await self._queue.covered(step)
        going, _ = self._queue.removable(step)
        await self._remover.remove(going)


def unscored(parts: list[UnscoredFrame]) -> Unscored:
    """The names of the rows that wait."""
    return Unscored(*(b"".join(getattr(part, name).tobytes() for part in parts) for name in Unscored.__struct_fields__))


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
