"""The ledger as an Arrow table: a row for each group or rollout that a record names, one for a record that names none.

Guaranteed: rows are in the order of the records (`position`), and within a record in its own order; what a kind of
record does not say is null. Steps are the ledger's: the step that the learner held. Nothing here does I/O.
"""

from collections.abc import Iterable
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from streamrl.buffers.ledger.facts import numbered
from streamrl.buffers.ledger.ledger import LedgerFile
from streamrl.buffers.ledger.records import (
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
from streamrl.buffers.rows.records import ACCEPTED, SCORED, Records, unpack
from streamrl.types import FrameRef, LongArray

_HEAD: Final = {
    "position": pa.int64(),
    "file": pa.string(),
    "kind": pa.string(),
    "who": pa.string(),
    "epoch": pa.int64(),
    "incarnation": pa.int64(),
    "step": pa.int64(),
    "reason": pa.string(),
    "segment": pa.string(),
    "frame_offset": pa.int64(),
}
"""ParsedMessage once in a record."""
_ITEM: Final = {
    "group_number": pa.int64(),
    "sample_index": pa.int32(),
    "branch": pa.int32(),
    "attempt": pa.int32(),
    "data_index": pa.int64(),
    "data_pass": pa.int64(),
    "last_step": pa.int64(),
    "submitted": pa.bool_(),
    "key": pa.string(),
    "frame_row": pa.int32(),
    "prompt_tokens": pa.int32(),
    "sampled_tokens": pa.int32(),
    "oldest_step": pa.int64(),
}
"""ParsedMessage of each group or rollout of a record."""
LEDGER: Final = pa.schema({**_HEAD, **_ITEM})

Head = dict[str, Any]
Items = dict[str, npt.NDArray[Any]]


def ledger_table(files: Iterable[LedgerFile]) -> pa.Table:
    """The table, of the schema LEDGER."""
    kinds: dict[str, tuple[list[Head], list[Items]]] = {}
    for position, (file, record) in enumerate(numbered(files)):
        head, items = _described(record)
        heads, all_items = kinds.setdefault(head["kind"], ([], []))
        heads.append({**head, "position": position, "file": file.path.name})
        all_items.append(items)
    tables = [LEDGER.empty_table(), *(_table(*parts) for parts in kinds.values())]
    return pa.concat_tables(tables, promote_options="default").sort_by("position")


def _table(heads: list[Head], items: list[Items]) -> pa.Table:
    """The rows of one kind of record: every one of them says the same things."""
    lengths = [len(next(iter(one.values()), np.zeros(1))) for one in items]
    owner = np.repeat(np.arange(len(heads)), lengths)
    said = [name for name in _HEAD if name in heads[0]]
    columns: dict[str, pa.Array] = {
        name: pa.array([head[name] for head in heads], _HEAD[name]).take(pa.array(owner)) for name in said
    }
    for name in items[0]:
        columns[name] = pa.array(np.concatenate([one[name] for one in items])).cast(_ITEM[name])
    return pa.table(columns)


def _described(record: Record) -> tuple[Head, Items]:
    """What a record says, by column."""
    match record:
        case RunHeader():
            return {"kind": "header"}, {}
        case Incarnation(number, step):
            return {"kind": "incarnation", "incarnation": number, "step": step}, {}
        case Writer(name, epoch):
            return {"kind": "writer", "who": name, "epoch": epoch}, {}
        case Issued(replica, tickets):
            return {"kind": "issued", "who": replica}, _tickets(tickets)
        case Accepted(replica, frame, rows):
            return {"kind": "accepted", "who": replica, **_place(frame)}, _rows(unpack(ACCEPTED, rows))
        case Scored(scorer, frame, rows):
            return {"kind": "scored", "who": scorer, **_place(frame)}, _rows(unpack(SCORED, rows))
        case Rescored(scorer, frame, rows):
            return {"kind": "rescored", "who": scorer, **_place(frame)}, _rows(unpack(SCORED, rows))
        case Dropped(numbers, reason):
            return {"kind": "dropped", "reason": reason}, _groups(numbers)
        case Withdrawn(numbers, step):
            return {"kind": "withdrawn", "step": step}, _groups(numbers)
        case Lost(numbers, step):
            return {"kind": "lost", "step": step}, _groups(numbers)
        case Step(step, numbers):
            return {"kind": "trained", "step": step}, _groups(numbers)
        case Covered(step):
            return {"kind": "covered", "step": step}, {}
        case Submitted(stream, asked):
            return {"kind": "submitted", "who": stream}, {"key": np.array([one.key for one in asked], np.str_)}
        case Cancelled(items, reason):
            return {"kind": "cancelled", "reason": reason}, {"data_index": np.array(items, np.int64)}
        case Offered(group=group, key=key, frame=frame):
            return {"kind": "offered", "who": group, **_place(frame)}, {"key": np.array([key], np.str_)}
        case Gathered(number, items):
            indices = np.array(items, np.int64)
            return {"kind": "gathered"}, {"group_number": np.full(len(indices), number), "data_index": indices}
        case Died(numbers):
            return {"kind": "died"}, _groups(numbers)
        case Failed(item, number, reason) | Quarantined(item, number, _, reason):
            told = {"group_number": np.array([number]), "data_index": np.array([item])}
            return {"kind": type(record).__name__.lower(), "reason": reason}, told
        case Measured(items, numbers):
            told = {"group_number": np.array(numbers, np.int64), "data_index": np.array(items, np.int64)}
            return {"kind": "measured"}, told
        case Declined(items, reason):
            return {"kind": "declined", "reason": reason}, {"data_index": np.array(items, np.int64)}


def _place(frame: FrameRef) -> Head:
    return {"segment": frame.path, "frame_offset": frame.offset}


def _groups(numbers: list[int]) -> dict[str, LongArray]:
    return {"group_number": np.array(numbers, np.int64)}


def _tickets(tickets: list[Any]) -> Items:
    columns = np.array(
        [[t.number, t.attempt, t.data_index, t.data_pass, t.last_step, t.submitted] for t in tickets], np.int64
    )
    names = ("group_number", "attempt", "data_index", "data_pass", "last_step", "submitted")
    return dict(zip(names, columns.reshape(-1, len(names)).T, strict=True))


def _rows(rows: Records) -> Items:
    names = {"number": "group_number", "row": "frame_row"}
    known = {names.get(name, name): rows[name] for name in rows.dtype.names or ()}
    return {name: column for name, column in known.items() if name in _ITEM}
