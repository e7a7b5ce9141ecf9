"""The journal of one replica's unfinished rollouts: pieces in segments of its own, removed once nobody needs them.

Guaranteed: an acknowledged piece is as durable as the queue's rows are; a segment that is not written any more goes
when every rollout with pieces in it has ended or has been written anew; at most `SEALED_KEPT` such segments stay, since
what keeps the oldest is written anew then (`crowding`). Whatever is wrong with a journal that is read, its rollouts
begin anew and nothing else: `read_partials` says what it was. Not known here: groups, tickets, and who may go on from
what.
"""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Final

import pyarrow as pa

from streamrl.buffers.ledger.live_files import read_again
from streamrl.buffers.rows.partial_rows import Piece, newest_step, partials_batch, piece_bytes, pieces_of
from streamrl.buffers.rows.schema import PARTIALS, ROUTED_PARTIALS, table_of
from streamrl.buffers.segments.reader import SegmentReader
from streamrl.buffers.segments.writer import Durability, SegmentWriter
from streamrl.errors import DataError
from streamrl.system.disk import remove_file
from streamrl.types import FrameRef

SEALED_KEPT: Final = 2


class PartialFiles:
    """Which segments of a journal are still needed. Pure.

    A rollout needs each segment that a piece of it lies in, until it has ended or has been written anew.
    """

    def __init__(self) -> None:
        self._needed_by: dict[str, set[str]] = {}

    def wrote(self, path: str, rollouts: Iterable[str], anew: Iterable[str] = ()) -> None:
        """Pieces of these rollouts lie in the segment `path` now; what was written of `anew` before is superseded."""
        self.ended(anew)
        self._needed_by.setdefault(path, set()).update(rollouts)

    def ended(self, rollouts: Iterable[str]) -> None:
        """Nothing of these rollouts is needed any more."""
        gone = set(rollouts)
        for needed in self._needed_by.values():
            needed -= gone

    def take_free(self, closed: bool = False) -> list[str]:
        """The segments that may be removed, told once. The newest is being written and stays, unless it is `closed`."""
        paths = list(self._needed_by)
        free = [path for path in (paths if closed else paths[:-1]) if not self._needed_by[path]]
        for path in free:
            del self._needed_by[path]
        return free

    def crowding(self) -> set[str]:
        """The rollouts that keep the oldest segment where there are too many; they should be written anew."""
        paths = list(self._needed_by)
        return set(self._needed_by[paths[0]]) if len(paths) > SEALED_KEPT + 1 else set()


class PartialLog:
    """Writes the pieces of one replica. The first one makes the first segment: without any there is no file.

    relative_dir, writer, writer_epoch and the rest: as for a `SegmentWriter`.
    """

    def __init__(
        self,
        run_folder: Path,
        relative_dir: str,
        writer: str,
        writer_epoch: int,
        segment_bytes: int,
        durability: Durability,
        commit_interval_s: float,
        *,
        routed: bool = False,
    ) -> None:
        """routed: pieces have routes of experts."""
        self._run_folder, self._routed = run_folder, routed
        self._most_bytes = segment_bytes // 2
        self._make = partial(
            SegmentWriter,
            run_folder,
            relative_dir,
            writer,
            writer_epoch,
            ROUTED_PARTIALS if routed else PARTIALS,
            segment_bytes,
            durability,
            commit_interval_s,
        )
        self._writer: SegmentWriter | None = None

    def append(self, pieces: Sequence[Piece]) -> "list[tuple[Sequence[Piece], Future[FrameRef]]]":
        """Queue pieces, in as many frames as they need. A future resolves when its pieces are durable.

        Raises:
            DataError, NonFiniteError: a piece that may not be written. ComponentError: the disk failed.
        """
        if self._writer is None:
            self._writer = self._make()
        frames = list(_split(pieces, self._most_bytes))
        return [(frame, self._writer.append(partials_batch(frame, routed=self._routed))) for frame in frames]

    @property
    def pause(self) -> str:
        """What a full disk keeps it waiting for, in words; "" while it does not wait."""
        return "" if self._writer is None else self._writer.pause

    def remove(self, paths: Iterable[str]) -> None:
        """Remove segments. Raises ComponentError."""
        for path in paths:
            remove_segment(self._run_folder / path)

    def close(self) -> None:
        """Seal the last segment. A second call does nothing."""
        if self._writer is not None:
            self._writer.close()


def _split(pieces: Sequence[Piece], most_bytes: int) -> Iterator[Sequence[Piece]]:
    frame: list[Piece] = []
    room = most_bytes
    for piece in pieces:
        room -= piece_bytes(piece)
        if frame and room < 0:
            yield frame
            frame, room = [], most_bytes - piece_bytes(piece)
        frame.append(piece)
    if frame:
        yield frame


def remove_segment(path: Path) -> None:
    """Remove a segment and, first, its index, without which nobody looks at it. Raises ComponentError."""
    for one in (path.with_suffix(".idx"), path):
        if one.exists():
            remove_file(one)


def read_partials(
    run_folder: Path, relative_dir: str, rollouts: Collection[str], tell: Callable[[str], None], but_of: str = ""
) -> list[Piece]:
    """What the journals in a folder have of these rollouts, in the order in which each was written.

    tell: takes what is wrong with a segment, of which no more is read then. but_of: `<writer>-<epoch>`, whose journal
    is left out. A segment that goes meanwhile had nothing that is needed.
    """
    reader = SegmentReader(run_folder)
    found: list[Piece] = []
    for path in _segments(run_folder / relative_dir):
        if path.name.startswith(f"{but_of}-"):
            continue
        try:
            for batch in _batches(reader, str(path.relative_to(run_folder))):
                found += pieces_of(batch, rollouts)
        except DataError as error:
            if path.exists():
                tell(str(error))
    return found


class EarlierJournals:
    """The journals that earlier processes of one writer left in a folder, and how long they are needed.

    tell: takes what is wrong with one of them.
    """

    def __init__(
        self, run_folder: Path, relative_dir: str, writer: str, writer_epoch: int, tell: Callable[[str], None]
    ) -> None:
        reader = SegmentReader(run_folder)
        self._newest: dict[Path, int] = {}
        name = re.compile(rf"{re.escape(writer)}-(\d+)-\d+\.arrow")
        for path in sorted((run_folder / relative_dir).glob("*.arrow")):
            found = name.fullmatch(path.name)
            if found is not None and int(found[1]) < writer_epoch:
                self._newest[path] = _newest_step(reader, str(path.relative_to(run_folder)), tell)

    def remove_before(self, oldest_step: int) -> None:
        """Remove those whose tokens, as far as they can be read, are all of steps before `oldest_step`. Raises
        ComponentError."""
        for path in [path for path, newest in self._newest.items() if newest < oldest_step]:
            del self._newest[path]
            remove_segment(path)


def _newest_step(reader: SegmentReader, path: str, tell: Callable[[str], None]) -> int:
    newest = -1
    try:
        for batch in _batches(reader, path):
            newest = max(newest, newest_step(batch))
    except DataError as error:
        tell(str(error))
    return newest


def _segments(folder: Path) -> list[Path]:
    """In the order of writing, for each writer and epoch."""
    return sorted((path for path in folder.glob("*.arrow") if path.with_suffix(".idx").exists()), key=_place)


def _place(path: Path) -> tuple[str, int]:
    stem, _, number = path.stem.rpartition("-")
    return stem, int(number) if number.isdecimal() else 0


def _batches(reader: SegmentReader, path: str) -> Iterator[pa.RecordBatch]:
    for frame in read_again(lambda: list(reader.scan(path))):
        batch = read_again(partial(reader.read, frame))
        if table_of(batch.schema) != "partials":
            raise DataError(f"{path}: it has {table_of(batch.schema)}, and no pieces of rollouts: somebody put it here")
        yield batch
