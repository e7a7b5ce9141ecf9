"""What a replay queue does about prompts that fail and replicas that die: counted durably, and told once.

    controller: died, newer

Guaranteed: a death counts once, in one commit with what fences the replica; what `newer` tells of is durable, and is
told by the process that made its record alone. `close` of the queue wakes whoever waits.
"""

from collections.abc import Callable, Sequence

from streamrl.buffers.index.replay_index import ReplayIndex
from streamrl.buffers.ledger.records import Died, Dropped, Quarantined, Record, Writer
from streamrl.buffers.queue.journal import Journal
from streamrl.buffers.queue.signals import Signal


class QuarantinedPrompts:
    """Part of a `ReplayQueue`, in its event loop. told: those of which the opening made a record. replaced: forgets a
    writer whose epoch was raised; returns its groups. changes: tells when groups may have ended."""

    def __init__(
        self,
        index: ReplayIndex,
        journal: Journal,
        told: Sequence[Quarantined],
        replaced: Callable[[str], list[int]],
        changes: Signal,
    ) -> None:
        self._index = index
        self._journal = journal
        self._told = list(told)
        self._replaced = replaced
        self._changes = changes
        self._closed = False
        self.excused: set[str] = set()
        """Replicas whose last death was the doing of a group."""

    def listed(self) -> list[Quarantined]:
        """All of the run."""
        return self._index.quarantine.listed()

    async def newer(self, known: int) -> list[Quarantined]:
        """Those of this process behind the first `known`, at least one, as soon as there is one; [] once closed."""
        while len(self._told) <= known:
            self._journal.check()
            if self._closed:
                return []
            await self._changes.wait()
        await self._journal.settled()
        return self._told[known:]

    def replace(self, writer: str, epoch: int, died: bool) -> list[int]:
        """Take back what a writer had, whose epoch was raised, and write so; its groups. died: it is a replica that
        did, which counts against them."""
        numbers = self._replaced(writer)
        records: list[Record] = [Writer(writer, epoch)]
        self.excused.discard(writer)
        if died and numbers:
            if self._index.died(numbers) is not None:
                self.excused.add(writer)
            records.append(Died(numbers))
        self._journal.write(*records, *self.by_rule())
        return numbers

    def by_rule(self) -> list[Record]:
        """Records of the groups that the index dropped since the last call, and of what follows from that; to be
        written at once."""
        dropped = [Dropped(numbers, reason) for reason, numbers in self._index.pop_dropped().items()]
        failed = self._index.quarantine.pop_unrecorded()
        self._told += [record for record in failed if isinstance(record, Quarantined)]
        return [*dropped, *failed, *self._index.measured.pop_unrecorded()]

    def close(self) -> None:
        self._closed = True
