"""The groups that are ready, kept so that choosing a batch does not look at all of them.

Guaranteed: `choose` answers what `streamrl.scheduling.staleness.select_batch` answers, and raises what it raises. Its
cost grows with the groups that run, the different last steps among those that are ready, and the groups it takes; not
with how many are ready. Pure.
"""

import heapq
from collections import Counter
from collections.abc import Callable, Iterable, Iterator

from streamrl.buffers.index.groups.group import Group
from streamrl.scheduling.staleness import Candidate, select_batch


class ReadyGroups:
    """Ready groups by number; a group's last step must not change while it is here.

    Example:
        ready.add(group)
        groups = ready.choose(step, groups_per_step=8, running=last_steps)
    """

    def __init__(self) -> None:
        self._groups: dict[int, Group] = {}
        self._count: Counter[int] = Counter()
        """Ready groups by last step."""
        self._numbers: dict[int, list[int]] = {}
        """A heap of numbers for each last step; those that left since are skipped when they come up."""

    def __len__(self) -> int:
        return len(self._groups)

    def __contains__(self, number: int) -> bool:
        return number in self._groups

    def __iter__(self) -> Iterator[Group]:
        return iter(self._groups.values())

    def get(self, number: int) -> Group | None:
        return self._groups.get(number)

    def add(self, group: Group) -> None:
        self._groups[group.number] = group
        self._count[group.last_step] += 1
        heapq.heappush(self._numbers.setdefault(group.last_step, []), group.number)

    def pop(self, number: int) -> Group | None:
        """Remove a group; None if it is not here."""
        group = self._groups.pop(number, None)
        if group is not None:
            self._leave(group.last_step)
        return group

    def candidates(self) -> list[Candidate]:
        return [group.candidate for group in self._groups.values()]

    def choose(self, step: int, groups_per_step: int, running: Callable[[], Iterable[int]]) -> list[Group] | None:
        """Take the batch of `step` out, ascending by number, or None: wait. running: the last steps of those that run,
        asked only when enough are ready.

        Raises:
            ComponentError: the ready groups cannot all be trained in time any more.
        """
        if self._hopeless(step, groups_per_step):
            select_batch(step, groups_per_step, self.candidates(), [])  # raises, whatever runs
        if len(self._groups) < groups_per_step or not self._in_time(step, groups_per_step, running()):
            return None
        return sorted(self._oldest(groups_per_step), key=lambda group: group.number)

    def _hopeless(self, step: int, groups_per_step: int) -> bool:
        """Whether more are ready than the steps up to their last one can train."""
        return any(total > (last - step + 1) * groups_per_step for last, total in _totals(self._count))

    def _in_time(self, step: int, groups_per_step: int, running: Iterable[int]) -> bool:
        """Whether those left over by a batch taken now, running ones among them, can all be trained in time."""
        left = Counter(running)
        taken = groups_per_step
        for last in sorted(self._count):
            stays = max(0, self._count[last] - taken)
            taken -= self._count[last] - stays
            left[last] += stays
        return all(total <= (last - step) * groups_per_step for last, total in _totals(left))

    def _oldest(self, count: int) -> list[Group]:
        """Remove the groups of the lowest (last step, number)."""
        taken: list[Group] = []
        for last in sorted(self._count):
            here = min(self._count[last], count - len(taken))
            taken += self._lowest(last, here)
            self._leave(last, here)
        return taken

    def _lowest(self, last_step: int, count: int) -> list[Group]:
        """Remove the groups of the lowest numbers, of those with this last step."""
        numbers, found = self._numbers[last_step], list[Group]()
        while len(found) < count:
            group = self._groups.get(heapq.heappop(numbers))
            if group is not None and group.last_step == last_step:
                del self._groups[group.number]
                found.append(group)
        return found

    def _leave(self, last_step: int, count: int = 1) -> None:
        self._count[last_step] -= count
        if not self._count[last_step]:
            del self._count[last_step], self._numbers[last_step]


def _totals(count: Counter[int]) -> Iterator[tuple[int, int]]:
    """(last step, groups whose last step is no later), ascending, where there are any."""
    total = 0
    for last in sorted(count):
        if count[last]:
            total += count[last]
            yield last, total
