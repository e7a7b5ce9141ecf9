"""What is lost with a node: groups whose rows lay on its disk alone, which are generated again. Pure."""

from collections.abc import Collection

from streamrl.buffers.index.running import RunningGroups
from streamrl.buffers.index.stepping import StepBooks
from streamrl.buffers.index.submitted.submissions import Submissions
from streamrl.scheduling.staleness import Admission
from streamrl.types import FrameRef


class LostGroups:
    """groups, rows: counted by `note`.

    Example:
        numbers = lost.find(frames, leased=False)
        rows, unplanned = lost.begin_again(numbers, step)
        lost.note(len(numbers), rows)
    """

    def __init__(
        self, running: RunningGroups, steps: StepBooks, admission: Admission, submissions: Submissions
    ) -> None:
        self._running = running
        self._steps = steps
        self._admission = admission
        self._submissions = submissions
        self.groups = 0
        self.rows = 0

    def find(self, frames: Collection[FrameRef], leased: bool) -> list[int]:
        """Groups that are not trained and have a row in one of these frames; those of the lease only if `leased`."""
        everyone = (*self._running.groups.values(), *self._steps.untrained(leased))
        return sorted(one.number for one in everyone if any(row.frame in frames for row in one.rows.values()))

    def begin_again(self, numbers: Collection[int], step: int) -> tuple[int, int]:
        """Discard what running, ready, leased or planned groups have, and have them issued again, as if under the
        version of `step`.

        Returns (rows discarded, first step that will not take the groups again that it had, or -1).
        """
        unplanned = self._steps.give_up(numbers)
        last_step, rows = self._admission.last_step(step), 0
        for number in numbers:
            group = self._steps.take_out(number)
            if group is not None:
                rows += len(group.rows)
                self._running.begin_again(group, last_step)
                if group.submitted:
                    self._submissions.begins_again(group.position)
            elif number in self._running.groups:
                rows += len(self._running.groups[number].rows)
                self._running.withdraw(number, last_step)
        return rows, unplanned

    def note(self, groups: int, rows: int) -> None:
        """Count what was lost."""
        self.groups += groups
        self.rows += rows
