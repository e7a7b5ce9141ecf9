"""What the index tells the curriculum of finished groups, and what the ledger has of that. Pure.

Guaranteed: what is known follows from the ledger alone, so an opening comes to the same answer; a group counts once
however often its records are read.
"""

from statistics import fmean

from streamrl.buffers.index.groups.group import Group
from streamrl.buffers.ledger.records import Measured
from streamrl.buffers.rows.records import DataOrder
from streamrl.scheduling.curriculum import Curriculum

Measure = tuple[int, int, float]
"""(item, data pass, mean reward)."""


class MeasuredPrompts:
    """order: says in which pass over the data a position lies.

    Example:
        measured.finished(group)
        for record in measured.pop_unrecorded(): journal.write(record)
    """

    def __init__(self, curriculum: Curriculum, order: DataOrder) -> None:
        self._curriculum = curriculum
        self._order = order
        self._unrecorded: dict[int, Measure] = {}
        """By the group's number."""

    def finished(self, group: Group) -> None:
        """All rollouts of a group are there and scored."""
        rewards = [row.reward for row in group.rows.values() if row.valid]
        if self._curriculum.acts and not group.submitted and rewards:
            measure = group.item, self._order.at(group.position)[0], fmean(rewards)
            self._unrecorded[group.number] = measure
            self._curriculum.measured(*measure)

    def recorded(self, record: Measured) -> None:
        """The ledger has it."""
        for item, number, data_pass, mean in zip(
            record.items, record.numbers, record.passes, record.means, strict=True
        ):
            self._unrecorded.pop(number, None)
            self._curriculum.measured(item, data_pass, mean)

    def pop_unrecorded(self) -> list[Measured]:
        """What the ledger has no record of; the caller writes it."""
        unrecorded, self._unrecorded = self._unrecorded, {}
        if not unrecorded:
            return []
        items, passes, means = zip(*unrecorded.values(), strict=True)
        return [Measured(list(items), list(unrecorded), list(passes), list(means))]

    def forget(self) -> None:
        """Another data set begins."""
        self._unrecorded.clear()
        self._curriculum.forget()
