"""What a row must hold before it may be written: the gate in front of every segment.

Guaranteed: a batch that passes has the declared schema, no null where none may be, one origin and one
log-prob for each token, finite log-probs, and version spans that cover the sampled tokens in order.
Everything is vectorised over the batch; a refusal names the first bad row. Nothing here knows of files.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from buffers.schema import TOKEN_COLUMNS, table_of
from streamrl.errors import DataError, NonFiniteError
from streamrl.types import TokenOrigin

Bools = npt.NDArray[np.bool_]


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
    """Refuse a batch that may not be written under `schema`.

    Raises:
        DataError: another schema, no rows, nulls, unequal list lengths, an unknown token origin, or version
            spans that do not cover the sampled tokens in order. Names the row.
        NonFiniteError: a log-prob is NaN or infinite. Names the row.
    """
    if not batch.schema.equals(schema, check_metadata=True):
        raise DataError(
            f"a batch of the columns {batch.schema.names} does not have the segment's schema {schema.names}"
        )
    if batch.num_rows == 0:
        raise DataError("a batch without rows: there is nothing to write, and a frame of none cannot be referred to")
    _refuse_nulls(batch)
    if table_of(schema) == "completions":
        _check_tokens(batch)
        _check_spans(batch)


def _refuse(bad_rows: Bools, batch: pa.RecordBatch, what: str, error: type[Exception] = DataError) -> None:
    if bad_rows.any():
        row = int(np.argmax(bad_rows))
        name = batch.column("rollout_id")[row].as_py()
        raise error(f"row {row} (rollout {name}) is refused: {what}")


def _refuse_nulls(batch: pa.RecordBatch) -> None:
    for field, column in zip(batch.schema, batch.columns, strict=True):
        if field.nullable:
            continue
        if column.null_count:
            _refuse(column.is_null().to_numpy(zero_copy_only=False), batch, f"null in column {field.name!r}")
        if pa.types.is_list(field.type) and flat(column).null_count:
            bad = flat(column).is_null().to_numpy(zero_copy_only=False)
            _refuse(_rows_with(bad, list_offsets(column)), batch, f"null inside column {field.name!r}")


def _rows_with(flags: Bools, offsets: npt.NDArray[np.int64]) -> Bools:
    """bool [N]: rows that own at least one flagged value. flags is [T], offsets [N + 1]."""
    counts = np.concatenate(([0], np.cumsum(flags)))
    return np.asarray(counts[offsets[1:]] > counts[offsets[:-1]])


def _check_tokens(batch: pa.RecordBatch) -> None:
    ids, origin, logprobs = (batch.column(name) for name in TOKEN_COLUMNS)
    offsets = list_offsets(ids)
    lengths = np.diff(offsets)
    for name, column in (("token_origin", origin), ("rollout_logprobs", logprobs)):
        unequal = np.diff(list_offsets(column)) != lengths
        _refuse(unequal, batch, f"{name} and token_ids differ in length; each token has one entry in both")
    unknown = list_values(origin) > max(TokenOrigin)
    _refuse(
        _rows_with(unknown, offsets),
        batch,
        "a token_origin that is none of 0 (prompt), 1 (sampled), 2 (environment)",
    )
    infinite = ~np.isfinite(list_values(logprobs))
    what = "a rollout_logprob is NaN or infinite; end such a rollout as `error`, with log-probs of 0"
    _refuse(_rows_with(infinite, offsets), batch, what, NonFiniteError)


def _check_spans(batch: pa.RecordBatch) -> None:
    spans = batch.column("version_spans")
    offsets, structs = list_offsets(spans), flat(spans)
    row = np.repeat(np.arange(batch.num_rows), np.diff(offsets))
    start, incarnation, step = (structs.field(i).to_numpy() for i in range(3))
    token_offsets = list_offsets(batch.column("token_ids"))
    outside = (start < 0) | (start >= np.diff(token_offsets)[row])
    _refuse(_rows_with(outside, offsets), batch, "a version span starts outside the row's tokens")
    same_row = row[1:] == row[:-1]
    older = (incarnation[1:] < incarnation[:-1]) | ((incarnation[1:] == incarnation[:-1]) & (step[1:] < step[:-1]))
    wrong = np.concatenate(([False] * min(1, len(row)), same_row & ((start[1:] <= start[:-1]) | older)))
    _refuse(_rows_with(wrong, offsets), batch, "version spans must start ever later and never at an older version")
    _refuse(
        _uncovered(batch, token_offsets, offsets, start),
        batch,
        "a sampled token lies before the first version span",
    )


def _uncovered(
    batch: pa.RecordBatch,
    token_offsets: npt.NDArray[np.int64],
    span_offsets: npt.NDArray[np.int64],
    start: npt.NDArray[np.int32],
) -> Bools:
    """bool [N]: rows with a sampled token before their first span, or with one and no span at all."""
    lengths = np.diff(token_offsets)
    first_span = lengths.copy()
    with_span = np.diff(span_offsets) > 0
    first_span[with_span] = start[span_offsets[:-1][with_span]]
    sampled = list_values(batch.column("token_origin")) == TokenOrigin.SAMPLED
    position = np.arange(len(sampled)) - np.repeat(token_offsets[:-1], lengths)
    return _rows_with(sampled & (position < np.repeat(first_span, lengths)), token_offsets)
