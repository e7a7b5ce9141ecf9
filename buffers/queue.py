"""The replay queue: the index, made durable and awaitable. One event loop owns it; calls are batches.

    replica: take -> accept        scorer: unscored -> add_scores        learner: lease -> commit, covered

Guaranteed:
* What `accept`, `add_scores`, `commit` acknowledged survives, at the level of `settings.durability`; what
  `take` returned was durably issued before, so no number is given out twice.
* Waiting calls sleep until something changes. `close` wakes each of them: `take` and `unscored` return [],
  `lease` returns None. A failure of the ledger wakes them with that failure.
* A call that is repeated, with the same (writer, epoch, sequence) or the same rows, changes nothing and is
  acknowledged when the first one is durable. A writer of a lower epoch is fenced.
The queue knows no tokens and no texts: it passes references to frames, and never reads completions.

Steps are named by what the learner holds: `lease(s)` is the batch that turns step s into s + 1, and a
checkpoint of step s covers the leases below s.
"""

import asyncio
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Final

from buffers.fence import WriterFence
from buffers.index import REWARD_FAILED, ReplayIndex
from buffers.ledger import Ledger, read_ledger
from buffers.ledger_records import (
    LEDGER_SCHEMA,
    Accepted,
    Covered,
    Dropped,
    Incarnation,
    Issued,
    Record,
    RunHeader,
    Scored,
    Step,
    Withdrawn,
    Writer,
)
from buffers.records import (
    AcceptedRows,
    DataOrder,
    Lease,
    QueueCounts,
    QueueSettings,
    ScoredRows,
    UnscoredFrame,
)
from buffers.recovery import recover, survey
from buffers.segment_reader import SegmentReader
from buffers.signals import Signal
from streamrl.clock import Clock
from streamrl.errors import ComponentError, DataError, StreamRLError
from streamrl.types import FrameRef, Ticket, Version

LEDGER_DIR: Final = "queue/ledger"
COMPLETIONS_DIR: Final = "queue/completions"
SCORES_DIR: Final = "queue/scores"
LATE: Final = "late"
"""Reason of a group that was dropped because the next batch could not wait for it (`late = "drop"`)."""


class ReplayQueue:
    """Open it with `open`.

    Example:
        queue = ReplayQueue.open(run_folder, settings, order, SystemClock())
        tickets = await queue.take("replica-0", 0, Version(0, 0), room=8)
        await queue.accept("replica-0", 0, 0, frame, AcceptedRows.of(rows, numbers))
        lease = await queue.lease(0)
        await queue.commit(0)
        queue.close()
    """

    def __init__(
        self, settings: QueueSettings, index: ReplayIndex, fence: WriterFence, ledger: Ledger, clock: Clock
    ) -> None:
        self._settings = settings
        self._index = index
        self._fence = fence
        self._ledger = ledger
        self._clock = clock
        self._incarnation = 0
        self._closed = False
        self._failure: StreamRLError | None = None
        self._last_write: Future[None] | None = None
        self._serving: dict[str, Version] = {}
        self._room = Signal()
        self._rows = Signal()
        self._batch = Signal()

    @classmethod
    def open(
        cls, run_folder: Path, settings: QueueSettings, order: DataOrder, clock: Clock, resume_step: int = 0
    ) -> "ReplayQueue":
        """Start a queue, or bring back the one whose ledger lies in the run folder.

        resume_step: step of the checkpoint that the learner resumes from. With 0, every step of the ledger is
        planned again, and `resume_from` may still name the checkpoint before the first lease.

        Raises:
            DataError: damage in the ledger or in a scores frame. RunFolderError: the ledger of another run.
            FencedError, ResourceError: another process opens it too; the disk is full.
        """
        folder = run_folder / LEDGER_DIR
        for relative in (COMPLETIONS_DIR, SCORES_DIR):
            (run_folder / relative).mkdir(parents=True, exist_ok=True)
        files = read_ledger(folder) if folder.exists() else []
        index, fence = ReplayIndex(settings, order, clock), WriterFence()
        history = survey(files, settings)
        recover(files, history, resume_step, index, fence, SegmentReader(run_folder))
        header = RunHeader(
            LEDGER_SCHEMA,
            settings.fingerprint,
            settings.seed,
            settings.group_size,
            files[-1].good_bytes if files else -1,
        )
        ledger = Ledger(folder, header, durability=settings.durability, commit_interval_s=settings.commit_interval_s)
        queue = cls(settings, index, fence, ledger, clock)
        queue._incarnation = history.incarnation + 1
        ledger.append(Incarnation(queue._incarnation, resume_step)).result()
        return queue

    @property
    def incarnation(self) -> int:
        """0 for a fresh run; one more with each opening and each `resume_from`."""
        return self._incarnation

    @property
    def next_step(self) -> int:
        """The step whose lease comes next."""
        return self._index.next_step

    def counts(self) -> QueueCounts:
        """The books, now."""
        return self._index.counts(self._incarnation)

    def overdue(self, limit_s: float) -> list[tuple[int, str]]:
        """(number, replica) of running groups issued more than `limit_s` ago; "" where no replica has it."""
        return self._index.overdue(limit_s)

    # Replicas

    async def take(self, replica: str, writer_epoch: int, serving: Version, room: int) -> list[Ticket]:
        """At least one group to generate and at most `room`, as soon as admission allows; [] once closed.

        Raises:
            FencedError: this replica was replaced.
        """
        while True:
            self._enter(replica, writer_epoch)
            if self._closed:
                return []
            newest = max(serving, self._serving.get(replica, serving))
            tickets = self._index.issue(replica, newest.step, room)
            if tickets:
                self._write(Issued(replica, tickets))
                await self._settled()
                return tickets
            await self._room.wait()

    def serving(self, replica: str, writer_epoch: int, version: Version) -> None:
        """The replica answers under `version` now: a `take` of its that waits is looked at again.

        Raises:
            FencedError: this replica was replaced.
        """
        self._enter(replica, writer_epoch)
        self._serving[replica] = version
        self._room.notify()

    async def accept(self, replica: str, writer_epoch: int, sequence: int, frame: FrameRef, rows: AcceptedRows) -> None:
        """Take the rows of a durable frame of completions; returns when the acceptance is durable.

        sequence: counts the replica's accepts under this epoch, from 0. Rollouts that ended as abort or error
        get a failed score at once.

        Raises:
            FencedError: this replica was replaced. DataError: rows that cannot be; nothing was taken.
        """
        self._open_for(replica, writer_epoch)
        if len(rows.number) != frame.num_rows:
            raise DataError(f"{len(rows.number)} rows are told of a frame of {frame.num_rows}: {frame.path}")
        if self._fence.seen(replica, sequence):
            await self._settled()
            return
        kept = self._index.accept(frame, rows.packed())
        self._fence.mark(replica, sequence)
        if len(kept):
            self._write(Accepted(replica, frame, kept.tobytes()))
        self._after_rows()
        self._rows.notify()
        await self._settled()

    async def release(self, replica: str, new_epoch: int) -> list[int]:
        """Fence what `replica` was, under `new_epoch`; its unfinished groups will be issued again.

        Returns their numbers. Durable when it returns.

        Raises:
            FencedError: its epoch is higher already.
        """
        numbers = self._replace(replica, new_epoch)
        await self._settled()
        return numbers

    async def next_epoch(self, writer: str) -> int:
        """Fence every earlier process of this name and return the epoch of the next one, from 0."""
        epoch = self._fence.epochs().get(writer, -1) + 1
        self._replace(writer, epoch)
        await self._settled()
        return epoch

    # Scorers

    async def unscored(self, scorer: str, writer_epoch: int, max_rows: int) -> list[UnscoredFrame]:
        """Rows to score, at least one and at most `max_rows`, as soon as there are any; [] once closed.

        Raises:
            FencedError: this scorer was replaced.
        """
        while True:
            self._enter(scorer, writer_epoch)
            if self._closed:
                return []
            frames = self._index.unscored(scorer, max_rows)
            if frames:
                return frames
            await self._rows.wait()

    async def add_scores(
        self, scorer: str, writer_epoch: int, sequence: int, frame: FrameRef, rows: ScoredRows
    ) -> None:
        """Take the verdicts of a durable frame of scores; returns when that is durable.

        Raises:
            FencedError: this scorer was replaced. DataError: a valid score that is not finite.
        """
        self._open_for(scorer, writer_epoch)
        if len(rows.number) != frame.num_rows:
            raise DataError(f"{len(rows.number)} verdicts are told of a frame of {frame.num_rows}: {frame.path}")
        if self._fence.seen(scorer, sequence):
            await self._settled()
            return
        kept = self._index.score(rows.packed(), rows.valid, rows.reward)
        self._fence.mark(scorer, sequence)
        if len(kept):
            self._write(Scored(scorer, frame, kept.tobytes()))
        self._after_rows()
        await self._settled()

    def requeue_unscored(self, scorer: str) -> int:
        """Hand out again what a lost scorer had; returns how many rows."""
        count = self._index.requeue_unscored(scorer)
        self._rows.notify()
        return count

    # The learner

    async def lease(self, step: int) -> Lease | None:
        """The batch of `step`, as soon as the batch rule allows; None once closed.

        Raises:
            ComponentError: not the next step (after a restart, `resume_from` comes first).
        """
        started = self._clock.now()
        while True:
            self._raise_failure()
            if self._closed:
                return None
            lease = self._index.lease(step)
            if lease is not None:
                self._room.notify()
                return replace(lease, waited_s=self._clock.now() - started)
            late = [] if self._settings.late == "wait" else self._index.late(step)
            if late:
                self._give_up(late, step)
            else:
                await self._batch.wait()

    async def commit(self, step: int) -> None:
        """The batch of `step` is trained. Durable when it returns; a second call changes nothing.

        Raises:
            ComponentError: `step` is not leased.
        """
        self._raise_failure()
        numbers = self._index.commit(step)
        if numbers is not None:
            self._write(Step(step, numbers))
        await self._settled()

    async def covered(self, step: int) -> None:
        """A durable checkpoint of `step` exists: rows of the steps below it are let go.

        Raises:
            ComponentError: some of those steps are not trained.
        """
        self._raise_failure()
        self._index.cover(step)
        self._write(Covered(step))
        self._room.notify()
        await self._settled()

    async def resume_from(self, step: int) -> int:
        """The learner starts again from a checkpoint of `step`; returns the new incarnation.

        Steps trained after it are leased again, with the same groups.

        Raises:
            ComponentError: the queue does not have the rows of those steps any more: open it anew.
        """
        self._raise_failure()
        self._index.go_to(step)
        self._incarnation += 1
        self._write(Incarnation(self._incarnation, step))
        self._wake()
        await self._settled()
        return self._incarnation

    async def drop(self, numbers: list[int], reason: str) -> list[int]:
        """Give up groups that run or are ready; returns those that did. Each gives its place back."""
        self._raise_failure()
        dropped = [number for number in numbers if self._index.drop(number, reason)]
        if dropped:
            self._write(Dropped(dropped, reason))
        self._wake()
        await self._settled()
        return dropped

    def close(self) -> None:
        """Wake everyone who waits and end the ledger; what was appended is durable then."""
        self._closed = True
        self._wake()
        self._ledger.close()

    # Inside

    def _give_up(self, numbers: list[int], step: int) -> None:
        """Take late groups out of the way of a batch: for good, or to be generated again."""
        if self._settings.late == "drop":
            for number in numbers:
                self._index.drop(number, LATE)
            self._write(Dropped(numbers, LATE))
        else:
            for number in numbers:
                self._index.withdraw(number, step)
            self._write(Withdrawn(numbers, step))
        self._room.notify()

    def _after_rows(self) -> None:
        """Rows or verdicts came: groups may be ready, or lost because too few of their scores are valid."""
        failed = self._index.pop_failed()
        if failed:
            self._write(Dropped(failed, REWARD_FAILED))
            self._room.notify()
        self._batch.notify()

    def _enter(self, writer: str, epoch: int) -> None:
        """Let a writer act under its epoch; a higher one than before replaces what it was."""
        self._raise_failure()
        self._replace(writer, epoch)

    def _open_for(self, writer: str, epoch: int) -> None:
        self._enter(writer, epoch)
        if self._closed:
            raise ComponentError(f"the queue is closed; it takes nothing more from {writer}")

    def _replace(self, writer: str, epoch: int) -> list[int]:
        if not self._fence.raise_epoch(writer, epoch):
            return []
        self._serving.pop(writer, None)
        numbers = self._index.release(writer)
        self._index.requeue_unscored(writer)
        self._write(Writer(writer, epoch))
        self._room.notify()
        self._rows.notify()
        return numbers

    def _write(self, record: Record) -> None:
        """Append, in the order of the index's changes: no await may lie between a change and its record."""
        try:
            self._last_write = self._ledger.append(record)
        except StreamRLError as error:
            self._fail(error)
            raise

    async def _settled(self) -> None:
        """Everything that was written so far is durable."""
        if self._last_write is None:
            return
        try:
            await asyncio.wrap_future(self._last_write)
        except StreamRLError as error:
            self._fail(error)
            raise

    def _fail(self, error: StreamRLError) -> None:
        """The index is ahead of the ledger now: nothing more may be acknowledged."""
        self._failure = self._failure or error
        self._wake()

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _wake(self) -> None:
        for signal in (self._room, self._rows, self._batch):
            signal.notify()
