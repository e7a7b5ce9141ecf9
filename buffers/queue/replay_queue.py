"""The replay queue: the index, made durable and awaitable. One event loop owns it; calls are batches.

    replica: take -> accept        scorer: unscored -> add_scores        learner: lease -> commit, covered
    client: `submitted` prompts and `trajectories`, of which some groups are

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

from pathlib import Path

from streamrl.buffers.ledger.records import Accepted, Covered, Dropped, Incarnation, Issued, Lost, Scored, Step
from streamrl.buffers.queue.gathering import GatheredTrajectories
from streamrl.buffers.queue.journal import Journal
from streamrl.buffers.queue.late import give_up
from streamrl.buffers.queue.opening import Opened, open_folder
from streamrl.buffers.queue.quarantining import QuarantinedPrompts
from streamrl.buffers.queue.signals import Signal
from streamrl.buffers.queue.submitting import SubmittedPrompts
from streamrl.buffers.queue.takers import Takers
from streamrl.buffers.queue.waits import LearnerWait, Waits
from streamrl.buffers.rows.records import (
    AcceptedRows,
    DataOrder,
    Found,
    Lease,
    OldestRow,
    QueueCounts,
    QueueSettings,
    ScoredRows,
    UnscoredFrame,
)
from streamrl.clock import Clock
from streamrl.errors import ComponentError, DataError
from streamrl.types import FrameRef, Ticket, Version


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

    def __init__(self, settings: QueueSettings, opened: Opened, clock: Clock) -> None:
        self._settings = settings
        self._index = opened.index
        self._fence = opened.fence
        self._retention = opened.retention
        self._journal = Journal(opened.ledger, self._wake, opened.retention.note, opened.published.note)
        self.waits = Waits(clock)
        self._incarnation, self._data_changed = opened.incarnation, opened.data_changed
        self._closed = self._held = False
        self._takers = Takers()
        self._room, self._rows, self._batch = Signal(), Signal(), Signal()
        self.recent = self._index.recent
        self.submitted = SubmittedPrompts(self._index, self._journal, settings, self._room, self._batch)
        self.quarantined = QuarantinedPrompts(self._index, self._journal, opened.quarantined, self._forget, self._batch)
        self.trajectories = GatheredTrajectories(
            self._index, self._journal, opened.published, settings, self._open_for, self._after_rows
        )

    @classmethod
    def open(
        cls,
        run_folder: Path,
        settings: QueueSettings,
        order: DataOrder,
        clock: Clock,
        resume_step: int = 0,
        accept_changed_data: bool = False,
    ) -> "ReplayQueue":
        """Start a queue, or bring back the one whose ledger lies in the run folder.

        resume_step: step of the checkpoint that the learner resumes from. With 0, every step of the ledger is
        planned again, and `resume_from` may still name the checkpoint before the first lease. accept_changed_data: go
        on though the data set is another one: what is complete is trained as it is, unfinished groups begin again.

        Raises:
            DataError: damage in the ledger or in a scores frame. RunFolderError: the ledger of another run, or of
            another data set.
            FencedError, ResourceError: another process opens it too; the disk is full.
        """
        return cls(settings, open_folder(run_folder, settings, order, clock, resume_step, accept_changed_data), clock)

    @property
    def incarnation(self) -> int:
        """0 for a fresh run; one more with each opening and each `resume_from`."""
        return self._incarnation

    def counts(self) -> QueueCounts:
        """The books, now."""
        return self._index.counts(self._incarnation)

    def found(self) -> Found:
        """What a learner that resumes now, before its first lease, begins with."""
        return self._index.found(self._index.next_step, self._data_changed)

    def oldest(self) -> OldestRow | None:
        """The waiting row that was sampled longest ago; looks at every row that waits."""
        return self._index.oldest()

    def overdue(self, limit_s: float) -> list[tuple[int, str]]:
        """As `RunningGroups.overdue`."""
        return self._index.overdue(limit_s)

    # Replicas

    async def take(self, replica: str, writer_epoch: int, serving: Version, room: int) -> list[Ticket]:
        """At least one group to generate and at most `room`, as soon as admission allows; [] once closed or retired.

        Raises:
            FencedError: this replica was replaced.
        """
        while True:
            self._enter(replica, writer_epoch)
            if self._closed or self._takers.is_retired(replica):
                return []
            newest = self._takers.newest(replica, serving)
            tickets = [] if self._held else self._index.issue(replica, newest.step, room)
            if tickets:
                self._journal.write(Issued(replica, tickets))
                self.submitted.freed()
                await self._journal.settled()
                return tickets
            await self.waits.of_replica(self._room)

    def serving(self, replica: str, writer_epoch: int, version: Version) -> None:
        """The replica answers under `version` now: a `take` of its that waits is looked at again. Raises FencedError
        where it was replaced."""
        self._enter(replica, writer_epoch)
        self._takers.serves(replica, version)
        self._room.notify()

    def retire(self, replica: str, writer_epoch: int) -> None:
        """The replica takes no more groups, and may still hand in what it has. Raises FencedError as `serving`."""
        self._enter(replica, writer_epoch)
        self._takers.retire(replica)
        self._room.notify()

    def hold(self, on: bool) -> None:
        """Give out no groups until it is taken back; all else goes on. For a disk that is nearly full."""
        self._held = on
        self._room.notify()

    @property
    def pause(self) -> str:
        """What a full disk keeps the ledger, and so every acknowledgement, waiting for; "" while it does not wait."""
        return self._journal.pause

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
            await self._journal.settled()
            return
        kept = self._index.accept(frame, rows.packed())
        self._fence.mark(replica, sequence)
        if len(kept):
            self._journal.write(Accepted(replica, frame, kept.tobytes()))
        self._after_rows()
        self._rows.notify()
        await self._journal.settled()

    async def release(self, replica: str, new_epoch: int) -> list[int]:
        """Fence what `replica` was, under `new_epoch`; its unfinished groups will be issued again. Returns their
        numbers; durable then.

        Raises:
            FencedError: its epoch is higher already.
        """
        numbers = self._replace(replica, new_epoch)
        await self._journal.settled()
        return numbers

    async def next_epoch(self, writer: str) -> int:
        """Fence every earlier process of this name and return the epoch of the next one, from 0."""
        epoch, _ = await self.replace(writer)
        return epoch

    async def replace(self, writer: str, died: bool = False) -> tuple[int, int]:
        """The same; beside the epoch how many groups it had, which are taken back. died: it was a replica that did,
        which counts against them."""
        epoch = self._fence.epochs().get(writer, -1) + 1
        groups = self._replace(writer, epoch, died)
        await self._journal.settled()
        return epoch, len(groups)

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
            FencedError: this scorer was replaced. DataError: a valid score that is not finite, or lacks a component.
        """
        self._open_for(scorer, writer_epoch)
        if len(rows.number) != frame.num_rows:
            raise DataError(f"{len(rows.number)} verdicts are told of a frame of {frame.num_rows}: {frame.path}")
        if self._fence.seen(scorer, sequence):
            await self._journal.settled()
            return
        kept = self._index.score(rows.packed(), rows.valid, rows.reward, rows.components, rows.reason)
        self._fence.mark(scorer, sequence)
        if len(kept):
            self._journal.write(Scored(scorer, frame, kept.tobytes()))
        self._after_rows()
        await self._journal.settled()

    def requeue_unscored(self, scorer: str) -> int:
        """Hand out again what a lost scorer had; returns how many rows."""
        count = self._index.requeue_unscored(scorer)
        self._rows.notify()
        return count

    # The learner

    async def lease(self, step: int) -> Lease | None:
        """The batch of `step`, as soon as the batch rule allows; None once closed.

        Raises:
            ComponentError: not the next step (after a restart, `resume_from` comes first); or so many groups were
            filtered in a row that the batch may never fill.
        """
        waited = LearnerWait(self.waits)
        while True:
            self._journal.check()
            if self._closed:
                return None
            self.trajectories.gather()
            lease = self._index.lease(step)
            if lease is not None:
                self._room.notify()
                return waited.told(lease)
            late = [] if self._settings.late == "wait" else self._index.late(step)
            if late:
                self._journal.write(give_up(self._index, self._settings.late, late, step))
                self._room.notify()
            else:
                await waited.until(self._batch, self._index.lacks_scores)

    async def commit(self, step: int) -> None:
        """The batch of `step` is trained. Durable when it returns; a second call changes nothing.

        Raises:
            ComponentError: `step` is not leased.
        """
        self._journal.check()
        numbers = self._index.commit(step)
        if numbers is not None:
            self._journal.write(Step(step, numbers))
        await self._journal.settled()

    async def covered(self, step: int) -> None:
        """A durable checkpoint of `step` exists: rows of the steps below it are let go.

        Raises:
            ComponentError: some of those steps are not trained.
        """
        self._journal.check()
        self._index.cover(step)
        self._journal.write(Covered(step))
        self._wake()
        await self._journal.settled()

    def removable(self, oldest: int) -> tuple[list[str], str]:
        """(log files that go now, why they still take more than their budget or ""). oldest: the lowest step that a
        resume could begin with, of a checkpoint that `covered` was told of."""
        growth = max(0, self._settings.byte_budget - self.counts().bytes_held)
        return self._retention.removable(oldest, self._fence.epochs(), growth), self._retention.lack

    async def resume_from(self, step: int) -> int:
        """The learner starts again from a checkpoint of `step`; returns the new incarnation.

        Steps trained after it are leased again, with the same groups.

        Raises:
            StartAgainError: the queue does not have the rows of those steps in memory any more: open it anew.
            ComponentError: the steps before were never trained.
        """
        self._journal.check()
        self._index.go_to(step)
        self._incarnation += 1
        self._journal.write(Incarnation(self._incarnation, step))
        self._wake()
        await self._journal.settled()
        return self._incarnation

    async def drop(self, numbers: list[int], reason: str) -> list[int]:
        """Give up groups that run or are ready; returns those that did. Each gives its place back."""
        self._journal.check()
        dropped = [number for number in numbers if self._index.drop(number, reason)]
        if dropped:
            self._journal.write(Dropped(dropped, reason))
        self._wake()
        await self._journal.settled()
        return dropped

    async def lose(self, frames: list[FrameRef], leased: bool) -> tuple[int, int]:
        """These frames can be read nowhere any more: their node is gone. Groups with rows in them are issued again.

        leased: whether the groups of the lease are among them, which only who has the lease can say; `lease` chooses
        anew then. Groups that are trained stay so. Returns (groups, rows of theirs that are discarded), durable.
        """
        self._journal.check()
        numbers, rows = self._index.lost.find(set(frames), leased), 0
        if numbers:
            step = self._index.next_step
            rows, unplanned = self._index.lost.begin_again(numbers, step)
            self._index.lost.note(len(numbers), rows)
            self._journal.write(Lost(numbers, step, rows, unplanned))
            self._wake()
        await self._journal.settled()
        return len(numbers), rows

    def close(self) -> None:
        """Wake everyone who waits and end the ledger; what was appended is durable then."""
        self._closed = True
        self.submitted.close()
        self.quarantined.close()
        self._wake()
        self._journal.close()

    # Inside

    def _after_rows(self) -> None:
        """Rows or verdicts came: groups may be ready, or dropped by what their scores are."""
        if by_rule := self.quarantined.by_rule():
            self._journal.write(*by_rule)
        if by_rule or self._index.waits_for_rows:
            self._room.notify()
        self._batch.notify()

    def _enter(self, writer: str, epoch: int) -> None:
        """Let a writer act under its epoch; a higher one than before replaces what it was."""
        self._journal.check()
        self._replace(writer, epoch)

    def _open_for(self, writer: str, epoch: int) -> None:
        self._enter(writer, epoch)
        if self._closed:
            raise ComponentError(f"the queue is closed; it takes nothing more from {writer}")

    def _replace(self, writer: str, epoch: int, died: bool = False) -> list[int]:
        if not self._fence.raise_epoch(writer, epoch):
            return []
        numbers = self.quarantined.replace(writer, epoch, died)
        self._wake()
        return numbers

    def _forget(self, writer: str) -> list[int]:
        self._takers.forget(writer)
        self._index.requeue_unscored(writer)
        return self._index.release(writer)

    def _wake(self) -> None:
        for signal in (self._room, self._rows, self._batch):
            signal.notify()
