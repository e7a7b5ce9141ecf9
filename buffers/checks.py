"""What a row must hold before it may be written, and before it is believed: the gate on both sides of a segment.

Guaranteed: a batch that passes has the declared schema, no null where none may be at any depth, names that are
plain names, one origin and one log-prob for each token, finite log-probs, version spans that cover the sampled
tokens in order, and a finite reward exactly where a score is valid. Everything is vectorised over the batch; a
refusal names the first bad row. Nothing here knows of files, nor whether Arrow's buffers are sound: a batch
from outside must have passed `validate(full=True)`.
"""

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from buffers.schema import FINISH_REASONS, table_of
from streamrl.errors import DataError, NonFiniteError
from streamrl.types import LongArray, ScoreStatus, TokenOrigin

Bools = npt.NDArray[np.bool_]

_NAME: Final = "[A-Za-z0-9_][A-Za-z0-9_.:@+=-]*"
"""No path, no NUL, nothing that a terminal or a shell would take for something else."""
_NAMES: Final = {
    "completions": {
        "rollout_id": f"^{_NAME}/[0-9]+$",
        "group_id": f"^{_NAME}$",
        "prompt_id": f"^{_NAME}$",
        "stream": f"^{_NAME}$",
        "replica": f"^{_NAME}$",
    },
    "scores": {"rollout_id": f"^{_NAME}/[0-9]+$", "scorer": f"^{_NAME}$"},
    "partials": {"rollout_id": f"^{_NAME}/[0-9]+$"},
}


def list_offsets(column: pa.ListArray) -> npt.NDArray[np.int64]:
    """int64 [N + 1], offsets of a list column counted from 0, whatever slice of a buffer it is."""
    offsets = column.offsets.to_numpy().astype(np.int64)
    return np.asarray(offsets - offsets[0])


def list_values(column: pa.ListArray) -> npt.NDArray[Any]:
    """The flat values of a list column of numbers without nulls, zero-copy."""
    return np.asarray(flat(column).to_numpy())


def flat(column: pa.ListArray) -> pa.Array:
    """The values of a list column that its rows own, zero-copy."""
    offsets = column.offsets
    start = offsets[0].as_py()
    return column.values.slice(start, offsets[-1].as_py() - start)


def check_batch(batch: pa.RecordBatch, schema: pa.Schema) -> None:
    """Refuse a batch that may not be written under `schema`, or read under it.

    Raises:
        DataError: another schema, no rows, nulls, a name that is none, unequal list lengths, an unknown token
            origin or finish reason, version spans that do not cover the sampled tokens in order, or a verdict
            that contradicts itself. Names the row.
        NonFiniteError: a log-prob or a valid reward is NaN or infinite. Names the row.
    """
    if not batch.schema.equals(schema, check_metadata=True):
        raise DataError(
            f"a batch of the columns {batch.schema.names} does not have the segment's schema {schema.names}"
        )
    if batch.num_rows == 0:
        raise DataError("a batch without rows: there is nothing to write, and a frame of none cannot be referred to")
    _refuse_nulls(batch)
    table = table_of(schema)
    _check_names(batch, _NAMES.get(table, {}))
    if table == "completions":
        _check_tokens(batch)
        _check_spans(batch)
        _check_words(batch, "finish_reason", FINISH_REASONS)
    elif table == "scores":
        _check_words(batch, "status", [status.value for status in ScoreStatus])
        _check_rewards(batch)
    elif table == "partials":
        _check_pieces(batch)


def _check_names(batch: pa.RecordBatch, patterns: dict[str, str]) -> None:
    """patterns: by column. Most names stand in many rows, and a call costs more than a hundred names: all different
    names of a pattern are looked at at once, and only if one of them is bad is it searched for."""
    for pattern in dict.fromkeys(patterns.values()):
        names = [name for name, of in patterns.items() if of == pattern]
        different = pa.concat_arrays([batch.column(name).unique() for name in names])
        if pc.all(pc.match_substring_regex(different, pattern), min_count=0).as_py():
            continue
        for name in names:
            plain = pc.match_substring_regex(batch.column(name), pattern).to_numpy(zero_copy_only=False)
            _refuse(~plain, batch, f"{name} is no plain name: letters, digits and any of '_.:@+=-'")


def _refuse(bad_rows: Bools, batch: pa.RecordBatch, what: str, error: type[Exception] = DataError) -> None:
    if bad_rows.any():
        _refuse_row(int(np.argmax(bad_rows)), batch, what, error)


def _refuse_value(
    bad: Bools, offsets: LongArray, batch: pa.RecordBatch, what: str, error: type[Exception] = DataError
) -> None:
    """bad: bool [T], flagged values of a list column with int64 [N + 1] offsets."""
    if bad.any():
        _refuse_row(_owner(offsets, int(np.argmax(bad))), batch, what, error)


def _refuse_row(row: int, batch: pa.RecordBatch, what: str, error: type[Exception] = DataError) -> None:
    name = batch.column("rollout_id")[row].as_py()
    raise error(f"row {row} (rollout {name!r}) is refused: {what}")


def _owner(offsets: LongArray, place: int) -> int:
    """The row that owns a value. offsets: int64 [N + 1]."""
    return int(np.searchsorted(offsets, place, side="right")) - 1


def _refuse_nulls(batch: pa.RecordBatch) -> None:
    for field, column in zip(batch.schema, batch.columns, strict=True):
        if column.null_count and not field.nullable:
            row = int(np.argmax(column.is_null().to_numpy(zero_copy_only=False)))
            _refuse_row(row, batch, f"null in column {field.name!r}")
        place = _null_inside(field.type, column)
        if place is not None:
            _refuse_row(place, batch, f"null inside column {field.name!r}")


def _null_inside(kind: pa.DataType, column: pa.Array) -> int | None:
    """The first place whose value holds a null where none may be. Keys of a map are Arrow's to check."""
    if pa.types.is_list(kind):
        place = _null_at(kind.value_field, flat(column))
        return None if place is None else _owner(list_offsets(column), place)
    if pa.types.is_struct(kind):
        places = [_null_at(kind.field(i), column.field(i)) for i in range(kind.num_fields)]
        return min((place for place in places if place is not None), default=None)
    return None


def _null_at(field: pa.Field, column: pa.Array) -> int | None:
    if column.null_count and not field.nullable:
        return int(np.argmax(column.is_null().to_numpy(zero_copy_only=False)))
    return _null_inside(field.type, column)


def _check_words(batch: pa.RecordBatch, name: str, words: "tuple[str, ...] | list[str]") -> None:
    known = pc.is_in(batch.column(name), pa.array(words, pa.string())).to_numpy(zero_copy_only=False)
    _refuse(~known, batch, f"a {name} that is none of {', '.join(words)}")


def _check_rewards(batch: pa.RecordBatch) -> None:
    reward = batch.column("reward")
    missing = reward.is_null().to_numpy(zero_copy_only=False)
    valid = pc.equal(batch.column("status"), ScoreStatus.OK.value).to_numpy(zero_copy_only=False)
    _refuse(valid & missing, batch, "a valid score without a reward")
    _refuse(~valid & ~missing, batch, "a failed score with a reward; it has a reason instead")
    infinite = ~np.isfinite(reward.fill_null(0.0).to_numpy(zero_copy_only=False))
    what = "a reward is NaN or infinite; such a score is a failed one, with a reason"
    _refuse(infinite, batch, what, NonFiniteError)


def _check_tokens(batch: pa.RecordBatch) -> None:
    ids, origin = batch.column("token_ids"), batch.column("token_origin")
    offsets = list_offsets(ids)
    _check_lengths(batch, "token_origin")
    _check_logprobs(batch)
    origins = list_values(origin)
    if origins.max(initial=0) > max(TokenOrigin):
        what = "a token_origin that is none of 0 (prompt), 1 (sampled), 2 (environment)"
        _refuse_value(origins > max(TokenOrigin), offsets, batch, what)


def _check_lengths(batch: pa.RecordBatch, name: str) -> None:
    unequal = np.diff(list_offsets(batch.column(name))) != np.diff(list_offsets(batch.column("token_ids")))
    _refuse(unequal, batch, f"{name} and token_ids differ in length; each token has one entry in both")


def _check_logprobs(batch: pa.RecordBatch) -> None:
    _check_lengths(batch, "rollout_logprobs")
    logprobs = batch.column("rollout_logprobs")
    values = list_values(logprobs)
    with np.errstate(over="ignore", invalid="ignore"):
        total = values.sum()
    # A sum is finite only if every value is; huge values may add up to infinity, and then each is looked at.
    if not np.isfinite(total):
        what = "a rollout_logprob is NaN or infinite; end such a rollout as `error`, with log-probs of 0"
        _refuse_value(~np.isfinite(values), list_offsets(logprobs), batch, what, NonFiniteError)


def _check_pieces(batch: pa.RecordBatch) -> None:
    """Pieces of rollouts: some tokens each, all sampled, and the first span where the piece begins."""
    starts = batch.column("start").to_numpy().astype(np.int64)
    _refuse((starts < 0) | (np.diff(list_offsets(batch.column("token_ids"))) == 0), batch, "a piece without tokens")
    _refuse(batch.column("attempt").to_numpy() < 0, batch, "a negative attempt")
    _check_logprobs(batch)
    offsets, first = _check_span_order(batch, starts)
    _refuse(np.diff(offsets) == 0, batch, "a piece without a version span")
    _refuse(first[offsets[:-1]] != 0, batch, "the first version span does not start where the piece does")


def _check_span_order(batch: pa.RecordBatch, base: LongArray) -> tuple[LongArray, LongArray]:
    """base: int64 [N], what `start` counts from in each row. Returns the offsets of the spans and their starts in the
    row's tokens, int64 [S]."""
    spans = batch.column("version_spans")
    offsets, structs = list_offsets(spans), flat(spans)
    row = np.repeat(np.arange(batch.num_rows), np.diff(offsets))
    start, incarnation, step = (structs.field(i).to_numpy() for i in range(3))
    start = start.astype(np.int64) - base[row]
    token_offsets = list_offsets(batch.column("token_ids"))
    outside = (start < 0) | (start >= np.diff(token_offsets)[row])
    _refuse_value(outside, offsets, batch, "a version span starts outside the row's tokens")
    same_row = row[1:] == row[:-1]
    older = (incarnation[1:] < incarnation[:-1]) | ((incarnation[1:] == incarnation[:-1]) & (step[1:] < step[:-1]))
    wrong = np.concatenate(([False] * min(1, len(row)), same_row & ((start[1:] <= start[:-1]) | older)))
    _refuse_value(wrong, offsets, batch, "version spans must start ever later and never at an older version")
    return offsets, start


def _check_spans(batch: pa.RecordBatch) -> None:
    offsets, start = _check_span_order(batch, np.zeros(batch.num_rows, np.int64))
    token_offsets = list_offsets(batch.column("token_ids"))
    _refuse(
        _uncovered(batch, token_offsets, offsets, start),
        batch,
        "a sampled token lies before the first version span",
    )


def _uncovered(
    batch: pa.RecordBatch,
    token_offsets: LongArray,
    span_offsets: LongArray,
    start: LongArray,
) -> Bools:
    """bool [N]: rows with a sampled token before their first span, or with one and no span at all."""
    before = np.diff(token_offsets)
    with_span = np.diff(span_offsets) > 0
    before[with_span] = start[span_offsets[:-1][with_span]]
    # Places of the tokens before the first span of their row, row after row; rows are long and these are few.
    places = np.repeat(token_offsets[:-1] + before - np.cumsum(before), before) + np.arange(before.sum())
    sampled = list_values(batch.column("token_origin"))[places] == TokenOrigin.SAMPLED
    uncovered = np.zeros(batch.num_rows, np.bool_)
    uncovered[np.repeat(np.arange(batch.num_rows), before)[sampled]] = True
    return uncovered
