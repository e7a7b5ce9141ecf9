"""A durable queue in a folder of its own and a plain book of what it must hold, for schedules by hypothesis."""

import asyncio
import shutil
import tempfile
from collections.abc import Awaitable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis.stateful import RuleBasedStateMachine

from streamrl.buffers.queue.replay_queue import ReplayQueue
from streamrl.buffers.rows.arrow import scores_batch
from streamrl.buffers.rows.records import AcceptedRows, QueueSettings, ScoredRows, UnscoredFrame
from streamrl.buffers.rows.schema import SCORES
from streamrl.buffers.segments.places import COMPLETIONS_DIR, SCORES_DIR
from streamrl.buffers.segments.writer import SegmentWriter
from streamrl.clock import VirtualClock
from streamrl.types import FrameRef, Score

REPLICAS, SCORER = ["a", "b"], "s"
STOP, ERROR = 0, 3
TOKENS = 3
ROW_BYTES = 50


class Order:
    def at(self, n: int, /) -> tuple[int, int]:
        return divmod(n, 5)


@dataclass
class BookedRow:
    """A row that was acknowledged. verdict: None while unscored, else (valid, reward)."""

    frame: FrameRef
    row: int
    attempt: int
    oldest: int
    verdict: tuple[bool, float] | None = None


@dataclass
class BookedGroup:
    """What a group must be. state: running, ready, leased, trained, or the reason for which it was dropped."""

    attempt: int
    last_step: int
    replica: str | None
    state: str = "running"
    floor: int = 0
    rows: dict[int, BookedRow] = field(default_factory=dict)


def frame_of(rows: int, place: int = 10**6) -> FrameRef:
    return FrameRef(f"{COMPLETIONS_DIR}/r.arrow", 10**4 * place, ROW_BYTES * rows, rows, 7, 9)


def keys_of(part: UnscoredFrame) -> list[tuple[int, int]]:
    return list(zip(part.number.tolist(), part.sample_index.tolist(), strict=True))


def packed_rows(keys: list[tuple[int, int]], attempts: list[int], oldest: list[int], finish: int) -> AcceptedRows:
    count = len(keys)
    return AcceptedRows(
        number=np.array([number for number, _ in keys], np.int64),
        sample_index=np.array([sample for _, sample in keys], np.int32),
        branch=np.zeros(count, np.int32),
        attempt=np.array(attempts, np.int32),
        prompt_tokens=np.full(count, 4, np.int32),
        sampled_tokens=np.full(count, TOKENS, np.int32),
        oldest_step=np.array(oldest, np.int64),
        finish=np.full(count, finish, np.uint8),
    )


def _without(part: UnscoredFrame, numbers: list[int]) -> UnscoredFrame | None:
    """What a scorer has of a frame but the rows of these groups; None when that is nothing."""
    rest = ~np.isin(part.number, numbers)
    columns = {name: getattr(part, name)[rest] for name in ("row", "number", "sample_index", "branch", "attempt")}
    return replace(part, **columns) if rest.any() else None


class BookedQueue(RuleBasedStateMachine):
    """The queue, its scorer and the book. Whoever adds rules does to the book what the queue must do."""

    def begin(self, size: int, per_step: int, staleness: int) -> None:
        self.size, self.per_step, self.staleness = size, per_step, staleness
        self.loop = asyncio.new_event_loop()
        self.folder = Path(tempfile.mkdtemp(prefix="queue-stateful-"))
        self.lives = 0
        self.book: dict[int, BookedGroup] = {}
        self.epoch = dict.fromkeys(REPLICAS, 0)
        self.sequence = dict.fromkeys(REPLICAS, 0)
        self.calls: dict[tuple[str, int], tuple[FrameRef, AcceptedRows]] = {}
        self.frames = 0
        self.rows_gone: set[tuple[int, int, int]] = set()
        self.held: list[UnscoredFrame] = []
        self.lost: list[tuple[int, UnscoredFrame]] = []
        self.step = self.covered = 0
        self.leased: list[int] = []
        self.history: dict[int, list[int]] = {}
        self.run = self.folder / "0"
        self.run.mkdir()
        self.open(0)

    # Around the queue

    def open(self, resume_step: int) -> None:
        self.queue = ReplayQueue.open(
            self.run,
            self.settings(),
            Order(),
            VirtualClock(),
            resume_step,
        )
        self.new_scorer()

    def settings(self) -> QueueSettings:
        return QueueSettings(
            group_size=self.size,
            groups_per_step=self.per_step,
            max_staleness=self.staleness,
            byte_budget=10**9,
            rollout_bytes=1000,
            durability="memory",
            commit_interval_s=0.0,
        )

    def new_scorer(self) -> None:
        """A scorer under the next epoch, with a segment of its own; what the one before had is out again."""
        self.scorer_epoch = self.wait(self.queue.next_epoch(SCORER))
        self.scored = 0
        self.lost += [(self.scorer_epoch - 1, part) for part in self.held]
        self.held = []
        self.scores = SegmentWriter(self.run, SCORES_DIR, SCORER, self.scorer_epoch, SCORES, 2**16, "memory", 0.0)

    def wait(self, call: Awaitable[Any]) -> Any:
        return self.loop.run_until_complete(call)

    def attempt(self, call: Awaitable[Any]) -> Any:
        """What a call that may have to wait gives now; None if it waits, and it is given up then."""

        async def now() -> Any:
            task = asyncio.ensure_future(call)
            await asyncio.sleep(0)
            # Comes back when everything written so far is durable, and wakes those who wait.
            await self.queue.drop([], "nothing")
            for _ in range(10):
                await asyncio.sleep(0)
            if task.done():
                return task.result()
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            return None

        return self.wait(now())

    def teardown(self) -> None:
        if hasattr(self, "queue"):
            self.scores.close()
            self.queue.close()
            self.loop.close()
            shutil.rmtree(self.folder)

    # What the book says

    def in_state(self, state: str) -> list[int]:
        return [number for number, group in self.book.items() if group.state == state]

    def settle(self, number: int) -> None:
        group = self.book[number]
        verdicts = [row.verdict for row in group.rows.values()]
        if group.state == "running" and len(verdicts) == self.size and None not in verdicts:
            group.replica = None
            enough = sum(verdict is not None and verdict[0] for verdict in verdicts) >= min(2, self.size)
            group.state = "ready" if enough else "reward_failed"
        elif len(verdicts) == self.size:
            group.replica = None

    def unscored_rows(self) -> set[tuple[int, int]]:
        return {
            (number, sample)
            for number in self.in_state("running")
            for sample, row in self.book[number].rows.items()
            if row.verdict is None
        }

    def hit_by(self, frames: list[FrameRef], leased: bool) -> list[int]:
        """The groups that are not trained, nor dropped, and have a row in one of the frames."""
        states = {"running", "ready"} | ({"leased"} if leased else set())
        groups = [(number, group) for number, group in sorted(self.book.items()) if group.state in states]
        return [number for number, group in groups if any(row.frame in frames for row in group.rows.values())]

    def lose_rows(self, numbers: list[int]) -> None:
        """These groups are generated again; a lease, and planned steps, that had one of them let go of all."""
        if set(numbers) & set(self.leased):
            for number in self.leased:
                self.book[number].state = "ready"
            self.leased = []
        holding = [step for step, had in self.history.items() if step >= self.step and set(numbers) & set(had)]
        for step in [step for step in self.history if step >= min(holding, default=10**9)]:
            del self.history[step]
        for number in numbers:
            group = self.book[number]
            self.rows_gone.update((number, sample, row.attempt) for sample, row in group.rows.items())
            group.state, group.replica, group.rows = "running", None, {}
            group.last_step = max(group.last_step, self.step + self.staleness)
            group.floor = group.attempt + 1
        self.held = [part for old in self.held if (part := _without(old, numbers)) is not None]

    def verdicts(self, part: UnscoredFrame, valid: list[bool], epoch: int) -> tuple[FrameRef, ScoredRows]:
        """A durable frame of verdicts; each reward occurs once, so that a mixed-up one is seen."""
        rewards = [self.scored + 1000 * epoch + place / 100 for place in range(len(valid))]
        scores = [Score.ok(r) if ok else Score.failed("no") for ok, r in zip(valid, rewards, strict=True)]
        names = [f"{number}/{sample}" for number, sample in keys_of(part)]
        batch = scores_batch(names, part.branch, scores, scorer=SCORER, scored_ns=0)
        columns = part.number, part.sample_index, part.branch, part.attempt, np.array(valid), np.array(rewards)
        return self.scores.append(batch).result(), ScoredRows(*columns)

    def go_to(self, step: int) -> None:
        for number in self.leased:
            self.book[number].state = "ready"
        for later in range(step, self.step):
            for number in self.history[later]:
                self.book[number].state = "ready"
        for earlier in range(self.step, step):
            for number in self.history[earlier]:
                self.book[number].state = "trained"
        self.leased, self.step = [], step
