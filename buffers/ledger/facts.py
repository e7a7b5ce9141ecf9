"""What the ledger says of every row, as columns: when it was accepted, scored, withdrawn, dropped or trained.

Guaranteed: the outcome is that of the index's own replay (`streamrl.buffers.recovery.recovery`), row by row, as of the
moment at which the ledger ends; a step of a branch of history that was lost counts only once it is trained again.
Linear in the rows, and vectorised. Nothing here reads a frame: which verdicts are valid is told by whoever has read
them.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from streamrl.buffers.ledger.ledger import LedgerFile
from streamrl.buffers.ledger.records import (
    Accepted,
    Covered,
    Declined,
    Dropped,
    Gathered,
    Incarnation,
    Lost,
    Offered,
    Record,
    Rescored,
    RunHeader,
    Scored,
    Step,
    Withdrawn,
)
from streamrl.buffers.rows.records import ACCEPTED, FAILED_FINISHES, SCORED, Records, unpack
from streamrl.types import FrameRef, IntArray, LongArray

NONE: Final = -1
"""In place of a step, a record or a frame that is not there."""
_KEY: Final = ("number", "sample_index", "branch", "attempt")


class RowState(IntEnum):
    """What became of an accepted row. Withdrawn: taken back, as too late or as lost with its node, and its group
    generated again."""

    RUNNING = 0
    READY = 1
    TRAINED = 2
    DROPPED = 3
    WITHDRAWN = 4


@dataclass(slots=True)
class LedgerFacts:
    """The ledger as a whole. Arrays are [N], one entry an accepted row, in the order of acceptance.

    rows: type ACCEPTED. frame: the row's place in `frames`. position: number of the record that accepted it, over
    all files, from 0. score_frame: place in `score_frames` of the verdict that it was trained with, or of its newest;
    NONE for none; score_row: the place in that frame. next_step: the step whose batch comes next; steps: the groups of
    each step, by its latest record; withdrawn: for a group, number of the last record that took its rows back. A lost
    branch may have steps from `next_step` on. offered: (frame, score frame) of each trajectory that waits for its
    group, by number.
    """

    group_size: int = 0
    incarnation: int = NONE
    next_step: int = 0
    covered_step: int = 0
    steps: dict[int, list[int]] = field(default_factory=dict)
    dropped: dict[int, str] = field(default_factory=dict)
    withdrawn: dict[int, int] = field(default_factory=dict)
    frames: list[FrameRef] = field(default_factory=list)
    score_frames: list[FrameRef] = field(default_factory=list)
    offered: dict[int, tuple[FrameRef, FrameRef]] = field(default_factory=dict)
    rows: Records = field(default_factory=lambda: np.zeros(0, ACCEPTED))
    frame: LongArray = field(default_factory=lambda: np.zeros(0, np.int64))
    position: LongArray = field(default_factory=lambda: np.zeros(0, np.int64))
    score_frame: LongArray = field(default_factory=lambda: np.zeros(0, np.int64))
    score_row: LongArray = field(default_factory=lambda: np.zeros(0, np.int64))

    def trained_step(self) -> LongArray:
        """int64 [N], the step whose batch had the row's group, NONE where none has (yet, or again)."""
        trained = {number: step for step, numbers in self.steps.items() if step < self.next_step for number in numbers}
        step = look_up(self.rows["number"], trained)
        return np.where(self.is_withdrawn(), NONE, step)

    def failed_at_once(self) -> npt.NDArray[np.bool_]:
        """bool [N], rollouts that ended as abort or error: they have failed, and nobody scores them."""
        return np.asarray(np.isin(self.rows["finish"], list(FAILED_FINISHES)), np.bool_)

    def is_needed(self, resume_step: int) -> npt.NDArray[np.bool_]:
        """bool [N], rows that a run which goes on from a checkpoint of `resume_step` still reads."""
        step = self.trained_step()
        covered = (step != NONE) & (step < resume_step)
        return np.asarray(~(covered | self._is_dropped() | self.is_withdrawn()), np.bool_)

    def states(self, valid: npt.NDArray[np.bool_]) -> npt.NDArray[np.int8]:
        """int8 [N], the RowState of each row. valid: bool [N], rows with a verdict that is valid."""
        state = np.full(len(self.rows), RowState.RUNNING, np.int8)
        complete, comparable = self._complete(valid)
        state[complete] = RowState.READY
        # The record of such a drop may be lost with the process; the next opening drops the group again.
        state[self._is_dropped() | (complete & ~comparable)] = RowState.DROPPED
        state[self.trained_step() != NONE] = RowState.TRAINED
        state[self.is_withdrawn()] = RowState.WITHDRAWN
        return state

    def _complete(self, valid: npt.NDArray[np.bool_]) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
        """bool [N] each: rows of groups whose rollouts are all there and scored, and of groups that can be compared."""
        stands = ~self.is_withdrawn()
        scored = (self.score_frame != NONE) | self.failed_at_once()
        _, group = np.unique(self.rows["number"], return_inverse=True)
        groups = int(group.max(initial=NONE)) + 1
        unscored = np.bincount(group, weights=stands & ~scored, minlength=groups)
        samples = _distinct(group, self.rows["sample_index"], stands, groups)
        comparable = _distinct(group, self.rows["sample_index"], stands & valid, groups) >= min(2, self.group_size)
        complete = (samples == self.group_size) & (unscored == 0)
        return complete[group] & stands, comparable[group]

    def _is_dropped(self) -> npt.NDArray[np.bool_]:
        return np.isin(self.rows["number"], np.array(sorted(self.dropped), np.int64))

    def is_withdrawn(self) -> npt.NDArray[np.bool_]:
        """bool [N], rows that were taken back."""
        return self.position < look_up(self.rows["number"], self.withdrawn)


def ledger_facts(files: Iterable[LedgerFile]) -> LedgerFacts:
    """What the records of `files`, in order, come to.

    Raises:
        DataError: packed rows that are none.
    """
    reading = _Reading()
    for position, (_, record) in enumerate(numbered(files)):
        reading.apply(position, record)
    return reading.finish()


def numbered(files: Iterable[LedgerFile]) -> Iterator[tuple[LedgerFile, Record]]:
    """All records in order, each with its file."""
    return ((file, record) for file in files for record in file.records)


def look_up(keys: npt.NDArray[np.integer], table: dict[int, int]) -> LongArray:
    """int64 [N]: what `table` has for each key, NONE where it has nothing."""
    if not table:
        return np.full(len(keys), NONE, np.int64)
    known = np.array(sorted(table), np.int64)
    values = np.array([table[key] for key in known.tolist()], np.int64)
    place = np.minimum(np.searchsorted(known, keys), len(known) - 1)
    return np.where(known[place] == keys, values[place], NONE)


class _Reading:
    """Takes records in order."""

    def __init__(self) -> None:
        self._facts = LedgerFacts()
        self._rows: list[Records] = []
        self._positions: list[int] = []
        self._verdicts: list[Records] = []
        self._revised_at: list[int] = []
        """For each part of the verdicts the record that has it, where that is one of a rescoring; else NONE."""
        self._trained_at: dict[int, int] = {}
        """For each group, the last record that trained it."""
        self._offered = 0

    def apply(self, position: int, record: Record) -> None:
        facts = self._facts
        match record:
            case RunHeader(group_size=group_size):
                facts.group_size = group_size
            case Incarnation(number, step):
                facts.incarnation, facts.next_step = number, step
                facts.covered_step = min(facts.covered_step, step)
            case Accepted(frame=frame, rows=rows):
                facts.frames.append(frame)
                self._rows.append(unpack(ACCEPTED, rows))
                self._positions.append(position)
            case Scored(frame=frame, rows=rows):
                self._score(frame, rows, NONE)
            case Rescored(frame=frame, rows=rows):
                self._score(frame, rows, position)
            case Offered(frame=frame, score_frame=score_frame):
                facts.offered[self._offered] = frame, score_frame
                self._offered += 1
            case Gathered(items=items) | Declined(items=items):
                for item in items:
                    del facts.offered[item]
            case Dropped(numbers, reason):
                facts.dropped.update(dict.fromkeys(numbers, reason))
            case Withdrawn(numbers):
                self._withdraw(numbers, position)
            case Lost(numbers, unplanned=unplanned):
                self._withdraw(numbers, position)
                for step in [step for step in facts.steps if step >= unplanned >= 0]:
                    self._not_trained(facts.steps.pop(step))
            case Step(step, numbers):
                facts.steps[step] = numbers
                facts.next_step = step + 1
                self._trained_at.update(dict.fromkeys(numbers, position))
            case Covered(step):
                facts.covered_step = max(facts.covered_step, step)
            case _:
                pass

    def _withdraw(self, numbers: list[int], position: int) -> None:
        self._facts.withdrawn.update(dict.fromkeys(numbers, position))
        self._not_trained(numbers)

    def _not_trained(self, numbers: list[int]) -> None:
        for number in numbers:
            self._trained_at.pop(number, None)

    def _score(self, frame: FrameRef, rows: bytes, revised_at: int) -> None:
        self._facts.score_frames.append(frame)
        self._verdicts.append(unpack(SCORED, rows))
        self._revised_at.append(revised_at)

    def finish(self) -> LedgerFacts:
        facts = self._facts
        facts.rows, facts.frame = _joined(self._rows, ACCEPTED)
        facts.position = np.array(self._positions, np.int64)[facts.frame]
        verdicts, frame = _joined(self._verdicts, SCORED)
        counts = self._counts(verdicts, frame)
        verdicts, frame = verdicts[counts], frame[counts]
        match_ = _verdict_of(facts.rows, verdicts)
        found = match_ != NONE
        facts.score_frame, facts.score_row = np.full((2, len(match_)), NONE, np.int64)
        facts.score_frame[found] = frame[match_[found]]
        facts.score_row[found] = verdicts["row"][match_[found]]
        return facts

    def _counts(self, verdicts: Records, part: LongArray) -> npt.NDArray[np.bool_]:
        """bool [N], verdicts but for revisions that came behind the last training of their group."""
        revised_at, trained_at = (
            np.array(self._revised_at, np.int64)[part],
            look_up(verdicts["number"], self._trained_at),
        )
        return np.asarray((revised_at == NONE) | (trained_at == NONE) | (revised_at < trained_at), np.bool_)


def _joined(parts: list[Records], dtype: "np.dtype[np.void]") -> tuple[Records, LongArray]:
    """The parts one after the other, and int64 [N], the part that each row is of."""
    lengths = np.array([len(part) for part in parts], np.int64)
    return np.concatenate([np.zeros(0, dtype), *parts]), np.repeat(np.arange(len(parts)), lengths)


def _verdict_of(rows: Records, verdicts: Records) -> LongArray:
    """int64 [N], the place of each row's last verdict, NONE for none: it names the same rollout, branch and attempt."""
    columns: list[npt.NDArray[Any]] = [np.concatenate((rows[name], verdicts[name])) for name in _KEY]
    is_verdict = np.repeat([0, 1], [len(rows), len(verdicts)])
    # Sorted by key, a row comes right before its verdicts, which keep their order.
    order = np.lexsort((is_verdict, *reversed(columns)))
    before, after = order[:-1], order[1:]
    ends = np.append(np.logical_or.reduce([column[before] != column[after] for column in columns]), True)[: len(order)]
    last = order[np.flatnonzero(ends)][np.cumsum(ends) - ends]
    pairs = (is_verdict[order] == 0) & (is_verdict[last] == 1)
    found = np.full(len(rows), NONE, np.int64)
    found[order[pairs]] = last[pairs] - len(rows)
    return found


def _distinct(group: npt.NDArray[np.intp], sample: IntArray, counts: npt.NDArray[np.bool_], groups: int) -> LongArray:
    """int64 [G], distinct samples of each group among the rows that count."""
    pairs = np.unique(np.stack((group[counts], sample[counts]), axis=1), axis=0)
    return np.bincount(pairs[:, 0], minlength=groups)
