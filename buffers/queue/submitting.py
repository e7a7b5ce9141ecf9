"""Prompts of clients in the replay queue: taken, given out as groups, ended; durable and awaitable like the rest of it.

    client: submit -> ends, ended        replica: prompts        client: cancel

Guaranteed: what `submit` acknowledged is trained, or dropped with a reason, whatever is killed meanwhile; submitted
again under its key it is the same prompt. The prompts that wait are bounded in bytes: `submit` waits for room. `close`
wakes each waiting call: `submit` raises, `ends` returns [].
"""

from collections.abc import Sequence

from streamrl.buffers.index.replay_index import ReplayIndex
from streamrl.buffers.index.submitted.submissions import Outcome, SubmissionState, num_bytes
from streamrl.buffers.ledger.records import Cancelled, Dropped, Submitted
from streamrl.buffers.queue.journal import Journal
from streamrl.buffers.queue.signals import Signal
from streamrl.buffers.rows.records import QueueSettings
from streamrl.errors import ComponentError
from streamrl.tasks.base import StreamPrompt, SubmittedPrompt

CANCELLED = "cancelled"


class SubmittedPrompts:
    """Part of a `ReplayQueue`, in its event loop. room: told when there is something to give out. changes: tells when
    groups may have ended."""

    def __init__(
        self, index: ReplayIndex, journal: Journal, settings: QueueSettings, room: Signal, changes: Signal
    ) -> None:
        self._index = index
        self._submissions = index.submissions
        self._journal = journal
        self._byte_limit = settings.submitted_bytes
        self._room = room
        self._changes = changes
        self._taken = Signal()
        self._closed = False

    async def submit(self, stream: str, asked: Sequence[SubmittedPrompt]) -> list[int]:
        """Take prompts, as soon as there is room for them; their numbers, when they are durable. One whose key is known
        is not taken again, and has the number that it had.

        Raises:
            ComponentError: the queue was closed meanwhile.
        """
        while self._submissions.waiting_bytes and self._too_much(stream, asked):
            self._check()
            await self._taken.wait()
        self._check()
        if fresh := self._submissions.unknown(stream, asked):
            self._submissions.add(stream, fresh)
            self._journal.write(Submitted(stream, fresh))
            self._room.notify()
        numbers = self._submissions.add(stream, asked)
        await self._journal.settled()
        return numbers

    def known(self, stream: str, keys: Sequence[str]) -> list[int | None]:
        """The numbers of the prompts of these keys; None for one that nobody submitted."""
        return self._submissions.known(stream, keys)

    def prompts(self, items: Sequence[int]) -> list[StreamPrompt | None]:
        """The prompts of these numbers; None for one whose group has ended meanwhile. Raises DataError for a number
        that nobody got."""
        return [self._submissions.prompt(item) for item in items]

    async def ended(self, items: Sequence[int]) -> list[Outcome]:
        """Those among `items` that have ended by now. What is told of is durable. Raises DataError for a number that
        nobody got."""
        self._journal.check()
        found = self._submissions.ended(items)
        await self._journal.settled()
        return found

    async def ends(self, after: int) -> list[int]:
        """Which prompts ended, in that order, without the first `after` of them, as soon as there is one more; [] once
        closed. It is counted since this queue was opened: whoever follows counts what it was told."""
        while not (found := self._submissions.ends(after)):
            self._journal.check()
            if self._closed:
                return []
            await self._changes.wait()
        return found

    async def cancel(self, items: Sequence[int]) -> list[tuple[int, str]]:
        """Give up those that have not ended. Returns (group, replica) of those that ran: "" where no replica has it."""
        self._check()
        of = self._submissions
        waiting = [item for item in items if of.outcome(item).state is SubmissionState.WAITING]
        running = [of.outcome(item).group for item in items if of.outcome(item).state is SubmissionState.RUNNING]
        had = [(number, self._index.replica_of(number)) for number in running]
        for item in waiting:
            of.dropped(item, CANCELLED)
        if waiting:
            self._journal.write(Cancelled(waiting, CANCELLED))
        dropped = [number for number in running if self._index.drop(number, CANCELLED)]
        if dropped:
            self._journal.write(Dropped(dropped, CANCELLED))
        self.freed()
        self._room.notify()
        self._changes.notify()
        await self._journal.settled()
        return had

    def freed(self) -> None:
        """Some that waited do not any more."""
        self._taken.notify()

    def close(self) -> None:
        self._closed = True
        self._taken.notify()

    def _too_much(self, stream: str, asked: Sequence[SubmittedPrompt]) -> bool:
        fresh = self._submissions.unknown(stream, asked)
        return self._submissions.waiting_bytes + sum(map(num_bytes, fresh)) > self._byte_limit

    def _check(self) -> None:
        self._journal.check()
        if self._closed:
            raise ComponentError("the queue is closed; it takes no more prompts")
