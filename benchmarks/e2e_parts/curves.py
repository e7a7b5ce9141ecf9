"""Held-out score against trained rollouts, of each side at each rate. Pure: it starts nothing."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple


class Point(NamedTuple):
    """rollouts: trained until here. score: held-out, greedy, 0 to 1."""

    rollouts: int
    score: float


@dataclass(frozen=True, slots=True)
class Curve:
    """What one side learns at one rate. points: in order, the first before any training."""

    side: str
    rate: float
    points: tuple[Point, ...]

    @property
    def score(self) -> float:
        """The last one."""
        return self.points[-1].score


def best_of(curves: Iterable[Curve], side: str) -> Curve:
    """The side's curve that ends highest. Raises ValueError for a side without a curve."""
    return max((curve for curve in curves if curve.side == side), key=lambda curve: curve.score)


def rollouts_to(points: Sequence[Point], score: float) -> float | None:
    """Rollouts until `score`, on the straight line between two points. None: never reached.

    Example:
        >>> rollouts_to((Point(0, 0.3), Point(100, 0.5)), 0.4)
        50.0
    """
    before: Point | None = None
    for point in points:
        if point.score >= score:
            if before is None:
                return float(point.rollouts)
            share = (score - before.score) / (point.score - before.score)
            return before.rollouts + share * (point.rollouts - before.rollouts)
        before = point
    return None
