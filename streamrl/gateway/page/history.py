"""A run's figures over its steps, and fewer points of them for a picture. Pure.

Guarantees: of a figure with more points than asked for, the lowest and the highest of every stretch are kept, and so
are the first and the last: a spike of one step is seen however many steps there are. A figure that a row does not carry
has no point there. It does not know what the figures mean, but for those that it derives others of (`derived`).
"""

import re
from array import array
from collections import deque
from collections.abc import Collection, Mapping
from typing import Any, TypeGuard

import numpy as np

from streamrl.observability.metrics import STANDS_FOR

Row = Mapping[str, Any]
STEP_S = "time/step"
_COMPONENT = re.compile(r"reward/(.+)/mean")
LEAST_POINTS = 16
"""Fewer make no curve."""


class Figure:
    """One figure: its values, and the number of the row that each is of."""

    def __init__(self) -> None:
        self.rows = array("q")
        self.values = array("d")

    def add(self, row: int, value: float) -> None:
        self.rows.append(row)
        self.values.append(value)


class History:
    """Rows of `metrics.jsonl`, by figure. newest: rows that are kept whole.

    Example:
        history = History(newest=100)
        history.add({"step": 1, "reward/mean": 0.5, "time/step": 0.2})
        history.reduced(points=2000)["figures"]["reward/mean"]
    """

    def __init__(self, newest: int) -> None:
        self.newest: deque[Row] = deque(maxlen=newest)
        self._steps = array("q")
        self._time_s = array("d")
        self._figures: dict[str, Figure] = {}

    def __len__(self) -> int:
        return len(self._steps)

    def add(self, row: Row) -> None:
        """Take the next row in: it has an integer `step`."""
        number = len(self._steps)
        before = self._time_s[-1] if number else 0.0
        took = row.get(STEP_S)
        self._steps.append(row["step"])
        self._time_s.append(before + (took * row.get(STANDS_FOR, 1) if _is_number(took) else 0.0))
        for name, value in {**row, **derived(row)}.items():
            if name != "step" and _is_number(value):
                self._figures.setdefault(name, Figure()).add(number, value)
        self.newest.append(row)

    def components(self) -> list[str]:
        """Names of the components of the reward, in the order in which they were told."""
        matches = (_COMPONENT.fullmatch(name) for name in self._figures)
        return [match[1] for match in matches if match is not None]

    def reduced(self, points: int, names: Collection[str] = ()) -> dict[str, Any]:
        """For JSON: `rows`, how many there are; `clock`, `step` and `time_s` (seconds that the learner had spent in
        steps by then); `figures`, by name, `step` and `value`; each list at most `points` (>= `LEAST_POINTS`) long.

        names: the figures that are wanted; those that no row carries are left out. Empty: all.
        """
        steps, time_s = np.array(self._steps, np.int64), np.array(self._time_s, np.float64)
        told = chosen(time_s, points)
        wanted = [name for name in names or self._figures if name in self._figures]
        return {
            "rows": len(self),
            "clock": {"step": steps[told].tolist(), "time_s": time_s[told].tolist()},
            "figures": {name: self._as_json(self._figures[name], steps, points) for name in wanted},
        }

    def _as_json(self, figure: Figure, steps: np.ndarray, points: int) -> dict[str, list[Any]]:
        values = np.array(figure.values, np.float64)
        told = chosen(values, points)
        return {"step": steps[np.array(figure.rows, np.int64)[told]].tolist(), "value": values[told].tolist()}


def derived(row: Row) -> dict[str, float]:
    """Figures that follow from others of a row, and do not from these once points are left out: `learner/wait_share`,
    in [0, 1], and `queue/scored`, in rows."""
    found = {}
    step, wait = row.get(STEP_S), row.get("time/wait")
    if _is_number(step) and _is_number(wait) and step > 0:
        found["learner/wait_share"] = wait / step
    rows, unscored = row.get("queue/rows"), row.get("queue/unscored")
    if _is_number(rows) and _is_number(unscored):
        found["queue/scored"] = rows - unscored
    return found


def chosen(values: np.ndarray, points: int) -> np.ndarray:
    """Places, in order and at most `points`, of the values [n] that stand for all: the lowest and the highest of every
    stretch of equal length, the first and the last."""
    count = len(values)
    if count <= points:
        return np.arange(count)
    length = -(-count // ((points - 2) // 2))
    stretches = -(-count // length)
    # What the last stretch lacks is its last value again, which adds no place.
    whole = np.concatenate([values, np.full(stretches * length - count, values[-1])]).reshape(stretches, length)
    starts = np.arange(stretches) * length
    places = np.concatenate([[0], starts + whole.argmin(axis=1), starts + whole.argmax(axis=1), [count - 1]])
    return np.unique(np.minimum(places, count - 1))


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)
