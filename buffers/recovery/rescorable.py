"""Which rows of a run another reward can score, and which groups learn from what it said. Pure.

Guaranteed: a group learns from the new verdicts of all its rows or of none; one that a step may take again keeps at
least the verdicts that it needs to be trained.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from streamrl.buffers.ledger.facts import NONE, LedgerFacts
from streamrl.buffers.rows.records import SCORED, Records
from streamrl.types import FrameRef, LongArray

Flags = npt.NDArray[np.bool_]


def scored_rows(facts: LedgerFacts) -> LongArray:
    """int64 [K], the places in `facts.rows` of the rows that have a verdict and were not taken back."""
    return np.flatnonzero((facts.score_frame != NONE) & ~facts.is_withdrawn())


def by_frame(facts: LedgerFacts, entries: LongArray) -> Iterator[tuple[FrameRef, LongArray]]:
    """The frames of completions that hold these rows, in the order of acceptance, each with its entries."""
    order = np.argsort(facts.frame[entries], kind="stable")
    frames, starts = np.unique(facts.frame[entries][order], return_index=True)
    for frame, part in zip(frames.tolist(), np.split(entries[order], starts[1:]), strict=True):
        yield facts.frames[frame], part


@dataclass(frozen=True, slots=True)
class Needs:
    """What a group must have to be trained. samples: with a valid verdict. greedy_sample: one of them; None for any."""

    samples: int
    greedy_sample: int | None


def learn(facts: LedgerFacts, entries: LongArray, valid: Flags, needs: Needs) -> Flags:
    """bool [K]: rows whose group learns from the new verdicts. entries: int64 [K], the rows that were scored; valid:
    bool [K], which of the verdicts are.

    Raises:
        ValueError: arrays of different lengths.
    """
    numbers = facts.rows["number"]
    wanted = scored_rows(facts)
    whole = ~np.isin(numbers[entries], numbers[np.setdiff1d(wanted, entries)])
    dropped = np.isin(numbers[entries], np.array(sorted(facts.dropped), np.int64))
    trained = facts.trained_step()[entries] != NONE
    return np.asarray(whole & ~dropped & (~trained | _trainable(facts, entries, valid, needs)), np.bool_)


def _trainable(facts: LedgerFacts, entries: LongArray, valid: Flags, needs: Needs) -> Flags:
    rows = facts.rows[entries]
    keys = np.stack((rows["number"][valid], rows["sample_index"][valid].astype(np.int64)), axis=1)
    pairs = np.unique(keys, axis=0)
    numbers, counts = np.unique(pairs[:, 0], return_counts=True)
    enough = numbers[counts >= needs.samples]
    if needs.greedy_sample is not None:
        enough = np.intersect1d(enough, pairs[pairs[:, 1] == needs.greedy_sample, 0])
    return np.asarray(np.isin(rows["number"], enough), np.bool_)


def packed(facts: LedgerFacts, entries: LongArray, learns: Flags) -> Records:
    """Those of one frame's verdicts that count, type SCORED. entries: the rows in the frame's order."""
    rows = facts.rows[entries]
    records = np.empty(len(rows), SCORED)
    for name in ("number", "sample_index", "branch", "attempt"):
        records[name] = rows[name]
    records["row"] = np.arange(len(rows), dtype=np.int32)
    return records[learns]
