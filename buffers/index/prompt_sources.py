"""Where the groups' prompts come from: the task's data in its order, and what clients submitted. Pure.

Guaranteed: each prompt of the task has its turn once in each data pass, and gets a group then or, if it is quarantined
or rests, is passed over and counted.
"""

from streamrl.buffers.index.groups.quarantine import Quarantine
from streamrl.buffers.index.running import RunningGroups
from streamrl.buffers.index.submitted.submissions import Submissions
from streamrl.buffers.rows.records import DataOrder, QueueSettings
from streamrl.config.schema.streams import OFFERED_STREAM, TASK
from streamrl.scheduling.curriculum import Curriculum, next_turn
from streamrl.scheduling.fair_share import StreamShares
from streamrl.types import Ticket


class PromptSources:
    """A prompt is (position, submitted): its place in the data order, or its number among the submitted ones."""

    def __init__(
        self, settings: QueueSettings, order: DataOrder, running: RunningGroups, quarantine: Quarantine
    ) -> None:
        self._order = order
        self._shares = StreamShares(settings.streams)
        self._running = running
        self._quarantine = quarantine
        # Where a run is to be the same to the bit, whether a prompt is passed over may not depend on what ended first.
        self._decided = settings.max_staleness == 0
        self.submissions = Submissions()
        self.curriculum = Curriculum(settings.curriculum)
        self.in_doubt = False
        """Whether the task's next prompt waits for groups of its own to end."""
        self.exhausted = False
        """Whether all prompts of the task are quarantined, and one was wanted."""

    def draw(self) -> tuple[int, bool] | None:
        """The prompt that the next group gets, by the streams' shares; None when there is none for it."""
        place, streams = self._next_of_task(), self.submissions.streams()
        stream = self._shares.give(streams if place is None else [TASK, *streams])
        if stream is None:
            return None
        if place is not None and stream == TASK:
            return place, False
        item = self.submissions.first(stream)
        self.submissions.issued(item, self._running.next_number)
        return item, True

    def _next_of_task(self) -> int | None:
        """The next turn in the data order of a prompt that is not passed over; None if there is none (yet)."""
        self.in_doubt = self.exhausted = False
        if not self._shares.entitled(TASK):
            return None
        start, holds = self._running.data_groups, self._quarantine.holds
        turn = next_turn(start, self._order.at, holds, self._hangs_on_groups, self.curriculum)
        self.in_doubt, self.exhausted = turn.in_doubt, turn.exhausted
        return turn.position

    def _hangs_on_groups(self, item: int) -> bool:
        """Whether groups of this item that run could have it passed over."""
        running = self._running.of_item[item]
        return self._decided and (self._quarantine.in_doubt(item, running) or (self.curriculum.acts and running > 0))

    def drawn(self, ticket: Ticket) -> None:
        """The same, of a new group's ticket that the ledger has."""
        stream = self.submissions.stream(ticket.data_index) if ticket.submitted else TASK
        if stream != OFFERED_STREAM:  # it came as it is, and took no turn from the others
            self._shares.charge(stream)
        if ticket.submitted:
            self.submissions.issued(ticket.data_index, ticket.number)

    def ticket(self, number: int, prompt: tuple[int, bool], attempt: int, last_step: int) -> Ticket:
        """Of a group whose prompt it is; of a new one where the number is."""
        position, submitted = prompt
        data_pass, data_index = (0, position) if submitted else self._order.at(position)
        fresh = number >= self._running.next_number and not submitted
        passed_over = position - self._running.data_groups if fresh else 0
        return Ticket(number, data_index, data_pass, attempt, last_step, submitted, passed_over)
