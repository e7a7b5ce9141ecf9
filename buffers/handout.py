"""Which rows wait for a score, and which scorer has them.

Guaranteed: a row is handed to one scorer at a time, in the order of arrival; what a lost scorer had comes
first again; a row that is no longer wanted is not handed out. Pure; linear in the rows of a call.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from buffers.records import UnscoredFrame
from streamrl.types import FrameRef

Key = tuple[int, int, int, int]
"""(group number, sample index, branch, attempt)"""


@dataclass(slots=True)
class _Bundle:
    """Rows of one frame: their keys, and their places in it."""

    frame: FrameRef
    rows: dict[Key, int]


class ScoringBoard:
    """Rows to score, first in, first out."""

    def __init__(self) -> None:
        self._queue: deque[_Bundle] = deque()
        self._holder: dict[Key, str] = {}
        """Who has a row that is wanted; "" while it waits."""
        self._out: dict[str, dict[Key, FrameRef]] = {}
        self._row: dict[Key, int] = {}
        self.num_waiting = 0

    def put(self, frame: FrameRef, rows: dict[Key, int]) -> None:
        """Add rows of one frame at the end: their places in it, by key."""
        if rows:
            self._queue.append(_Bundle(frame, rows))
            self._holder.update(dict.fromkeys(rows, ""))
            self.num_waiting += len(rows)

    def take(self, scorer: str, max_rows: int) -> list[UnscoredFrame]:
        """Hand out at most `max_rows` rows to `scorer`, whole frames where they fit."""
        taken: list[UnscoredFrame] = []
        room = max_rows
        while room > 0 and self._queue:
            bundle = self._queue.popleft()
            wanted = [(key, row) for key, row in bundle.rows.items() if key in self._holder]
            if len(wanted) > room:
                self._queue.appendleft(_Bundle(bundle.frame, dict(wanted[room:])))
                wanted = wanted[:room]
            if wanted:
                room -= len(wanted)
                self._hand_out(scorer, bundle.frame, dict(wanted))
                taken.append(_as_columns(bundle.frame, dict(wanted)))
        return taken

    def done(self, keys: Iterable[Key]) -> None:
        """These rows need no score any more: scored by whomever, or dropped. Unknown ones are skipped."""
        for key in keys:
            scorer = self._holder.pop(key, None)
            if scorer == "":
                self.num_waiting -= 1
            elif scorer is not None:
                del self._out[scorer][key]
                del self._row[key]

    def give_back(self, scorer: str) -> int:
        """Put what `scorer` still has in front again, in its order; returns how many rows."""
        held = self._out.pop(scorer, {})
        bundles: dict[FrameRef, _Bundle] = {}
        for key, frame in held.items():
            self._holder[key] = ""
            bundles.setdefault(frame, _Bundle(frame, {})).rows[key] = self._row.pop(key)
        self._queue.extendleft(reversed(bundles.values()))
        self.num_waiting += len(held)
        return len(held)

    def _hand_out(self, scorer: str, frame: FrameRef, rows: dict[Key, int]) -> None:
        self._holder.update(dict.fromkeys(rows, scorer))
        self._out.setdefault(scorer, {}).update(dict.fromkeys(rows, frame))
        self._row.update(rows)
        self.num_waiting -= len(rows)


def _as_columns(frame: FrameRef, rows: dict[Key, int]) -> UnscoredFrame:
    number, sample_index, branch, attempt = np.array(list(rows), np.int64).T
    return UnscoredFrame(
        frame=frame,
        row=np.fromiter(rows.values(), np.int32, len(rows)),
        number=number.copy(),
        sample_index=sample_index.astype(np.int32),
        branch=branch.astype(np.int32),
        attempt=attempt.astype(np.int32),
    )
