"""Which groups a replica gets: those to be issued again first, then new ones as far as admission and bytes allow. Pure.

Guaranteed: a group that is suspected (`streamrl.buffers.index.groups.suspects`) is given to a replica that has nothing
else, which gets nothing more until it has ended. While one waits that this replica may have, it gets no other: so it is
soon there.
"""

from collections.abc import Iterator
from itertools import islice

from streamrl.buffers.index.budget import ByteBudget
from streamrl.buffers.index.groups.group import Group, GroupState, Tally
from streamrl.buffers.index.prompt_sources import PromptSources
from streamrl.buffers.index.running import RunningGroups
from streamrl.buffers.rows.records import QueueSettings
from streamrl.errors import ComponentError
from streamrl.scheduling.staleness import Admission
from streamrl.types import Ticket


class Issuing:
    """Example:
    (ticket,) = issuing.issue("replica-0", serving_step=0, room=1)
    """

    def __init__(
        self,
        settings: QueueSettings,
        admission: Admission,
        running: RunningGroups,
        sources: PromptSources,
        tally: Tally,
        budget: ByteBudget,
    ) -> None:
        self._settings = settings
        self._admission = admission
        self._running = running
        self._sources = sources
        self._tally = tally
        self._budget = budget

    @property
    def waits_for_rows(self) -> bool:
        """Whether a replica may get a group because rows or scores came, without a place that was given back."""
        return bool(self._running.suspects) or self._sources.in_doubt

    def issue(self, replica: str, serving_step: int, room: int) -> list[Ticket]:
        """Up to `room` groups for a replica that serves `serving_step`.

        Raises:
            ComponentError: a group is wanted, and every prompt of the task is quarantined.
        """
        running, last_step = self._running, self._admission.last_step(serving_step)
        waiting = [running.groups[number] for number in sorted(running.orphans)]
        # Not under an older version than before: the group's place in the admission counts on that version.
        waiting = [group for group in waiting if group.last_step <= last_step]
        suspects = [group for group in waiting if group.number in running.suspects]
        if suspects or running.has_suspect(replica):
            again = [] if running.has(replica) else suspects[: min(1, room)]
            return self._issue_again(replica, again, last_step)
        tickets = self._issue_again(replica, waiting[: max(0, room)], last_step)
        fresh = min(room - len(tickets), self._capacity(serving_step), self._budget.fits(running.group_bytes))
        tickets += islice(self._fresh(replica, last_step), max(0, fresh))
        if not tickets and fresh > 0 and self._sources.exhausted:
            raise ComponentError(
                "every prompt of the task is quarantined: each failed rollout.quarantine_after times. "
                "`streamrl sql \"select data_index, reason from ledger where kind = 'quarantined'\"` says why; "
                "correct the reward or the data, and start afresh (`streamrl up --fresh`)"
            )
        return tickets

    def _capacity(self, serving_step: int) -> int:
        groups = self._tally.groups
        return self._admission.capacity(
            serving_step=serving_step,
            trained=groups[GroupState.TRAINED] + groups[GroupState.LEASED],
            waiting=groups[GroupState.READY],
            running=groups[GroupState.RUNNING],
        )

    def _issue_again(self, replica: str, groups: list[Group], last_step: int) -> list[Ticket]:
        tickets = [self._again(group, last_step) for group in groups]
        for ticket in tickets:
            self._running.book(replica, ticket)
        return tickets

    def _again(self, group: Group, last_step: int) -> Ticket:
        """Accepted rows keep the group's last step, and so do tokens that a journal may have of it; without either it
        counts from the version served now."""
        kept = bool(group.rows) or self._settings.journalled
        last_step = group.last_step if kept else last_step
        return self._sources.ticket(group.number, (group.position, group.submitted), group.attempt + 1, last_step)

    def _fresh(self, replica: str, last_step: int) -> Iterator[Ticket]:
        """New groups for a replica, each booked, as long as there are prompts for them."""
        while (prompt := self._sources.draw()) is not None:
            ticket = self._sources.ticket(self._running.next_number, prompt, 0, last_step)
            self._running.book(replica, ticket)
            yield ticket

    def restore(self, replica: str, ticket: Ticket) -> None:
        """Book a ticket that the ledger has."""
        if ticket.number >= self._running.next_number:
            self._sources.drawn(ticket)
        self._running.book(replica, ticket)

    def skip(self, ticket: Ticket) -> None:
        """The same of a group of a covered step: it costs no memory any more."""
        if ticket.number >= self._running.next_number:
            self._sources.drawn(ticket)
            self._running.use_up(ticket)
        if ticket.submitted:
            self._sources.submissions.covered(ticket.data_index)
