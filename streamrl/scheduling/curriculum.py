"""Which prompt of the data has the next turn: those that are solved, or too hard yet, rest. Pure.

A prompt is measured by its newest group: the mean reward of its completions. Outside of the bounds it rests for so many
data passes, and is measured again when its turn comes after these.

Guaranteed: a turn depends on what was measured of the prompts that are looked at, and on nothing else; where all of the
next ones rest, the first of them has its turn, so a curriculum never ends a run.
"""

from collections.abc import Callable
from typing import Final, NamedTuple

from streamrl.config.schema.data import CurriculumConfig

LOOK_AHEAD: Final = 1024
"""Turns that are passed over at once, at most."""


class Curriculum:
    """Example:
    >>> curriculum = Curriculum(CurriculumConfig(high=0.9, rest=2))
    >>> curriculum.measured(item=7, data_pass=0, mean=1.0)
    >>> [curriculum.rests(7, data_pass) for data_pass in (1, 2, 3)]
    [True, True, False]
    """

    def __init__(self, config: CurriculumConfig) -> None:
        self._config = config
        self._resting: dict[int, int] = {}
        """The pass in which an item was measured, of those that were outside of the bounds."""

    def __len__(self) -> int:
        """Prompts that are outside of the bounds by what was measured last."""
        return len(self._resting)

    @property
    def acts(self) -> bool:
        return self._config.acts

    def measured(self, item: int, data_pass: int, mean: float) -> None:
        """The group of this item in this pass has this mean reward."""
        low, high = self._config.low, self._config.high
        if (low is not None and mean < low) or (high is not None and mean > high):
            self._resting[item] = max(data_pass, self._resting.get(item, 0))
        else:
            self._resting.pop(item, None)

    def rests(self, item: int, data_pass: int) -> bool:
        """Whether it has no turn in this pass."""
        since = self._resting.get(item)
        return since is not None and data_pass - since <= self._config.rest

    def forget(self) -> None:
        """Another data set begins: its items are other prompts."""
        self._resting.clear()


class Turn(NamedTuple):
    """position: in the data order; None if nothing has a turn now. in_doubt: since it hangs on groups that run.
    exhausted: since every prompt is held."""

    position: int | None
    in_doubt: bool = False
    exhausted: bool = False


def next_turn(
    start: int,
    at: Callable[[int], tuple[int, int]],
    holds: Callable[[int], bool],
    in_doubt: Callable[[int], bool],
    curriculum: Curriculum,
) -> Turn:
    """The first position from `start` on whose prompt is neither held nor at rest.

    at: (data pass, item) of a position. holds: items that never have a turn. in_doubt: whether what runs could change
    the answer for an item.
    """
    (first_pass, item), position = at(start), start
    data_pass, resting = first_pass, None
    while data_pass <= first_pass + 1:
        if not holds(item):
            if in_doubt(item):
                return Turn(None, in_doubt=True)
            if not curriculum.rests(item, data_pass):
                return Turn(position)
            resting = position if resting is None else resting
        if resting is not None and position - start >= LOOK_AHEAD:
            break
        position += 1
        data_pass, item = at(position)
    return Turn(resting, exhausted=resting is None)
