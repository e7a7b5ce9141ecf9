"""Where the groups' prompts come from: the task's data in its order, and what clients submitted. Pure."""

from buffers.records import DataOrder
from buffers.submissions import Submissions
from streamrl.streams import OFFERED_STREAM, TASK, StreamShares
from streamrl.types import Ticket


class PromptSources:
    """A prompt is (position, submitted): its place in the data order, or its number among the submitted ones."""

    def __init__(self, order: DataOrder, shares: StreamShares) -> None:
        self._order = order
        self._shares = shares
        self.submissions = Submissions()

    def draw(self, group: int, data_groups: int) -> tuple[int, bool] | None:
        """The prompt that a new group gets, by the streams' shares; None when there is none for it. data_groups: those
        whose prompt was the task's so far."""
        stream = self._shares.give([TASK, *self.submissions.streams()])
        if stream is None:
            return None
        if stream == TASK:
            return data_groups, False
        item = self.submissions.first(stream)
        self.submissions.issued(item, group)
        return item, True

    def drawn(self, ticket: Ticket) -> None:
        """The same, of a new group's ticket that the ledger has."""
        stream = self.submissions.stream(ticket.data_index) if ticket.submitted else TASK
        if stream != OFFERED_STREAM:  # it came as it is, and took no turn from the others
            self._shares.charge(stream)
        if ticket.submitted:
            self.submissions.issued(ticket.data_index, ticket.number)

    def ticket(self, number: int, prompt: tuple[int, bool], attempt: int, last_step: int) -> Ticket:
        """Of a group whose prompt it is."""
        position, submitted = prompt
        data_pass, data_index = (0, position) if submitted else self._order.at(position)
        return Ticket(number, data_index, data_pass, attempt, last_step, submitted)
