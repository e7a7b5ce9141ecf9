"""Rows of a frame, those of a group together, in whatever order the frame has them. Pure."""

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from streamrl.types import LongArray


class ByGroup(NamedTuple):
    """numbers: of the groups, ascending. order: places of the rows in the frame, ascending in each group. starts: where
    each group begins in it."""

    numbers: list[int]
    order: LongArray
    starts: LongArray

    @classmethod
    def of(cls, number: LongArray) -> "ByGroup":
        """number: int64 [N], of the group of each row; one row or more."""
        order = np.argsort(number, kind="stable")
        ordered = number[order]
        starts = np.flatnonzero(np.concatenate(([True], ordered[1:] != ordered[:-1])))
        return cls(ordered[starts].tolist(), order, starts)

    def places(self) -> Iterator[list[int]]:
        """Of the rows of each group."""
        places, starts = self.order.tolist(), self.starts.tolist()
        return (places[start:end] for start, end in pairwise([*starts, len(places)]))
