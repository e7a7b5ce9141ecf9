"""A replay queue in a folder, with the writers of its replica and its scorer."""

import asyncio
import os
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from streamrl.buffers.ledger.ledger import Ledger
from streamrl.buffers.queue.replay_queue import ReplayQueue
from streamrl.buffers.rows.arrow import scores_batch
from streamrl.buffers.rows.records import AcceptedRows, QueueSettings, ScoredRows
from streamrl.buffers.rows.schema import SCORES
from streamrl.buffers.segments.places import COMPLETIONS_DIR, SCORES_DIR
from streamrl.buffers.segments.writer import SegmentWriter
from streamrl.clock import VirtualClock
from streamrl.rewards.base import component_columns
from streamrl.types import FrameRef, Score, Version

GROUP_SIZE = 2


class Order:
    def at(self, n: int, /) -> tuple[int, int]:
        return divmod(n, 5)


def queue_settings(**changes) -> QueueSettings:
    values = {
        "group_size": GROUP_SIZE,
        "groups_per_step": 2,
        "max_staleness": 1,
        "byte_budget": 10**9,
        "rollout_bytes": 1000,
        "commit_interval_s": 0.0,
        "fingerprint": "data",
    }
    return QueueSettings(**(values | changes))


def open_queue(run: Path, *, resume_step=0, **changes) -> ReplayQueue:
    return ReplayQueue.open(run, queue_settings(**changes), Order(), VirtualClock(), resume_step)


def kill(queue: ReplayQueue) -> None:
    """End it as `kill -9` would: the ledger keeps what was committed, its file is not ended or cut."""
    leave(queue._journal._ledger)


def leave(ledger: Ledger) -> None:
    """As a killed process leaves it: preallocated zeros at the end. The kernel closes what such a process held."""
    ledger._committer.close()
    if not ledger._closed:
        ledger._closed = True
        os.close(ledger._fd)


@dataclass
class Parts:
    """A replica, a scorer and a learner of the smallest kind, around one queue."""

    queue: ReplayQueue
    run: Path
    epoch: int = 0
    sequence: int = 0
    scored: int = 0
    components: tuple[str, ...] = ()
    leases: list = field(default_factory=list)

    def __post_init__(self):
        self.scores = SegmentWriter(
            self.run, SCORES_DIR, f"reward-{id(self)}", self.epoch, SCORES, 2**16, "memory", 0.0
        )

    def rows(self, keys, *, attempt=0, oldest=0, finish=0) -> AcceptedRows:
        count = len(keys)
        return AcceptedRows(
            number=np.array([number for number, _ in keys], np.int64),
            sample_index=np.array([sample for _, sample in keys], np.int32),
            branch=np.zeros(count, np.int32),
            attempt=np.full(count, attempt, np.int32),
            prompt_tokens=np.full(count, 4, np.int32),
            sampled_tokens=np.full(count, 3, np.int32),
            oldest_step=np.full(count, oldest, np.int64),
            finish=np.full(count, finish, np.uint8),
        )

    async def accept(self, keys, *, sequence=None, **options):
        place = self.sequence if sequence is None else sequence
        frame = FrameRef(f"{COMPLETIONS_DIR}/r.arrow", 1000 * place, 50 * len(keys), len(keys), 7, 9)
        self.sequence = max(self.sequence, place + 1)
        await self.queue.accept("r", self.epoch, place, frame, self.rows(keys, **options))

    async def score_waiting(self, *, reward=lambda number, sample: number + sample / 10, parts=lambda *_: {}):
        """Score what waits; a reward of None is a failed score. parts: the components of each."""
        while self.queue.counts().rows_unscored:
            for part in await self.queue.unscored("reward", self.epoch, 100):
                pairs = list(zip(part.number.tolist(), part.sample_index.tolist(), strict=True))
                values = [reward(number, sample) for number, sample in pairs]
                await self.add_scores(part, values, [parts(number, sample) for number, sample in pairs])

    async def add_scores(self, part, values, components=None):
        given = zip(values, components or [{}] * len(values), strict=True)
        verdicts = [Score.failed("no") if value is None else Score.ok(float(value), one) for value, one in given]
        names = [f"{n}/{s}" for n, s in zip(part.number, part.sample_index, strict=True)]
        frame = self.scores.append(scores_batch(names, part.branch, verdicts, scorer="reward", scored_ns=0)).result()
        rows = ScoredRows(
            part.number,
            part.sample_index,
            part.branch,
            part.attempt,
            np.array([value is not None for value in values]),
            np.array([np.nan if value is None else value for value in values], np.float64),
            component_columns(verdicts, self.components) if self.components else None,
            [verdict.reason for verdict in verdicts],
        )
        self.scored += 1
        await self.queue.add_scores("reward", self.epoch, self.scored - 1, frame, rows)

    async def one_step(self, step):
        """Take, accept, score, lease and commit one step."""
        for ticket in await self.queue.take("r", self.epoch, Version(0, step), 2):
            await self.accept(both(ticket.number), oldest=step)
        await self.score_waiting()
        lease = await self.queue.lease(step)
        self.leases.append(lease)
        await self.queue.commit(step)


def both(number):
    return [(number, 0), (number, 1)]


def groups_of(lease) -> list[int]:
    return sorted(set(lease.group.tolist()))


async def turn():
    """Let every task that can run do so."""
    for _ in range(20):
        await asyncio.sleep(0)
