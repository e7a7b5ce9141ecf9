"""Where the running requests lie: packed into the first slots, long ones before short ones.

Why: a decode step reads every key up to the longest request of a range of slots. With slots in order of length, a
few ranges of similar lengths read little that is masked; in any order one long request makes all others pay. Pure
functions of lengths; what is moved is for others to do.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from streamrl.types import LongArray

CLASS_TOKENS = 64
"""Requests whose lengths fall into the same multiple count as equally long: fewer moves than an exact order."""

ANY_TOKENS = 2**62
"""Longer than any request: all are of one class."""

RANGE_ROWS = 16
"""Ranges begin at multiples of it."""

RANGE_KEYS = 512
"""Masked keys (rows x places) that are cheaper to read than another range is to start."""


class Arrangement(NamedTuple):
    """Kept row `sources[i]` moves to slot `targets[i]` (all at once: the sets may overlap); new request i goes to
    slot `places[i]`. All int64. Afterwards slots 0..n-1 are taken."""

    sources: LongArray
    targets: LongArray
    places: LongArray


def arrange(
    lengths: LongArray, taken: npt.NDArray[np.bool_], new_lengths: LongArray, *, in_order: bool = True
) -> Arrangement:
    """Place the rows that are `taken` and the new ones so that classes of length descend (in any order, when not
    `in_order`), with the fewest moves: a row that already lies where a row of its class belongs stays.

    lengths int64 [rows] and taken bool [rows] describe the slots so far; new_lengths int64 [m].
    """
    kept = np.flatnonzero(taken)
    classes = np.concatenate((lengths[kept], new_lengths)) // (CLASS_TOKENS if in_order else ANY_TOKENS)
    wanted = -np.sort(-classes)
    total = len(classes)
    stays = np.zeros(total, dtype=np.bool_)
    inside = np.flatnonzero(kept < total)
    stays[inside] = classes[inside] == wanted[kept[inside]]
    free = np.ones(total, dtype=np.bool_)
    free[kept[stays[: len(kept)]]] = False
    movers = np.flatnonzero(~stays)
    movers = movers[np.argsort(-classes[movers], kind="stable")]
    # Free slots in order want just the movers' classes in descending order.
    slots = np.flatnonzero(free)
    old = movers < len(kept)
    places = np.empty(len(new_lengths), dtype=np.int64)
    places[movers[~old] - len(kept)] = slots[~old]
    return Arrangement(kept[movers[old]], slots[old], places)


class KeyRange(NamedTuple):
    """Slots first..stop-1 attend to their first `length` places."""

    first: int
    stop: int
    length: int


def key_ranges(padded_N: LongArray) -> list[KeyRange]:
    """Cut slots 0..N-1 into ranges that read few masked keys. padded_N: int64, rounded key length of each."""
    rows = len(padded_N)
    if rows <= RANGE_ROWS:
        return [KeyRange(0, rows, int(padded_N.max()))]
    tops = np.maximum.reduceat(padded_N, np.arange(0, rows, RANGE_ROWS)).tolist()
    ranges = []
    first, length, wasted = 0, tops[0], 0
    for block, top in enumerate(tops[1:], 1):
        start = block * RANGE_ROWS
        wasted += (length - top) * RANGE_ROWS if top < length else (top - length) * (start - first)
        if wasted > RANGE_KEYS:
            ranges.append(KeyRange(first, start, length))
            first, length, wasted = start, top, 0
        length = max(length, top)
    return [*ranges, KeyRange(first, rows, length)]
