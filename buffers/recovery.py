"""From the ledger back to the index: what a run knew when it ended.

Guaranteed: after `recover`, everything that was durably accepted is there; steps trained after the checkpoint
are planned again with the same groups; groups issued and not finished wait to be issued again, under their
numbers. Verdicts are read from their frames, so a damaged one is found here. Groups of steps that the
checkpoint covers cost no memory. Replaying uses the index's own rules: nothing is decided anew.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from buffers.fence import WriterFence
from buffers.gather import score_columns
from buffers.index import ReplayIndex
from buffers.ledger import LedgerFile
from buffers.ledger_records import (
    LEDGER_SCHEMA,
    Accepted,
    Covered,
    Dropped,
    Incarnation,
    Issued,
    Record,
    RunHeader,
    Scored,
    Step,
    Withdrawn,
    Writer,
)
from buffers.records import ACCEPTED, SCORED, QueueSettings, Records, unpack
from buffers.segment_reader import SegmentReader
from streamrl.errors import DataError, RunFolderError
from streamrl.types import LongArray


@dataclass(slots=True)
class History:
    """What the ledger says as a whole. steps: the groups of each trained step, by its latest record."""

    incarnation: int = -1
    covered_step: int = 0
    steps: dict[int, list[int]] = field(default_factory=dict)


def check_header(header: RunHeader, settings: QueueSettings, source: Path) -> None:
    """Refuse a ledger of another run.

    Raises:
        RunFolderError: another schema, data set, seed or group size. Names both values.
    """
    ours = (LEDGER_SCHEMA, settings.fingerprint, settings.seed, settings.group_size)
    theirs = (header.schema, header.fingerprint, header.seed, header.group_size)
    for name, mine, other in zip(
        ("ledger schema", "data fingerprint", "seed", "group size"), ours, theirs, strict=True
    ):
        if mine != other:
            raise RunFolderError(
                f"{source}: this run was made with {name} {other!r}, and is opened with {mine!r}: "
                "use the old value, or start afresh (`streamrl up --fresh`)"
            )


def survey(files: Iterable[LedgerFile], settings: QueueSettings) -> History:
    """Read over the ledger once: header, steps, incarnation.

    Raises:
        RunFolderError: it belongs to another run.
    """
    history = History()
    for file in files:
        for record in file.records:
            if isinstance(record, RunHeader):
                check_header(record, settings, file.path)
            elif isinstance(record, Incarnation):
                history.incarnation = max(history.incarnation, record.number)
            elif isinstance(record, Covered):
                history.covered_step = max(history.covered_step, record.step)
            elif isinstance(record, Step):
                history.steps[record.step] = record.numbers
    return history


def recover(
    files: Iterable[LedgerFile],
    history: History,
    resume_step: int,
    index: ReplayIndex,
    fence: WriterFence,
    reader: SegmentReader,
) -> None:
    """Bring a fresh index and fence to where the ledger ends, for a learner that resumes from `resume_step`.

    Raises:
        RunFolderError: the ledger does not have every step below `resume_step`.
        DataError: a damaged scores frame, or a row that the index refuses.
    """
    missing = [step for step in range(resume_step) if step not in history.steps]
    if missing:
        raise RunFolderError(
            f"the checkpoint is of step {resume_step}, but the ledger does not have step {missing[0]}: "
            "they are not of one run; restore the ledger, or start afresh"
        )
    covered = [number for step in range(resume_step) for number in history.steps[step]]
    replay = _Replay(index, fence, reader, np.array(sorted(covered), np.int64))
    index.start_at(resume_step, len(covered))
    for file in files:
        for record in file.records:
            replay.apply(record)
    index.release_all()
    index.pop_failed()
    for step in sorted(step for step in history.steps if step >= resume_step):
        index.plan(step, history.steps[step])


@dataclass(slots=True)
class _Replay:
    """Applies records in order. covered: int64, sorted numbers of groups that need no memory any more."""

    index: ReplayIndex
    fence: WriterFence
    reader: SegmentReader
    covered: LongArray

    def apply(self, record: Record) -> None:
        match record:
            case Writer(name, epoch):
                self.fence.raise_epoch(name, epoch)
                self.index.release(name)
            case Issued():
                self._issue(record)
            case Accepted():
                self._accept(record)
            case Scored():
                self._score(record)
            case Dropped(numbers, reason):
                for number in numbers:
                    self.index.drop(number, reason)
            case Withdrawn(numbers, step):
                for number in numbers:
                    self.index.withdraw(number, step)
            case _:
                pass

    def _issue(self, record: Issued) -> None:
        covered = np.isin([ticket.number for ticket in record.tickets], self.covered)
        for ticket, skip in zip(record.tickets, covered.tolist(), strict=True):
            if skip:
                self.index.skip(ticket.number)
            else:
                self.index.restore_issue(record.replica, [ticket])

    def _accept(self, record: Accepted) -> None:
        rows = unpack(ACCEPTED, record.rows)
        covered = self._is_covered(rows)
        self.index.add_trained(int(covered.sum()), int(rows["sampled_tokens"][covered].sum()))
        self.index.accept(record.frame, rows[~covered])

    def _score(self, record: Scored) -> None:
        rows = unpack(SCORED, record.rows)
        rows = rows[~self._is_covered(rows)]
        if not len(rows):
            return
        valid, reward = score_columns(self.reader.read(record.frame))
        if rows["row"].max() >= len(valid):
            raise DataError(f"{record.frame.path}: offset {record.frame.offset}: fewer rows than the ledger names")
        self.index.score(rows, valid[rows["row"]], reward[rows["row"]])

    def _is_covered(self, rows: Records) -> "np.ndarray[tuple[int], np.dtype[np.bool_]]":
        return np.asarray(np.isin(rows["number"], self.covered), np.bool_)
