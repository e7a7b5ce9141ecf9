"""Which log files of completions and scores may go, and when.

Guaranteed: a file stays as long as it has rows of a group that is neither trained nor dropped, or that was trained at
or after the lowest step that a resume could begin with; so does the file that a writer is on, and every later one. The
books follow from the ledger's records alone, so they are the same after a restart. Each node has the budget for itself;
of another node's files only those are known from which rows were taken, as far as the last of these. Removing is the
caller's to do: nothing is removed while one is asked what could be.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from streamrl.buffers.ledger.records import (
    Accepted,
    Declined,
    Dropped,
    Gathered,
    Lost,
    Offered,
    Record,
    Rescored,
    Scored,
    Step,
)
from streamrl.buffers.rows.records import ACCEPTED, SCORED, QueueSettings, unpack
from streamrl.buffers.segments.places import HOME, PARTIALS_DIR, SEGMENT_NAME, SPARE_DIR, node_of
from streamrl.buffers.segments.spare_files import sizes

_FOLDERS: Final = ("queue/completions", "queue/scores")


@dataclass(frozen=True, slots=True)
class LogFile:
    """A segment with its index. num_bytes: of both, on the disk."""

    path: str
    writer: str
    epoch: int
    number: int
    num_bytes: int


class Retention:
    """The books of one queue's files. One event loop uses it.

    Example:
        retention.note(record)                        # every record, as it is written or read back
        await remover.remove(retention.removable(oldest, epochs, growth))
    """

    def __init__(self, run_folder: Path, settings: QueueSettings) -> None:
        self._run_folder = run_folder
        self._settings = settings
        self._open: dict[str, set[int]] = {}
        """Groups with rows in a file that are neither trained nor dropped."""
        self._files_of: dict[int, set[str]] = {}
        self._offered = 0
        """Trajectories that were offered so far; one that waits counts as a group of its own, of a number below 0."""
        self._until: dict[str, int] = {}
        """A file's rows were trained on at steps below this."""
        self._trained: dict[int, dict[int, set[str]]] = {}
        """The files of each group of a step that a resume could go back to."""
        self._newest: dict[tuple[str, int], int] = {}
        """Number of the newest file, by writer and epoch, with rows that were taken."""
        self._ends: dict[str, int] = {}
        """Bytes of each file of another node up to its last row that was taken, in the order of the first ones."""
        self.lack = ""
        """Why the files take more than their budget, in words with the figures; "" when they do not."""

    def note(self, record: Record) -> None:
        """Take in a record of the ledger."""
        match record:
            case Accepted(frame=frame, rows=rows):
                self._add(frame.path, set(unpack(ACCEPTED, rows)["number"].tolist()))
                if node_of(frame.path) != HOME:
                    self._ends[frame.path] = max(self._ends.get(frame.path, 0), frame.offset + frame.length)
            case Scored(frame=frame, rows=rows):
                self._add(frame.path, set(unpack(SCORED, rows)["number"].tolist()))
            case Rescored(frame=frame, rows=rows):
                self._revise(frame.path, set(unpack(SCORED, rows)["number"].tolist()))
            case Step(step, numbers):
                self._trained[step] = self._close(numbers)
                for path in set().union(*self._trained[step].values()):
                    self._until[path] = max(self._until.get(path, 0), step + 1)
            case Dropped(numbers, _):
                self._close(numbers)
            case Offered(frame=frame, score_frame=score_frame):
                self._offered += 1
                for path in (frame.path, score_frame.path):
                    self._add(path, {-self._offered})
            case Gathered(items=items) | Declined(items=items):
                self._close([-1 - item for item in items])
            case Lost(numbers, _, _, unplanned) if unplanned >= 0:
                self._reopen(unplanned, set(numbers))
            case _:
                pass

    def _add(self, path: str, numbers: set[int]) -> None:
        self._open.setdefault(path, set()).update(numbers)
        for number in numbers:
            self._files_of.setdefault(number, set()).add(path)
        name = SEGMENT_NAME.fullmatch(path.rpartition("/")[2])
        if name is not None:
            stem = f"{path.rpartition('/')[0]}/{name['writer']}", int(name["epoch"])
            self._newest[stem] = max(self._newest.get(stem, -1), int(name["number"]))

    def _revise(self, path: str, numbers: set[int]) -> None:
        """A file has other verdicts on these groups. Those that nobody reads any more do not keep it."""
        self._add(path, numbers & self._files_of.keys())
        for step, closed in self._trained.items():
            for number in numbers & closed.keys():
                closed[number].add(path)
                self._until[path] = max(self._until.get(path, 0), step + 1)

    def _close(self, numbers: list[int]) -> dict[int, set[str]]:
        """Groups that need their rows no more, unless a resume begins before them; the files of each."""
        closed = {number: self._files_of.pop(number, set()) for number in numbers}
        for number, paths in closed.items():
            for path in paths:
                self._open[path].discard(number)
        return closed

    def _reopen(self, step: int, lost: set[int]) -> None:
        """Steps from `step` on will not be trained again as they were: what is not lost of their groups waits again."""
        for later in [one for one in self._trained if one >= step]:
            for number, paths in self._trained.pop(later).items():
                for path in paths if number not in lost else ():
                    self._add(path, {number})

    def removable(self, oldest: int, epochs: dict[str, int], growth: int) -> list[str]:
        """Files that go now, the oldest first, by `retain` and `disk_budget` of the settings; then those that are kept
        to be written over, where there is no room for them.

        oldest: the lowest step that a resume could begin with. epochs: of each writer now. growth: bytes that may still
        be written before this is asked again. Sets `lack`.
        """
        for step in [step for step in self._trained if step < oldest]:
            del self._trained[step]
        spares = dict(sizes(self._run_folder / SPARE_DIR))
        going: list[LogFile] = []
        lacks = []
        for node, files in self._by_node().items():
            spare_bytes = sum(spares.values()) if node == HOME else 0
            may_go = [file for file in files if self._may_go(file, oldest, epochs)]
            taken = sum(file.num_bytes for file in files) + (self._journal_bytes() if node == HOME else 0)
            # What comes is written over the spare files first.
            total = taken + max(growth, spare_bytes)
            chosen = may_go if self._settings.retain == "covered" else self._over_budget(may_go, total)
            left = taken - sum(file.num_bytes for file in chosen)
            lacks.append(self._lack_of(node, left))
            if node == HOME and left + spare_bytes <= self._settings.disk_budget:
                spares.clear()
            going += chosen
        self.lack = "; ".join(filter(None, lacks))
        for file in going:
            for known in (self._open, self._until, self._ends):
                known.pop(file.path, None)
        return [*(file.path for file in going), *(f"{SPARE_DIR}/{name}" for name in spares)]

    def _may_go(self, file: LogFile, oldest: int, epochs: dict[str, int]) -> bool:
        if self._open.get(file.path) or self._until.get(file.path, 0) > oldest:
            return False
        # A frame may be written whose rows nobody has told of yet: not in a file behind which rows were taken already,
        # since a writer tells of its frames in order, nor by a process that was replaced.
        stem = f"{file.path.rpartition('/')[0]}/{file.writer}", file.epoch
        return epochs.get(file.writer, -1) > file.epoch or self._newest.get(stem, -1) > file.number

    def _over_budget(self, may_go: list[LogFile], total: int) -> list[LogFile]:
        going = []
        for file in may_go:
            if total <= self._settings.disk_budget:
                break
            going.append(file)
            total -= file.num_bytes
        return going

    def _lack_of(self, node: str, left: int) -> str:
        budget = self._settings.disk_budget
        if left <= budget:
            return ""
        where = "the queue's log files" if node == HOME else f"the queue's log files on node {node}"
        why = "and all of them have rows that a resume could need, or are being written"
        return f"{where} take {left:,} bytes, queue.disk_budget is {budget:,}, {why}"

    def _by_node(self) -> dict[str, list[LogFile]]:
        """The files of each node, the oldest first."""
        nodes = {HOME: self._files_here()}
        for path, size in self._ends.items():
            name = SEGMENT_NAME.fullmatch(path.rpartition("/")[2])
            if name is not None:
                file = LogFile(path, name["writer"], int(name["epoch"]), int(name["number"]), size)
                nodes.setdefault(node_of(path), []).append(file)
        return nodes

    def _journal_bytes(self) -> int:
        """What the journals of unfinished rollouts take here: a few segments for each replica."""
        return sum(_size_of(path) for path in (self._run_folder / PARTIALS_DIR).glob("*"))

    def _files_here(self) -> list[LogFile]:
        found: list[tuple[int, LogFile]] = []
        for folder in _FOLDERS:
            for path in (self._run_folder / folder).glob("*.arrow"):
                name = SEGMENT_NAME.fullmatch(path.name)
                if name is None:
                    continue
                try:
                    stat = path.stat()
                except FileNotFoundError:  # its writer had no room for it, or keeps the memory for the next one
                    continue
                size = stat.st_size + _size_of(path.with_suffix(".idx"))
                numbers = int(name["epoch"]), int(name["number"])
                found.append((stat.st_mtime_ns, LogFile(f"{folder}/{path.name}", name["writer"], *numbers, size)))
        return [file for _, file in sorted(found, key=lambda pair: (pair[0], pair[1].path))]


def _size_of(path: Path) -> int:
    try:
        return os.stat(path).st_size
    except FileNotFoundError:
        return 0
