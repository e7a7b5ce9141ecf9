"""Groups that are ready, and the steps that take them: lease, commit, cover, go back.

Guaranteed: steps are leased in order, one at a time, and a lease asked for again is the same one; after going
back, the steps that were trained before take the same groups again before anything else is chosen; trained
rows hold their bytes until a checkpoint covers them. Which groups a new step takes is `streamrl.scheduling.staleness`'s
to say. Pure; linear in the groups concerned.
"""

from collections.abc import Callable, Collection, Iterable
from itertools import chain

from streamrl.buffers.index.budget import ByteBudget
from streamrl.buffers.index.groups.group import Group, GroupState, Tally
from streamrl.buffers.index.groups.leasing import build_lease
from streamrl.buffers.index.groups.ready import ReadyGroups
from streamrl.buffers.rows.records import Lease, QueueSettings
from streamrl.errors import ComponentError, StartAgainError
from streamrl.scheduling.staleness import Candidate, late_groups

Running = Callable[[], Collection[Candidate]]
LastSteps = Callable[[], Iterable[int]]


class StepBooks:
    """Ready groups and the learner's steps. `next_step` is the step whose batch comes next."""

    def __init__(self, settings: QueueSettings, tally: Tally, budget: ByteBudget) -> None:
        self._settings = settings
        self._tally = tally
        self._budget = budget
        self._ready = ReadyGroups()
        self._planned: dict[int, list[Group]] = {}
        self._leased: tuple[Lease, list[Group]] | None = None
        self._trained: dict[int, list[Group]] = {}
        self._trained_bytes = 0
        self.next_step = 0
        self.covered_step = 0

    @property
    def trained_bytes(self) -> int:
        """Bytes held by trained rows that no checkpoint covers yet."""
        return self._trained_bytes

    def again(self) -> tuple[int, int]:
        """Steps that take the groups again that they had before, and the rows of those groups."""
        groups = [group for planned in self._planned.values() for group in planned]
        return len(self._planned), sum(len(group.rows) for group in groups)

    def add(self, groups: Collection[Group]) -> None:
        """Groups became ready, that were all in one state."""
        self._tally.move(groups, GroupState.READY)
        for group in groups:
            self._ready.add(group)

    def waiting(self) -> Iterable[Group]:
        """The groups that are ready, those that a step takes again among them."""
        return chain(self._ready, *self._planned.values())

    def ready(self, number: int) -> Group | None:
        """A ready group that no step takes again; None if there is none of this number."""
        return self._ready.get(number)

    def take_out(self, number: int) -> Group | None:
        """Remove a ready group; one that is planned for a step again stays."""
        return self._ready.pop(number)

    def untrained(self, leased: bool) -> Iterable[Group]:
        """The groups that are ready, or that a step takes again; those of the lease with them if `leased`, else not."""
        held = {} if self._leased is None else {group.number: group for group in self._leased[1]}
        found = {group.number: group for group in self.waiting()}
        return (found | held if leased else {number: found[number] for number in found.keys() - held.keys()}).values()

    def give_up(self, numbers: Collection[int]) -> int:
        """Make what holds one of these groups, the lease or the plan of a step, let go: its groups are ready again.

        Returns the first step that lost its plan, with all steps behind it; -1 for none.
        """
        if self._leased is not None and any(group.number in numbers for group in self._leased[1]):
            self._give_back_lease()
        holding = [step for step, groups in self._planned.items() if any(one.number in numbers for one in groups)]
        first = min(holding, default=-1)
        for step in [step for step in self._planned if step >= first >= 0]:
            for group in self._planned.pop(step):
                self._ready.add(group)
        return first

    def lease(self, step: int, running: LastSteps) -> Lease | None:
        """The batch of `step`, or None as long as it has to wait. running: the last steps of the groups that run.

        Raises:
            ComponentError: not the next step, or ready groups that cannot be trained in time any more.
        """
        if self._leased is not None and self._leased[0].step == step:
            return self._leased[0]
        if step != self.next_step or self._leased is not None:
            raise ComponentError(
                f"lease of step {step}: the queue's next step is {self.next_step}; after a resume, call "
                "resume_from with the checkpoint's step first"
            )
        groups = self._planned.get(step) or self._choose(step, running)
        if groups is None:
            return None
        self._tally.move(groups, GroupState.LEASED)
        lease = build_lease(step, groups, len(self._settings.components))
        self._leased = (lease, groups)
        return lease

    def _choose(self, step: int, running: LastSteps) -> list[Group] | None:
        return self._ready.choose(step, self._settings.groups_per_step, running)

    def late(self, step: int, running: Running) -> list[int]:
        """The running groups that hold up the batch of `step`."""
        if step in self._planned or len(self._ready) < self._settings.groups_per_step:
            return []
        return late_groups(step, self._settings.groups_per_step, self._ready.candidates(), running())

    def commit(self, step: int) -> list[int] | None:
        """Book the lease of `step` as trained; its groups, or None if it was booked before.

        Raises:
            ComponentError: `step` is not leased.
        """
        if step < self.next_step:
            return None
        if self._leased is None or self._leased[0].step != step:
            raise ComponentError(f"commit of step {step}, which is not leased; the next step is {self.next_step}")
        groups = self._leased[1]
        self._leased = None
        self._planned.pop(step, None)
        self._train(step, groups)
        return [group.number for group in groups]

    def _train(self, step: int, groups: list[Group]) -> None:
        self._tally.move(groups, GroupState.TRAINED)
        for group in groups:
            group.step = step
            self._trained_bytes += group.num_bytes
        self._trained[step] = groups
        self.next_step = step + 1

    def cover(self, step: int) -> list[Group]:
        """A durable checkpoint holds every step below `step`: their groups, which are let go with their rows.

        Raises:
            ComponentError: `step` lies beyond the steps that are trained.
        """
        if step > self.next_step:
            raise ComponentError(f"a checkpoint of step {step} covers steps that are not trained: {self.next_step}")
        covered = [group for s in [s for s in self._trained if s < step] for group in self._trained.pop(s)]
        for group in covered:
            self._budget.free(0, group.num_bytes)
            self._trained_bytes -= group.num_bytes
        self.covered_step = max(self.covered_step, step)
        return covered

    def plan(self, step: int, numbers: list[int]) -> None:
        """Ready groups that `step`, trained before, takes again.

        Raises:
            ComponentError: one of them is not ready: its rows or scores are not in the ledger.
        """
        missing = [number for number in numbers if number not in self._ready]
        if missing:
            raise ComponentError(
                f"step {step} was trained on groups {missing[:8]}, whose rows or scores the ledger does "
                "not have: it is damaged; go back to an older copy of the run folder"
            )
        self._planned[step] = [group for number in numbers if (group := self._ready.pop(number)) is not None]

    def go_to(self, step: int) -> None:
        """Make `step` the next one: later steps are planned again, earlier planned ones count as trained.

        Raises:
            StartAgainError: rows of that step are let go already. ComponentError: steps before it were never trained.
        """
        last_known = max([self.next_step, *(planned + 1 for planned in self._planned)])
        what = f"cannot resume from step {step}: the queue has steps {self.covered_step}..{last_known}"
        if step < self.covered_step:
            raise StartAgainError(f"{what} in memory; those before are in its log")
        if step > last_known:
            raise ComponentError(f"{what}; a checkpoint of a step that was never trained is none of this run's")
        self._give_back_lease()
        for trained in [s for s in self._trained if s >= step]:
            groups = self._trained.pop(trained)
            self._tally.move(groups, GroupState.READY)
            for group in groups:
                group.step = None
                self._trained_bytes -= group.num_bytes
            self._planned[trained] = groups
        for planned in sorted(s for s in self._planned if s < step):
            self._train(planned, self._planned.pop(planned))
        self.next_step = step

    def _give_back_lease(self) -> None:
        """A lease that was never committed; one of a step that was trained before stays planned for it."""
        if self._leased is None:
            return
        lease, groups = self._leased
        self._leased = None
        if lease.step in self._planned:
            self._tally.move(groups, GroupState.READY)
        else:
            self.add(groups)

    def start_at(self, step: int) -> None:
        """Start counting at `step`, everything before it covered. Only before the first group is added."""
        self.next_step = self.covered_step = step
