"""Every checksum of a queue's files, checked: ledger, indexes, segments; and what the ledger acknowledged against them.

Guaranteed: what a process that ended left unfinished, and what nobody was told is durable, is told apart from damage
(`streamrl.buffers.ledger.torn`); a frame that the ledger names has the bytes that the ledger says, whatever its own
index says; one look finds damage in every file, and within a segment in every frame. Reads only, and the run may be
live. What other nodes wrote is theirs to check, and copies of it come and go: it is counted here, and no more. A frame
in a file that is gone is damage where a run that goes on would read it, else it is counted: somebody let it go.
"""

import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import partial
from itertools import chain, pairwise
from pathlib import Path

import msgspec
import numpy as np

from streamrl.buffers.ledger.facts import NONE, LedgerFacts, ledger_facts
from streamrl.buffers.ledger.ledger import LedgerFile, check_end, ledger_files, read_ledger_file
from streamrl.buffers.ledger.live_files import read_again
from streamrl.buffers.segments.format import ENTRY_BYTES, MAGIC, IndexEntry, read_index
from streamrl.buffers.segments.places import COMPLETIONS_DIR, HOME, LEDGER_DIR, PARTIALS_DIR, SCORES_DIR, node_of
from streamrl.buffers.segments.reader import SegmentReader
from streamrl.errors import DataError
from streamrl.types import FrameRef

"""Journals of rollouts that have not ended. The ledger names nothing in them."""
_OFFSET = re.compile(r"offset (\d+)")


class Damage(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes that are not what was written. offset: in bytes, None where all of the file is meant. acknowledged: whether
    the queue had said that it is safe."""

    file: str
    offset: int | None
    what: str
    acknowledged: bool


class Unfinished(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes from `offset` on that nobody was told are durable: a write under way, or cut short. No damage."""

    file: str
    offset: int
    num_bytes: int


class Checked(msgspec.Struct, kw_only=True):
    """What was looked at, and what was found. frames, rows: of segments. gone: files that the ledger names, are not
    there, and are not needed. elsewhere: frames that the ledger names, of other nodes."""

    ledger_files: int = 0
    records: int = 0
    segments: int = 0
    frames: int = 0
    rows: int = 0
    num_bytes: int = 0
    acknowledged_frames: int = 0
    elsewhere: int = 0
    gone: list[str] = msgspec.field(default_factory=list)
    unfinished: list[Unfinished] = msgspec.field(default_factory=list)
    damage: list[Damage] = msgspec.field(default_factory=list)


def verify_queue(run_folder: Path, resume_step: int = 0) -> Checked:
    """Check all files of the queue in a run folder. Never raises for what it finds.

    resume_step: of the oldest checkpoint that the run could go on from; rows trained before it are not needed.
    """
    checking = _Checking(run_folder, resume_step)
    # Before the segments: what the ledger names is in them by then.
    files = checking.ledger()
    checking.segments(files)
    return checking.found


def offset_of(error: DataError) -> int | None:
    """The offset that a message names."""
    found = _OFFSET.search(str(error))
    return None if found is None else int(found[1])


class _Checking:
    def __init__(self, run_folder: Path, resume_step: int) -> None:
        self.found = Checked()
        self._run_folder = run_folder
        self._resume_step = resume_step
        self._reader = SegmentReader(run_folder)

    def ledger(self) -> list[LedgerFile]:
        """Check the ledger; the files of it that can be read."""
        folder = self._run_folder / LEDGER_DIR
        try:
            paths = ledger_files(folder)
        except DataError as error:
            self._damaged(LEDGER_DIR, error, acknowledged=True)
            paths = sorted(folder.glob("[0-9]*.log"))
        read = {path: self._ledger_file(path) for path in paths}
        for before, after in pairwise(paths):
            self._joint(read[before], read[after])
        return [file for file in read.values() if file is not None]

    def _ledger_file(self, path: Path) -> LedgerFile | None:
        try:
            file = read_again(partial(read_ledger_file, path))
        except DataError as error:
            self._damaged(self._name(path), error, acknowledged=True)
            return None
        self.found.ledger_files += 1
        self.found.records += len(file.records)
        self.found.num_bytes += file.good_bytes
        self._unfinished(self._name(path), file.good_bytes, file.torn_bytes)
        return file

    def _joint(self, file: LedgerFile | None, successor: LedgerFile | None) -> None:
        if file is not None and successor is not None:
            try:
                check_end(file, successor)
            except DataError as error:
                self._damaged(self._name(file.path), error, acknowledged=True)

    def segments(self, files: list[LedgerFile]) -> None:
        """Check the segments, and that they hold what the ledger names."""
        try:
            facts = ledger_facts(files)
        except DataError as error:
            self._damaged(LEDGER_DIR, error, acknowledged=True)
            facts = LedgerFacts()
        told: dict[str, set[FrameRef]] = {}
        for frame in (*facts.frames, *facts.score_frames, *chain.from_iterable(facts.offered.values())):
            if node_of(frame.path) == HOME:
                told.setdefault(frame.path, set()).add(frame)
            else:
                self.found.elsewhere += 1
        needed = _needed(facts, self._resume_step)
        for path in sorted({*told, *map(self._name, self._paths())}):
            self._segment(path, told.get(path, set()), needed=path in needed)

    def _paths(self) -> Iterator[Path]:
        for folder in (COMPLETIONS_DIR, SCORES_DIR, PARTIALS_DIR):
            yield from (self._run_folder / folder).glob("*.arrow")

    def _segment(self, path: str, told: set[FrameRef], *, needed: bool) -> None:
        """Check one segment. told: the frames of it that the ledger names."""
        index = (self._run_folder / path).with_suffix(".idx")
        before = len(self.found.damage)
        try:
            frames = read_again(lambda: list(self._reader.scan(path)))
        except DataError as error:
            # Without its index nothing in it can be read.
            self._damaged(self._name(index), error, acknowledged=bool(told))
        else:
            self._rows(path, index, frames, told)
        if len(self.found.damage) > before and not (index.exists() and (self._run_folder / path).exists()):
            del self.found.damage[before:]
            self._gone(path, told, needed=needed)

    def _gone(self, path: str, told: set[FrameRef], *, needed: bool) -> None:
        """A segment that is not there as a whole: never finished, let go (at this moment, perhaps), or lost."""
        if needed:
            what = f"{path}: it or its index is missing, and a run that goes on needs rows in it: restore it"
            self.found.damage.append(Damage(file=path, offset=None, what=what, acknowledged=True))
        elif told:
            self.found.gone.append(path)
        else:
            with suppress(FileNotFoundError):
                self._unfinished(path, 0, (self._run_folder / path).stat().st_size)

    def _rows(self, path: str, index: Path, frames: list[FrameRef], told: set[FrameRef]) -> None:
        self.found.segments += 1
        self.found.acknowledged_frames += len(told)
        offsets = {frame.offset for frame in told}
        for frame in frames:
            self._frame(frame, acknowledged=frame.offset in offsets)
        for frame in told.difference(frames):
            self._unknown(frame, self._name(index))
        self._end(path, index, acknowledged=bool(told))

    def _frame(self, frame: FrameRef, *, acknowledged: bool) -> None:
        try:
            read_again(partial(self._reader.read, frame))
        except DataError as error:
            self._damaged(frame.path, error, acknowledged=acknowledged, offset=frame.offset)
            return
        self.found.frames += 1
        self.found.rows += frame.num_rows
        self.found.num_bytes += frame.length

    def _unknown(self, frame: FrameRef, index: str) -> None:
        """A frame that was acknowledged and that the index does not have as it was told to the ledger."""
        try:
            self._reader.read(frame)
            what = f"{index}: has no entry for the frame at offset {frame.offset}, which the ledger names and is whole"
        except DataError as error:
            what = f"{index}: has no entry for a frame that the ledger names, and {error}"
        self.found.damage.append(Damage(file=index, offset=None, what=what, acknowledged=True))

    def _end(self, path: str, index: Path, *, acknowledged: bool) -> None:
        """What lies behind the last good entry and the last good frame, and the end marker of a sealed segment."""
        try:
            read_again(partial(self._reader.verify, path))
            data, entries = read_again(partial(self._entries, index))
        except DataError as error:
            if not any(one.file == path for one in self.found.damage):
                self._damaged(path, error, acknowledged=acknowledged)
            return
        good = len(MAGIC) + len(entries) * ENTRY_BYTES
        self._unfinished(self._name(index), good, len(data[good:].rstrip(b"\0")))
        end = entries[-1].offset + entries[-1].length if entries else 0
        with suppress(FileNotFoundError), (self._run_folder / path).open("rb") as file:
            file.seek(end)
            self._unfinished(path, end, len(file.read().rstrip(b"\0")))

    def _entries(self, index: Path) -> tuple[bytes, list[IndexEntry]]:
        try:
            data = index.read_bytes()
        except OSError as error:
            raise DataError(f"{self._name(index)}: cannot be read: {error.strerror}") from error
        return data, read_index(data, self._name(index))

    def _unfinished(self, file: str, offset: int, num_bytes: int) -> None:
        if num_bytes:
            self.found.unfinished.append(Unfinished(file=file, offset=offset, num_bytes=num_bytes))

    def _damaged(self, file: str, error: DataError, *, acknowledged: bool, offset: int | None = None) -> None:
        where = offset_of(error) if offset is None else offset
        self.found.damage.append(Damage(file=file, offset=where, what=str(error), acknowledged=acknowledged))

    def _name(self, path: Path) -> str:
        return str(path.relative_to(self._run_folder))


def _needed(facts: LedgerFacts, resume_step: int) -> set[str]:
    """The files that a run which goes on reads rows or verdicts from."""
    needed = facts.is_needed(resume_step)
    return {
        *_paths_of(facts.frames, np.unique(facts.frame[needed]).tolist()),
        *_paths_of(facts.score_frames, np.unique(facts.score_frame[needed & (facts.score_frame != NONE)]).tolist()),
        *(frame.path for frames in facts.offered.values() for frame in frames),
    }


def _paths_of(frames: list[FrameRef], places: Iterable[int]) -> set[str]:
    return {frames[place].path for place in places}
