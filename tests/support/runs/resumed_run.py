"""A run of many short lives in one process: replicas, a scorer and a learner around the real queue, all scripted.

A rollout's length, and so the time that it takes, follows from its prompt and pass alone, and long ones are often in
flight when a life ends. The learner's state is the list of what it trained, so it says by itself what was trained twice
or never; a checkpoint is a copy of it.
"""

import asyncio
import os
import random
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np

from streamrl.buffers.queue.replay_queue import ReplayQueue
from streamrl.buffers.rows.arrow import scores_batch
from streamrl.buffers.rows.records import AcceptedRows, Found, QueueSettings, ScoredRows, UnscoredFrame
from streamrl.buffers.rows.schema import SCORES
from streamrl.buffers.segments.places import COMPLETIONS_DIR, SCORES_DIR, SPARE_DIR
from streamrl.buffers.segments.removal import SegmentRemover
from streamrl.buffers.segments.spare_files import sizes
from streamrl.buffers.segments.writer import SegmentWriter
from streamrl.clock import SystemClock
from streamrl.tasks.order import PromptOrder
from streamrl.types import FrameRef, Score, Ticket, Version

REPLICAS, SCORER = ("rollout-0", "rollout-1"), "reward"
LONGEST = 40
ROW_BYTES = 50
SEGMENT_ROWS = 8
SCORE_SEGMENT_BYTES = 2**13
SPARE_BYTES = 2**14
KEEP = 2

Trained = tuple[int, int, int, int, int]
"""(group, data pass, index of the prompt, sample, length) of a row that was trained."""


@dataclass(frozen=True)
class Shape:
    """How large a run is. Its data set has `prompts` prompts."""

    prompts: int = 20
    steps: int = 100
    groups_per_step: int = 3
    group_size: int = 3
    max_staleness: int = 2
    checkpoint_every: int = 2
    seed: int = 7
    fingerprint: str = "data"
    retain: Literal["all", "covered"] = "all"
    disk_budget: int = 2**62

    @property
    def groups(self) -> int:
        return self.steps * self.groups_per_step

    def rows(self) -> Counter[Trained]:
        """Every row that a run without a break trains, by its data order alone."""
        places = [(number, *self.order().at(number)) for number in range(self.groups)]
        return Counter(
            (*place, sample, length_of(*place[1:], sample)) for place in places for sample in range(self.group_size)
        )

    def order(self) -> PromptOrder:
        return PromptOrder(self.prompts, self.seed)

    def settings(self) -> QueueSettings:
        return QueueSettings(
            group_size=self.group_size,
            groups_per_step=self.groups_per_step,
            max_staleness=self.max_staleness,
            byte_budget=10**9,
            rollout_bytes=1000,
            total_groups=self.groups,
            durability="memory",
            commit_interval_s=0.0,
            fingerprint=self.fingerprint,
            seed=self.seed,
            retain=self.retain,
            disk_budget=self.disk_budget,
        )


def length_of(data_pass: int, data_index: int, sample: int) -> int:
    """Heavy-tailed, from 1 to LONGEST."""
    drawn = np.random.default_rng([data_pass, data_index, sample]).lognormal(1.5, 1.0)
    return int(min(LONGEST, max(1, drawn)))


@dataclass
class ResumedRun:
    """One run; `live` is one life of it.

    Example:
        run = ResumedRun(folder, Shape())
        await run.live(until_step=3)    # ends somewhere in or behind step 3, as by kill -9
        await run.live()                # goes on to the last step
    """

    folder: Path
    shape: Shape
    rng: random.Random = field(default_factory=lambda: random.Random(0))
    checkpoints: list[tuple[int, tuple[Trained, ...]]] = field(default_factory=lambda: [(0, ())])
    """(step, what was trained up to it) of those that are kept, the newest last."""
    found: list[Found] = field(default_factory=list)
    """What each life, and each learner that began again alone, found."""
    issued: list[Ticket] = field(default_factory=list)
    life: int = -1
    sizes: list[int] = field(default_factory=list)
    """Bytes of all log files, after each checkpoint."""

    @property
    def checkpoint(self) -> tuple[int, tuple[Trained, ...]]:
        return self.checkpoints[-1]

    def damage_newest(self) -> None:
        """Have the next life resume from the checkpoint before, if there is one."""
        self.checkpoints = self.checkpoints[: max(1, len(self.checkpoints) - 1)]

    async def live(
        self, until_step: int | None = None, learner_alone: bool = False, accept_changed: bool = False
    ) -> None:
        """Open what is there and train to the end, or to a random moment after `until_step` was reached.

        learner_alone: only the learner ends there, and begins again in the same life, which goes on to the last step.
        """
        self.queue = self.open(accept_changed)
        self.life += 1
        self.found.append(self.queue.found())
        self.begun: set[str] = set()
        self.reached = asyncio.Event()
        self.until = self.shape.steps + 1 if until_step is None else until_step
        others = [asyncio.ensure_future(self._replica(name)) for name in REPLICAS]
        others.append(asyncio.ensure_future(self._score_all()))
        try:
            await self._learn_to(others, learner_alone)
        finally:
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)
            kill(self.queue)

    def open(self, accept_changed: bool = False) -> ReplayQueue:
        """The queue, for the newest checkpoint."""
        shape, step = self.shape, self.checkpoint[0]
        return ReplayQueue.open(self.folder, shape.settings(), shape.order(), SystemClock(), step, accept_changed)

    async def _learn_to(self, others: list["asyncio.Future[None]"], learner_alone: bool) -> None:
        learner = asyncio.ensure_future(self._learn())
        end = asyncio.ensure_future(self._moment())
        await asyncio.wait({learner, end, *others}, return_when=asyncio.FIRST_COMPLETED)
        for task in others:
            if task.done():
                task.result()
        end.cancel()
        if learner.done():
            learner.result()
            return
        learner.cancel()
        await asyncio.gather(learner, return_exceptions=True)
        if learner_alone:
            await self.queue.resume_from(self.checkpoint[0])
            self.found.append(self.queue.found())
            self.until = self.shape.steps + 1
            await self._learn()

    async def _moment(self) -> None:
        """Some moment after the step that was asked for."""
        await self.reached.wait()
        await _turns(self.rng.randrange(3 * LONGEST))

    async def _learn(self) -> None:
        step, trained = self.checkpoint
        remover = SegmentRemover(self.folder, "disk", min(self.shape.disk_budget // 16, SPARE_BYTES))
        while step < self.shape.steps:
            if step >= self.until:
                self.reached.set()
            lease = await self.queue.lease(step)
            assert lease is not None
            for frame in lease.frames:
                assert (self.folder / frame.path).exists(), f"the rows of step {step} in {frame.path} were let go"
            rows = zip(lease.group.tolist(), lease.sample_index.tolist(), lease.sampled_tokens.tolist(), strict=True)
            order = self.shape.order()
            batch = tuple((number, *order.at(number), sample, length) for number, sample, length in rows)
            await self.queue.commit(step)
            step, trained = step + 1, trained + batch
            for name in self.begun:
                self.queue.serving(name, self.life, Version(0, step))
            if step % self.shape.checkpoint_every == 0 or step == self.shape.steps:
                self.checkpoints = [*self.checkpoints, (step, trained)][-KEEP:]
                await self.queue.covered(step)
                going, _ = self.queue.removable(self.checkpoints[0][0])
                await remover.remove(going)
                self.sizes.append(self.log_bytes())

    async def _replica(self, name: str) -> None:
        assert await self.queue.next_epoch(name) == self.life
        self.begun.add(name)
        running: set[asyncio.Future[None]] = set()
        delivery = asyncio.Lock()
        sequence = iter(range(10**6))

        async def roll_out(ticket: Ticket, sample: int) -> None:
            data = self.shape.order().at(ticket.number)
            assert data == (ticket.data_pass, ticket.data_index)
            length = length_of(*data, sample)
            await _turns(length)
            async with delivery:
                await self._deliver(name, next(sequence), ticket, sample, length)

        try:
            while tickets := await self.queue.take(name, self.life, Version(0, self.checkpoint[0]), 4):
                self.issued += tickets
                running |= {
                    asyncio.ensure_future(roll_out(ticket, sample))
                    for ticket in tickets
                    for sample in range(self.shape.group_size)
                }
        finally:
            for task in running:
                task.cancel()
            for end in await asyncio.gather(*running, return_exceptions=True):
                if isinstance(end, Exception):
                    raise end

    async def _deliver(self, name: str, sequence: int, ticket: Ticket, sample: int, length: int) -> None:
        path = f"{COMPLETIONS_DIR}/{name}-{self.life}-{sequence // SEGMENT_ROWS}.arrow"
        (self.folder / path).touch()
        os.truncate(self.folder / path, SEGMENT_ROWS * ROW_BYTES)
        frame = FrameRef(path, 1000 * sequence, ROW_BYTES, 1, 7, 9)
        rows = AcceptedRows(
            number=np.array([ticket.number], np.int64),
            sample_index=np.array([sample], np.int32),
            branch=np.zeros(1, np.int32),
            attempt=np.array([ticket.attempt], np.int32),
            prompt_tokens=np.full(1, 4, np.int32),
            sampled_tokens=np.array([length], np.int32),
            oldest_step=np.array([max(0, ticket.last_step - self.shape.max_staleness)], np.int64),
            finish=np.zeros(1, np.uint8),
        )
        await self.queue.accept(name, self.life, sequence, frame, rows)

    def log_bytes(self) -> int:
        """Bytes of all log files, those that are kept to be written over among them."""
        logs = [path for folder in (COMPLETIONS_DIR, SCORES_DIR) for path in (self.folder / folder).iterdir()]
        return sum(path.stat().st_size for path in logs) + sum(size for _, size in sizes(self.folder / SPARE_DIR))

    async def _score_all(self) -> None:
        assert await self.queue.next_epoch(SCORER) == self.life
        log = SegmentWriter(self.folder, SCORES_DIR, SCORER, self.life, SCORES, SCORE_SEGMENT_BYTES, "memory", 0.0)
        sequence = 0
        try:
            while frames := await self.queue.unscored(SCORER, self.life, 100):
                for part in frames:
                    await self._score(log, sequence, part)
                    sequence += 1
        finally:
            log._committer.close()

    async def _score(self, log: SegmentWriter, sequence: int, part: UnscoredFrame) -> None:
        keys = list(zip(part.number.tolist(), part.sample_index.tolist(), strict=True))
        rewards = [number + sample / 10 for number, sample in keys]
        names = [f"{number}/{sample}" for number, sample in keys]
        verdicts = [Score.ok(reward) for reward in rewards]
        batch = scores_batch(names, part.branch, verdicts, scorer=SCORER, scored_ns=0)
        frame = await asyncio.wrap_future(log.append(batch))
        columns = part.number, part.sample_index, part.branch, part.attempt
        scored = ScoredRows(*columns, np.ones(len(keys), np.bool_), np.array(rewards))
        await self.queue.add_scores(SCORER, self.life, sequence, frame, scored)


def kill(queue: ReplayQueue) -> None:
    """End it as `kill -9` would: the ledger keeps what was committed, nothing is closed or cut."""
    queue._journal._ledger._committer.close()


async def _turns(count: int) -> None:
    """Let so many turns of the event loop pass: the unit of a rollout's length."""
    for _ in range(count):
        await asyncio.sleep(0)
