"""Which rows wait for a score, and which scorer has them.

Guaranteed: a row is handed to one scorer at a time, in the order of arrival; what a lost scorer had comes
first again; a row that is no longer wanted is not handed out. Pure; what a call costs for each row is a look at it.
"""

from collections import deque
from collections.abc import Iterable
from itertools import compress

import numpy as np

from streamrl.buffers.index.groups.group import Bundle, Row
from streamrl.buffers.rows.records import Records, UnscoredFrame
from streamrl.types import FrameRef


class ScoringBoard:
    """Rows to score, first in, first out. A row is on it once at most: `row.bundle` is the board's."""

    def __init__(self) -> None:
        self._queue: deque[Bundle] = deque()
        self._out: dict[str, dict[Bundle, None]] = {}
        """What each scorer has, in the order in which it was handed out."""
        self.num_waiting = 0

    def put(self, frame: FrameRef, names: Records, rows: list[Row]) -> None:
        """Add rows of one frame at the end. names: of the same rows, type ACCEPTED."""
        if rows:
            self._queue.append(_bundle(frame, names, rows))
            self.num_waiting += len(rows)

    def take(self, scorer: str, max_rows: int) -> list[UnscoredFrame]:
        """Hand out at most `max_rows` rows to `scorer`, whole frames where they fit."""
        taken: list[UnscoredFrame] = []
        room = max_rows
        while room > 0 and self._queue:
            bundle = _wanted(self._queue.popleft())
            if len(bundle.rows) > room:
                bundle, rest = _split(bundle, room)
                self._queue.appendleft(rest)
            if bundle.rows:
                room -= len(bundle.rows)
                self.num_waiting -= len(bundle.rows)
                bundle.scorer = scorer
                self._out.setdefault(scorer, {})[bundle] = None
                taken.append(_as_columns(bundle))
        return taken

    def done(self, rows: Iterable[Row]) -> None:
        """These rows need no score any more: scored by whomever, or dropped. Those that are not here are skipped."""
        for row in rows:
            bundle = row.bundle
            if bundle is not None:
                row.bundle = None
                bundle.num_wanted -= 1
                if bundle.scorer is None:
                    self.num_waiting -= 1
                elif not bundle.num_wanted:
                    del self._out[bundle.scorer][bundle]

    def give_back(self, scorer: str) -> int:
        """Put what `scorer` still has in front again, in its order; returns how many rows."""
        bundles = [_wanted(bundle) for bundle in self._out.pop(scorer, {})]
        for bundle in bundles:
            bundle.scorer = None
        count = sum(len(bundle.rows) for bundle in bundles)
        self._queue.extendleft(reversed(bundles))
        self.num_waiting += count
        return count


def _bundle(frame: FrameRef, names: Records, rows: list[Row]) -> Bundle:
    bundle = Bundle(frame, names, rows, len(rows))
    for row in rows:
        row.bundle = bundle
    return bundle


def _wanted(bundle: Bundle) -> Bundle:
    """The bundle without the rows that nobody wants any more."""
    if bundle.num_wanted == len(bundle.rows):
        return bundle
    wanted = np.array([row.bundle is bundle for row in bundle.rows], np.bool_)
    return _bundle(bundle.frame, bundle.names[wanted], list(compress(bundle.rows, wanted)))


def _split(bundle: Bundle, count: int) -> tuple[Bundle, Bundle]:
    """The first `count` rows, and the others."""
    frame, names, rows = bundle.frame, bundle.names, bundle.rows
    return _bundle(frame, names[:count], rows[:count]), _bundle(frame, names[count:], rows[count:])


def _as_columns(bundle: Bundle) -> UnscoredFrame:
    names = bundle.names
    return UnscoredFrame(
        frame=bundle.frame,
        row=names["row"].copy(),
        number=names["number"].copy(),
        sample_index=names["sample_index"].copy(),
        branch=names["branch"].copy(),
        attempt=names["attempt"].copy(),
    )
