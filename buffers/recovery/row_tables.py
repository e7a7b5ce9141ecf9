"""Completions, scores and rollouts of a run as Arrow tables over its memory-mapped segments.

Guaranteed: every row has passed the reader (checksum, validation, gate); token columns are the mapped bytes, not a
copy; `rollouts` has the rows that the ledger accepted, and none twice. A segment that is not in this run folder
(another node's, or one that was let go) gives no rows; how many accepted ones that are is told. The run may be live.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from streamrl.buffers.ledger.facts import NONE, LedgerFacts, RowState
from streamrl.buffers.ledger.live_files import read_again
from streamrl.buffers.rows.schema import COMPLETIONS, FINISH_REASONS, SCORES
from streamrl.buffers.segments.places import COMPLETIONS_DIR, HOME, SCORES_DIR, node_of
from streamrl.buffers.segments.reader import SegmentReader
from streamrl.errors import DataError
from streamrl.types import FrameRef, LongArray, ScoreStatus

_PLACE: Final = {"accepted": pa.bool_(), "segment": pa.string(), "frame_offset": pa.int64(), "frame_row": pa.int32()}
_VERDICT: Final = ("components", "scorer", "scored_ns")
_LEDGER: Final = {
    "group_number": pa.int64(),
    "state": pa.string(),
    "drop_reason": pa.string(),
    "step": pa.int64(),
    "staleness": pa.int64(),
    "status": pa.string(),
    "reward": pa.float64(),
    "reason": pa.string(),
    "prompt_tokens": pa.int32(),
    "sampled_tokens": pa.int32(),
    "oldest_step": pa.int64(),
}
"""What `rollouts` has beside the columns of completions and of `_VERDICT`."""


def _with(schema: pa.Schema, fields: dict[str, pa.DataType]) -> pa.Schema:
    return pa.schema([*schema, *(pa.field(name, kind) for name, kind in fields.items())])


COMPLETIONS_TABLE: Final = _with(COMPLETIONS.remove_metadata(), _PLACE)
SCORES_TABLE: Final = _with(SCORES.remove_metadata(), _PLACE)
ROLLOUTS_TABLE: Final = _with(
    COMPLETIONS.remove_metadata(), {**_LEDGER, **{name: SCORES.field(name).type for name in _VERDICT}}
)


@dataclass(frozen=True, slots=True)
class LoggedRows:
    """All rows of one log, in the order of its segments. table: the schema's columns.

    starts: for each frame, by (segment, offset), the number of its first row.
    """

    frames: list[FrameRef]
    table: pa.Table
    starts: dict[tuple[str, int], int]

    def places(self, frames: Sequence[FrameRef], frame: LongArray, row: npt.NDArray[np.integer]) -> LongArray:
        """int64 [N]: the place in `table` of row `row[i]` of `frames[frame[i]]`; NONE where that is not here."""
        known = [self.starts.get((ref.path, ref.offset), NONE) for ref in frames]
        start = np.array([*known, NONE], np.int64)[frame]
        return np.where(start == NONE, NONE, start + row)


def logged_completions(run_folder: Path, facts: LedgerFacts) -> LoggedRows:
    """The completions log. Raises DataError: damage. Names file and offset."""
    return _logged(run_folder, COMPLETIONS_DIR, COMPLETIONS, facts.frames)


def logged_scores(run_folder: Path, facts: LedgerFacts) -> LoggedRows:
    """The scores log. Raises DataError: damage. Names file and offset."""
    return _logged(run_folder, SCORES_DIR, SCORES, facts.score_frames)


def log_table(logged: LoggedRows, places: LongArray) -> pa.Table:
    """All rows of a log, with where each lies and whether it is one of `places`, int64: accepted by the ledger."""
    accepted = np.zeros(logged.table.num_rows, np.bool_)
    accepted[places[places != NONE]] = True
    rows = np.array([frame.num_rows for frame in logged.frames], np.int64)
    owner = np.repeat(np.arange(len(rows)), rows)
    first = np.cumsum(rows) - rows
    columns = {
        "accepted": accepted,
        "segment": pa.array([frame.path for frame in logged.frames], pa.string()).take(pa.array(owner)),
        "frame_offset": np.array([frame.offset for frame in logged.frames], np.int64)[owner],
        "frame_row": (np.arange(len(owner)) - first[owner]).astype(np.int32),
    }
    return _appended(logged.table, {name: pa.array(values) for name, values in columns.items()}, _PLACE)


def rollouts_table(facts: LedgerFacts, completions: LoggedRows, scores: LoggedRows) -> tuple[pa.Table, int]:
    """The accepted rows with what became of them, and how many accepted ones are not in this run folder."""
    places = completions.places(facts.frames, facts.frame, facts.rows["row"])
    here = places != NONE
    order = np.argsort(places[here], kind="stable")
    entry = np.flatnonzero(here)[order]
    rows = _kept(completions.table, places[here][order])
    verdicts = _verdicts(facts, scores, entry)
    columns = {**_of_ledger(facts, entry, verdicts), **{name: verdicts[name] for name in _VERDICT}}
    kinds = {**_LEDGER, **{name: SCORES.field(name).type for name in _VERDICT}}
    return _appended(rows, columns, kinds), int((~here).sum())


def _logged(run_folder: Path, folder: str, schema: pa.Schema, told: Sequence[FrameRef]) -> LoggedRows:
    """told: the frames of this log that the ledger names."""
    reader = SegmentReader(run_folder)
    read: list[tuple[FrameRef, pa.RecordBatch]] = []
    for path in sorted((run_folder / folder).glob("*.arrow")):
        try:
            read += _segment(reader, str(path.relative_to(run_folder)))
        except DataError:
            # Without an index it is of a writer that ended while it made it, or it is let go at this moment.
            if path.exists() and path.with_suffix(".idx").exists():
                raise
    read += _copies(reader, told)
    frames, batches = [frame for frame, _ in read], [batch for _, batch in read]
    ends = np.cumsum([frame.num_rows for frame in frames]).tolist()
    starts = {(frame.path, frame.offset): end - frame.num_rows for frame, end in zip(frames, ends, strict=True)}
    plain = schema.remove_metadata()
    return LoggedRows(frames, pa.Table.from_batches([_all_columns(one, plain) for one in batches], plain), starts)


def _all_columns(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The columns of `schema`; nulls for one that an earlier release did not write."""
    names = set(batch.schema.names)
    arrays = [
        batch.column(field.name) if field.name in names else pa.nulls(batch.num_rows, field.type) for field in schema
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _copies(reader: SegmentReader, told: Sequence[FrameRef]) -> Iterator[tuple[FrameRef, pa.RecordBatch]]:
    """Frames of other nodes of which there is a copy here. A copy may go at any moment, and is not synced."""
    for frame in told:
        if node_of(frame.path) != HOME:
            with suppress(DataError):
                yield frame, reader.read(frame)


def _segment(reader: SegmentReader, path: str) -> list[tuple[FrameRef, pa.RecordBatch]]:
    frames = read_again(lambda: list(reader.scan(path)))
    return [(frame, read_again(partial(reader.read, frame))) for frame in frames]


def _kept(table: pa.Table, places: LongArray) -> pa.Table:
    """The rows at ascending `places`, without a copy: runs of them are slices."""
    starts = np.flatnonzero(np.diff(places, prepend=NONE - 1) != 1)
    lengths = np.diff(starts, append=len(places))
    slices = [table.slice(int(places[start]), int(length)) for start, length in zip(starts, lengths, strict=True)]
    return pa.concat_tables([table.slice(0, 0), *slices])


def _verdicts(facts: LedgerFacts, scores: LoggedRows, entry: LongArray) -> pa.Table:
    """The score of each row, null where it has none (here)."""
    places = scores.places(facts.score_frames, facts.score_frame[entry], facts.score_row[entry])
    places = np.where(facts.score_frame[entry] == NONE, NONE, places)
    return scores.table.combine_chunks().take(pa.array(places, mask=places == NONE))


def _of_ledger(facts: LedgerFacts, entry: LongArray, verdicts: pa.Table) -> dict[str, Any]:
    """The columns of `_LEDGER`. entry: int64 [K], the accepted rows that are asked for."""
    status, reason = _outcome(facts, entry, verdicts)
    # A verdict that is not here counts as valid: the ledger says what became of its group all the same.
    valid = np.ones(len(facts.rows), np.bool_)
    valid[entry] = ~pc.equal(status, ScoreStatus.FAILED.value).fill_null(False).to_numpy(zero_copy_only=False)
    state = facts.states(valid)[entry]
    rows, step = facts.rows[entry], facts.trained_step()[entry]
    trained, old = step != NONE, rows["oldest_step"]
    dropped = state == RowState.DROPPED
    names = pa.array([one.name.lower() for one in RowState])
    reasons = [facts.dropped.get(number, "reward_failed") for number in rows["number"][dropped].tolist()]
    return {
        "group_number": rows["number"],
        "state": names.take(pa.array(state)),
        "drop_reason": _where(dropped, reasons),
        # The batch of the ledger's step s makes step s + 1, whose line of metrics it is in.
        "step": pa.array(step + 1, mask=~trained),
        "staleness": pa.array(np.maximum(step - old, 0), mask=~(trained & (old >= 0))),
        "status": status,
        "reward": verdicts["reward"],
        "reason": reason,
        "prompt_tokens": rows["prompt_tokens"],
        "sampled_tokens": rows["sampled_tokens"],
        "oldest_step": pa.array(old, mask=old < 0),
    }


def _outcome(facts: LedgerFacts, entry: LongArray, verdicts: pa.Table) -> tuple[Any, Any]:
    """Status and reason of each row: of its verdict, or of how its generation ended."""
    at_once = facts.failed_at_once()[entry]
    endings = [f"ended as {FINISH_REASONS[code]}" for code in facts.rows["finish"][entry][at_once].tolist()]
    failed = _where(at_once, [ScoreStatus.FAILED.value] * len(endings))
    return pc.coalesce(verdicts["status"], failed), pc.coalesce(verdicts["reason"], _where(at_once, endings))


def _where(chosen: npt.NDArray[np.bool_], texts: list[str]) -> pa.Array:
    """`texts`, one for each chosen row, null elsewhere."""
    place = np.cumsum(chosen) - 1
    return pa.array(texts, pa.string()).take(pa.array(place, mask=~chosen))


def _appended(table: pa.Table, columns: dict[str, Any], kinds: dict[str, pa.DataType]) -> pa.Table:
    for name, kind in kinds.items():
        values = columns[name]
        array = values if isinstance(values, pa.Array | pa.ChunkedArray) else pa.array(values)
        table = table.append_column(pa.field(name, kind), array.cast(kind))
    return table
