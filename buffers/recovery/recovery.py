"""From the ledger back to the index: what a run knew when it ended.

Guaranteed: after `recover`, everything that was durably accepted is there; steps trained after the checkpoint
are planned again with the same groups; groups issued and not finished wait to be issued again, under their
numbers. Verdicts are read from their frames, so a damaged one is found here. Groups of steps that the
checkpoint covers cost no memory. Replaying uses the index's own rules: nothing is decided anew. Where a file was begun
with another data set than the one before it, which somebody has to have agreed to, unfinished groups are issued again
without the rows that they had: no group has rows of two prompts.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from streamrl.buffers.index.fence import WriterFence
from streamrl.buffers.index.replay_index import ReplayIndex
from streamrl.buffers.ledger.ledger import LedgerFile
from streamrl.buffers.ledger.records import (
    LEDGER_SCHEMA,
    Accepted,
    Cancelled,
    Covered,
    Declined,
    Died,
    Dropped,
    Failed,
    Gathered,
    Incarnation,
    Issued,
    Lost,
    Measured,
    Offered,
    Quarantined,
    Record,
    Rescored,
    RunHeader,
    Scored,
    Step,
    Submitted,
    Withdrawn,
    Writer,
)
from streamrl.buffers.rows.columns import map_columns
from streamrl.buffers.rows.gather import score_columns
from streamrl.buffers.rows.records import ACCEPTED, SCORED, QueueSettings, Records, unpack
from streamrl.buffers.segments.reader import SegmentReader
from streamrl.errors import DataError, RunFolderError
from streamrl.types import FrameRef, LongArray

Flags = npt.NDArray[np.bool_]


@dataclass(slots=True)
class History:
    """What the ledger says as a whole. steps: the groups of each trained step, by its latest record. data_changed: it
    ends with another data set than that of the settings; withdrawn: groups that begin again for that. taken_back: for a
    group whose rows were discarded, the place of the last record that says so, counted from 0. trained_at: the same of
    the last record that trained a group. dropped: by reason, groups that were dropped for their scores just before the
    end, of which there is no record. given_up: groups of which there is one."""

    incarnation: int = -1
    data_changed: bool = False
    withdrawn: list[int] = field(default_factory=list)
    covered_step: int = 0
    given_up: set[int] = field(default_factory=set)
    steps: dict[int, list[int]] = field(default_factory=dict)
    taken_back: dict[int, int] = field(default_factory=dict)
    trained_at: dict[int, int] = field(default_factory=dict)
    dropped: dict[str, list[int]] = field(default_factory=dict)


def check_header(header: RunHeader, settings: QueueSettings, source: Path) -> None:
    """Refuse a ledger of another run.

    Raises:
        RunFolderError: another schema, seed or group size. Names both values.
    """
    ours = (LEDGER_SCHEMA, settings.seed, settings.group_size)
    theirs = (header.schema, header.seed, header.group_size)
    for name, mine, other in zip(("ledger schema", "seed", "group size"), ours, theirs, strict=True):
        if mine != other:
            raise RunFolderError(
                f"{source}: this run was made with {name} {other!r}, and is opened with {mine!r}: "
                "use the old value, or start afresh (`streamrl up --fresh`)"
            )


def _check_data(header: RunHeader, settings: QueueSettings, source: Path, accept_changed: bool) -> bool:
    """Whether the data set is another one than that of a header. Raises RunFolderError where that is not accepted."""
    if header.fingerprint == settings.fingerprint:
        return False
    if not accept_changed:
        raise RunFolderError(
            f"{source}: this run was made with data fingerprint {header.fingerprint!r}, and the data set has "
            f"{settings.fingerprint!r} now: bring the old data back, go on with the new (`streamrl up "
            "--accept-changed-data`), or start afresh (`streamrl up --fresh`)"
        )
    return True


def survey(files: Iterable[LedgerFile], settings: QueueSettings, accept_changed_data: bool = False) -> History:
    """Read over the ledger once: header, steps, incarnation.

    Raises:
        RunFolderError: it belongs to another run, or its newest file to another data set.
    """
    history = History()
    newest: tuple[RunHeader, Path] | None = None
    for place, (path, record) in enumerate((one.path, record) for one in files for record in one.records):
        if isinstance(record, RunHeader):
            check_header(record, settings, path)
            newest = record, path
        elif isinstance(record, Incarnation):
            history.incarnation = max(history.incarnation, record.number)
        elif isinstance(record, Covered):
            history.covered_step = max(history.covered_step, record.step)
        elif isinstance(record, Dropped):
            history.given_up.update(record.numbers)
        elif isinstance(record, Step):
            history.steps[record.step] = record.numbers
            history.trained_at.update(dict.fromkeys(record.numbers, place))
        elif isinstance(record, Lost | Withdrawn):
            history.taken_back.update(dict.fromkeys(record.numbers, place))
            first = record.unplanned if isinstance(record, Lost) else -1
            for step in [step for step in history.steps if step >= first >= 0]:
                del history.steps[step]
    if newest is not None:
        history.data_changed = _check_data(newest[0], settings, newest[1], accept_changed_data)
    return history


def recover(
    files: Iterable[LedgerFile],
    history: History,
    resume_step: int,
    index: ReplayIndex,
    fence: WriterFence,
    reader: SegmentReader,
    as_trained: bool = False,
) -> None:
    """Bring a fresh index and fence to where the ledger ends, for a learner that resumes from `resume_step`.

    as_trained: groups that were trained have the verdicts that they were trained with; else their newest.

    Raises:
        RunFolderError: the ledger does not have every step below `resume_step`, or scores lack a component.
        DataError: a damaged scores frame, or a row that the index refuses.
    """
    missing = [step for step in range(resume_step) if step not in history.steps]
    if missing:
        raise RunFolderError(
            f"the checkpoint is of step {resume_step}, but the ledger does not have step {missing[0]}: "
            "they are not of one run; restore the ledger, or start afresh"
        )
    covered = [number for step in range(resume_step) for number in history.steps[step]]
    trained_at = history.trained_at if as_trained else {}
    replay = _Replay(index, fence, reader, _marked(covered), history.taken_back, history.given_up, trained_at)
    index.start_at(resume_step, len(covered))
    for place, record in enumerate(record for file in files for record in file.records):
        replay.apply(place, record)
    history.withdrawn = replay.settle_data(resume_step, history.data_changed)
    if history.data_changed:
        index.quarantine.forget()
        index.measured.forget()
    index.release_all()
    for step in sorted(step for step in history.steps if step >= resume_step):
        index.plan(step, history.steps[step])
    index.revisions.settle()
    history.dropped = index.pop_dropped()
    index.begin_filtering()


@dataclass(slots=True)
class _Replay:
    """Applies records in order. covered: by group number, whether it needs no memory any more. taken_back, given_up: as
    in `History`. trained_at: groups that keep their verdicts from that record on. fingerprint: of the data set so far.
    changed: another one was begun with, and the step that it began at is still to come."""

    index: ReplayIndex
    fence: WriterFence
    reader: SegmentReader
    covered: Flags
    taken_back: dict[int, int]
    given_up: set[int]
    trained_at: dict[int, int]
    fingerprint: str | None = None
    changed: bool = False

    def apply(self, place: int, record: Record) -> None:
        match record:
            case RunHeader(fingerprint=fingerprint):
                if self.fingerprint not in (None, fingerprint):
                    self.changed = True
                    self.index.quarantine.forget()
                    self.index.measured.forget()
                self.fingerprint = fingerprint
            case Incarnation(_, step):
                self.settle_data(step, False)
            case Writer(name, epoch):
                self.fence.raise_epoch(name, epoch)
                self.index.release(name)
            case Issued():
                self._issue(record)
            case Accepted():
                self._accept(place, record)
            case Scored(frame=frame, rows=rows):
                self._score(frame, unpack(SCORED, rows), self.index.score)
            case Rescored():
                self._rescore(place, record)
            case Died(numbers):
                self.index.died(numbers)
            case Failed() | Quarantined():
                self.index.quarantine.recorded(record)
            case Measured():
                self.index.measured.recorded(record)
            case Dropped(numbers, reason):
                for number in numbers:
                    self.index.drop(number, reason)
            case Withdrawn(numbers, step):
                for number in numbers:
                    self.index.withdraw(number, step)
            case Submitted(stream, asked):
                self.index.submissions.add(stream, asked)
            case Cancelled(items, reason):
                for item in items:
                    self.index.submissions.dropped(item, reason)
            case Offered():
                self.index.offered.add(record)
            case Gathered(number, items):
                self.index.offered.gathered(items, number)
            case Declined(items, reason):
                self.index.offered.declined(items, reason)
            case Lost(numbers, step, rows):
                self.index.lost.begin_again(numbers, step)
                self.index.lost.note(len(numbers), rows)
            case _:
                pass

    def settle_data(self, step: int, changed: bool) -> list[int]:
        """Take from unfinished groups what they have of a data set that is another one now; their numbers."""
        changed, self.changed = changed or self.changed, False
        return self.index.withdraw_begun(step) if changed else []

    def _issue(self, record: Issued) -> None:
        covered = self._are_covered(np.array([ticket.number for ticket in record.tickets], np.int64))
        for ticket, skip in zip(record.tickets, covered.tolist(), strict=True):
            if skip:
                self.index.skip(ticket)
            else:
                self.index.restore_issue(record.replica, ticket)

    def _accept(self, place: int, record: Accepted) -> None:
        rows = unpack(ACCEPTED, record.rows)
        covered = self._is_covered(rows)
        self.index.accept(record.frame, rows[~covered])
        # Rows of a covered group that were discarded, and generated again, are not those that it was trained on.
        last = np.array([self.taken_back.get(number, -1) for number in rows["number"].tolist()], np.int64)
        for taken, book in ((last > place, self.index.add_dropped), (last <= place, self.index.add_trained)):
            book(int((covered & taken).sum()), int(rows["sampled_tokens"][covered & taken].sum()))

    def _rescore(self, place: int, record: Rescored) -> None:
        rows = unpack(SCORED, record.rows)
        trained_at = np.array([self.trained_at.get(number, place) for number in rows["number"].tolist()], np.int64)
        self._score(record.frame, rows[trained_at >= place], self.index.revisions.take)

    def _score(self, frame: FrameRef, rows: Records, take: Callable[..., Any]) -> None:
        rows = rows[~self._is_covered(rows)]
        if not len(rows) or self._let_go(frame, rows):
            return
        batch = self.reader.read(frame)
        valid, reward = score_columns(batch)
        if rows["row"].max() >= len(valid):
            raise DataError(f"{frame.path}: offset {frame.offset}: fewer rows than the ledger names")
        valid, reward = valid[rows["row"]], reward[rows["row"]]
        components = map_columns(batch.column("components"), self.index.components)[rows["row"]]
        self._require_components(frame, rows, valid, components)
        # Text by text, which most frames need not: few scores fail.
        reason = None if valid.all() else batch.column("reason").take(pa.array(rows["row"])).to_pylist()
        take(rows, valid, reward, components, reason)

    def _let_go(self, frame: FrameRef, rows: Records) -> bool:
        """Whether nobody needed these verdicts any more, and they went with their file
        (`streamrl.buffers.segments.retention`)."""
        return self.given_up.issuperset(rows["number"].tolist()) and not self.reader.has(frame.path)

    def _require_components(
        self, frame: FrameRef, rows: Records, valid: Flags, components: npt.NDArray[np.float64]
    ) -> None:
        """Refuse scores that were taken when the run had other components."""
        lacking = valid[:, None] & ~np.isfinite(components)
        if not lacking.any():
            return
        place, column = np.argwhere(lacking)[0]
        raise RunFolderError(
            f"{frame.path}: offset {frame.offset}: group {rows['number'][place]}, sample "
            f"{rows['sample_index'][place]} was scored without the component {self.index.components[column]!r}, which "
            "learner.algorithm.components names now: use the components that the run was made with, or start afresh "
            "(`streamrl up --fresh`)"
        )

    def _is_covered(self, rows: Records) -> Flags:
        return self._are_covered(np.asarray(rows["number"], np.int64))

    def _are_covered(self, numbers: LongArray) -> Flags:
        known = numbers < len(self.covered)
        # A number that is not known has the place of one that is, and is put right after.
        return np.asarray(self.covered[np.where(known, numbers, 0)] & known, np.bool_)


def _marked(numbers: list[int]) -> Flags:
    """Which numbers are among these, by number; looking one up costs the same however many there are."""
    flags = np.zeros(max(numbers, default=0) + 1, np.bool_)
    flags[numbers] = True
    return flags
