"""What `streamrl why` says is made of: a finding, and the figures in rows of `metrics.jsonl`. Pure."""

import math
from collections.abc import Sequence
from statistics import fmean
from typing import Any

import msgspec

Row = dict[str, Any]


class Finding(msgspec.Struct, frozen=True):
    """kind: a stable word for scripts. text: the sentence. figures: the numbers in it, by metric key."""

    kind: str
    text: str
    figures: dict[str, float]


def values(rows: Sequence[Row], key: str) -> list[float]:
    """The finite values of a key, in order; a row without it, or with null, has none."""
    given = [row[key] for row in rows if isinstance(row.get(key), int | float)]
    return [float(value) for value in given if math.isfinite(value)]


def mean(rows: Sequence[Row], key: str) -> float | None:
    """None when no row has it."""
    given = values(rows, key)
    return fmean(given) if given else None
