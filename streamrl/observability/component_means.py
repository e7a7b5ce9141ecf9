"""Means of the components of scores, by name, between one look and the next. Pure.

Whoever scores keeps sums and counts since it began, and whoever writes metrics takes the difference: so nothing is lost
between two looks, and a process that begins anew counts from 0.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from streamrl.types import Score

Totals = dict[str, tuple[float, int]]
"""(sum, count) of each component."""
MOST_NAMES: Final = 64
"""Components that are told: a function may make up any number of names."""


class ComponentTotals:
    """Sums of the components of valid scores."""

    def __init__(self) -> None:
        self.told: Totals = {}

    def add(self, scores: Sequence[Score]) -> None:
        for score in scores:
            for name, value in score.components.items():
                total, count = self.told.get(name, (0.0, 0))
                if count or len(self.told) < MOST_NAMES:
                    self.told[name] = (total + value, count + 1)


class ComponentMeans:
    """Example:
    >>> means = ComponentMeans()
    >>> means.since_last({"right": (2.0, 4)}), means.since_last({"right": (5.0, 6)})
    ({'right': 0.5}, {'right': 1.5})
    """

    def __init__(self) -> None:
        self._before: Mapping[str, tuple[float, int]] = {}

    def since_last(self, totals: Mapping[str, tuple[float, int]]) -> dict[str, float]:
        """Of what was scored since the last call; a component of which nothing was is left out."""
        means = {}
        for name, (total, count) in totals.items():
            before_total, before = self._before.get(name, (0.0, 0))
            if count < before:  # another process of the stage began anew
                before_total, before = 0.0, 0
            if count > before:
                means[name] = (total - before_total) / (count - before)
        self._before = dict(totals)
        return means
