"""Trajectories of clients in the replay queue: taken with their rewards, gathered to groups, trained like all others.

    gateway: place -> (rows and verdicts written) -> offer        learner: `gather` before each batch is chosen

Guaranteed: what `offer` acknowledged is trained once, or declined with a reason, whatever is killed meanwhile; offered
again under its key it is the same trajectory. A group is made of `group_size` trajectories of one name, in the order
in which they came, in one commit of the ledger: no reader and no recovery ever sees half of it. It is made only if it
can be trained within the bound of staleness and its bytes fit, as if a replica had begun it under the version of its
oldest token; until then it waits, and it is declined once that token is too old. What waits is bounded in bytes.
"""

from collections.abc import Callable, Sequence
from typing import Final

import msgspec
import numpy as np

from streamrl.buffers.index.published import PublishedVersions
from streamrl.buffers.index.replay_index import ReplayIndex
from streamrl.buffers.index.submitted.offered import Standing, num_bytes, oldest_step, rows_of
from streamrl.buffers.ledger.records import Accepted, Declined, Gathered, Issued, Offered, Record, Scored, Submitted
from streamrl.buffers.queue.journal import Journal
from streamrl.buffers.rows.records import SCORED, QueueSettings, unpack
from streamrl.config.schema.streams import OFFERED_STREAM
from streamrl.scheduling.staleness import Admission
from streamrl.tasks.base import SubmittedPrompt
from streamrl.types import Ticket, Version

TOO_STALE: Final = "too_stale"
UNKNOWN_VERSION: Final = "unknown_version"
TOO_MANY_WAIT: Final = "too_many_wait"
GATHERER: Final = "trajectories"
"""Who groups of trajectories are issued to, in the ledger."""


class Objection(msgspec.Struct, frozen=True, array_like=True):
    """Why a trajectory is not taken. code: one of the three above."""

    code: str
    text: str


class GatheredTrajectories:
    """Part of a `ReplayQueue`, in its event loop. open_for: lets a writer act under its epoch. after_rows: tells the
    queue that groups may be ready."""

    def __init__(
        self,
        index: ReplayIndex,
        journal: Journal,
        published: PublishedVersions,
        settings: QueueSettings,
        open_for: Callable[[str, int], None],
        after_rows: Callable[[], None],
    ) -> None:
        self._index = index
        self._offered = index.offered
        self._journal = journal
        self._published = published
        self._settings = settings
        self._open_for = open_for
        self._after_rows = after_rows
        # Without a lead: that is how far replicas may run ahead, and what it leaves is for those who come unasked.
        self._admission = Admission(settings.max_staleness, settings.groups_per_step, settings.total_groups)

    async def standing(self, key: str) -> Standing | None:
        """What became of the trajectory of a key, durably; None for one that nobody offered."""
        standing = self._offered.of_key(key)
        await self._journal.settled()
        return standing

    def place(self, name: str, versions: Sequence[Version]) -> int | Objection:
        """How many trajectories of a group's name came before one that is to be offered, whose tokens these versions
        sampled, one or more; or why it will not be taken."""
        return self._objection(versions, 1) or self._offered.arrived(name)

    async def offer(self, writer: str, epoch: int, told: Offered, versions: Sequence[Version]) -> Standing | Objection:
        """Take a trajectory whose rows and verdicts are durable; what became of it, once that is durable too.

        One whose key is known is not taken again. versions: as in `place`.

        Raises:
            FencedError: this writer was replaced. ComponentError: the queue was closed.
        """
        self._open_for(writer, epoch)
        item = None if (known := self._offered.of_key(told.key)) is None else known.item
        if item is None:
            if objection := self._objection(versions, num_bytes(told)):
                return objection
            item = self._offered.add(told)
            self._journal.write(told)
            self.gather()
        await self._journal.settled()
        return self._offered.standing(item)

    def gather(self) -> None:
        """Decline what is too old by now, and make groups of the rest, as far as they can be trained in time."""
        if not self._offered.num_waiting:
            return
        self._decline_stale()
        made = False
        while any(self._make(items) for items in self._offered.full(self._settings.group_size)):
            made = True
        if made:
            self._after_rows()

    def _objection(self, versions: Sequence[Version], size: int) -> Objection | None:
        counts = self._index.counts()
        for version in versions:
            if not self._published.has(version, training=counts.groups_leased > 0):
                return Objection(UNKNOWN_VERSION, f"this run never published version {version}")
        oldest, most = min(version.step for version in versions), self._settings.max_staleness
        if oldest + most < counts.next_step:
            what = f"its oldest token is of step {oldest}, and the learner is at step {counts.next_step}"
            return Objection(TOO_STALE, f"{what}: {counts.next_step - oldest} steps, and {most} are allowed")
        if self._offered.waiting_bytes + size > self._settings.submitted_bytes:
            what = f"{self._offered.waiting_bytes} bytes of trajectories wait for the others of their groups"
            return Objection(TOO_MANY_WAIT, f"{what}; at most {self._settings.submitted_bytes} may")
        return None

    def _decline_stale(self) -> None:
        least = self._index.next_step - self._settings.max_staleness
        old = [item for item, told in self._offered.waiting() if oldest_step(rows_of(told)) < least]
        if old:
            self._offered.declined(old, TOO_STALE)
            self._journal.write(Declined(old, TOO_STALE))

    def _make(self, items: list[int]) -> bool:
        """Make a group of these trajectories, if there is room for it; whether there was."""
        told = [self._offered.told(item) for item in items]
        oldest = min(oldest_step(rows_of(one)) for one in told)
        if not self._has_capacity(oldest, sum(one.frame.length for one in told)):
            return False
        number = self._index.counts().groups_issued
        records: list[Record] = [Gathered(number, items), *self._issue(number, self._admission.last_step(oldest))]
        records += [self._accept(number, sample, one) for sample, one in enumerate(told)]
        records += [self._score(number, sample, one) for sample, one in enumerate(told)]
        self._offered.gathered(items, number)
        self._journal.write(*records)
        return True

    def _has_capacity(self, oldest: int, size: int) -> bool:
        counts, settings = self._index.counts(), self._settings
        capacity = self._admission.capacity(
            serving_step=oldest,
            trained=counts.groups_trained + counts.groups_leased,
            waiting=counts.groups_ready,
            running=counts.groups_running,
        )
        size = max(size, settings.group_size * settings.rollout_bytes)
        return capacity > 0 and counts.bytes_used + size <= counts.byte_budget

    def _issue(self, number: int, last_step: int) -> list[Record]:
        """In the books it is a prompt of a client that has all its rollouts already."""
        asked = [SubmittedPrompt(str(number), "")]
        (item,) = self._index.submissions.add(OFFERED_STREAM, asked)
        ticket = Ticket(number, item, 0, 0, last_step, submitted=True)
        self._index.restore_issue(GATHERER, ticket)
        return [Submitted(OFFERED_STREAM, asked), Issued(GATHERER, [ticket])]

    def _accept(self, number: int, sample: int, told: Offered) -> Record:
        rows = rows_of(told).copy()
        rows["number"], rows["sample_index"] = number, sample
        self._index.accept(told.frame, rows)
        return Accepted(GATHERER, told.frame, rows.tobytes())

    def _score(self, number: int, sample: int, told: Offered) -> Record:
        rows = unpack(SCORED, told.scores).copy()
        rows["number"], rows["sample_index"] = number, sample
        valid, reward = np.ones(len(rows), np.bool_), np.full(len(rows), told.reward)
        components = np.tile(np.array(told.components, np.float64), (len(rows), 1))
        self._index.score(rows, valid, reward, components if told.components else None)
        return Scored(GATHERER, told.score_frame, rows.tobytes())
