"""What a row must hold before it may be written, and before it is believed: the gate on both sides of a segment.

Guaranteed: a batch that passes has the declared schema, no null where none may be at any depth, names that are
plain names, one origin and one log-prob for each token, finite log-probs, version spans that cover the sampled
tokens in order, and a finite reward exactly where a score is valid. Everything is vectorised over the batch; a
refusal names the first bad row. Nothing here knows of files, nor whether Arrow's buffers are sound: a batch
from outside must have passed `validate(full=True)`.
"""

import math
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from streamrl.buffers.rows.columns import flat, list_offsets, list_values
from streamrl.buffers.rows.names import ALLOWED, NUMBERED, PLAIN, all_numbered, all_plain
from streamrl.buffers.rows.nulls import NullRule
from streamrl.buffers.rows.routes import COLUMNS, misaligned
from streamrl.buffers.rows.schema import FINISH_REASONS, table_of
from streamrl.errors import DataError, NonFiniteError
from streamrl.types import LongArray, ScoreStatus, TokenOrigin

Bools = npt.NDArray[np.bool_]

_NUMBERED_NAMES: Final = ("rollout_id",)
_PLAIN_NAMES: Final = {
    "completions": ("group_id", "prompt_id", "stream", "replica"),
    "scores": ("scorer",),
    "partials": (),
}
_STATUSES: Final = tuple(status.value for status in ScoreStatus)


class RowGate:
    """The checks of one schema.

    Example:
        RowGate(COMPLETIONS).check(batch)
    """

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._nulls = NullRule(schema)
        self._table = table_of(schema)

    def check(self, batch: pa.RecordBatch) -> None:
        """Refuse a batch that may not be written under the schema, or read under it.

        Raises:
            DataError: another schema, no rows, nulls, a name that is none, unequal list lengths, an unknown token
                origin or finish reason, version spans that do not cover the sampled tokens in order, or a verdict
                that contradicts itself. Names the row.
            NonFiniteError: a log-prob or a valid reward is NaN or infinite. Names the row.
        """
        if not batch.schema.equals(self._schema, check_metadata=True):
            raise DataError(
                f"a batch of the columns {batch.schema.names} does not have the segment's schema {self._schema.names}"
            )
        if batch.num_rows == 0:
            raise DataError(
                "a batch without rows: there is nothing to write, and a frame of none cannot be referred to"
            )
        self._refuse_nulls(batch)
        self._check_names(batch)
        if self._table == "completions":
            _check_completions(batch)
        elif self._table == "scores":
            _check_rewards(batch)
        elif self._table == "partials":
            _check_pieces(batch)

    def _refuse_nulls(self, batch: pa.RecordBatch) -> None:
        found = self._nulls.first(batch)
        if found is not None:
            _refuse_row(found.row, batch, f"null {'inside' if found.inside else 'in'} column {found.column!r}")

    def _check_names(self, batch: pa.RecordBatch) -> None:
        if self._table not in _PLAIN_NAMES:
            return
        for name in _NUMBERED_NAMES:
            if not all_numbered(batch.column(name)):
                _refuse_name(batch, name, NUMBERED.pattern)
        plain = [batch.column(name) for name in _PLAIN_NAMES[self._table]]
        if plain and not all_plain(pa.concat_arrays(plain)):
            for name in _PLAIN_NAMES[self._table]:
                _refuse_name(batch, name, PLAIN.pattern)


def _refuse_name(batch: pa.RecordBatch, name: str, pattern: str) -> None:
    plain = pc.match_substring_regex(batch.column(name), f"^(?:{pattern})$").to_numpy(zero_copy_only=False)
    _refuse(~plain, batch, f"{name} is no plain name: {ALLOWED}")


def _refuse(bad_rows: Bools, batch: pa.RecordBatch, what: str, error: type[Exception] = DataError) -> None:
    if bad_rows.any():
        _refuse_row(int(np.argmax(bad_rows)), batch, what, error)


def _refuse_value(
    bad: Bools, offsets: LongArray, batch: pa.RecordBatch, what: str, error: type[Exception] = DataError
) -> None:
    """bad: bool [T], flagged values of a list column with int64 [N + 1] offsets."""
    if bad.any():
        row = int(np.searchsorted(offsets, int(np.argmax(bad)), side="right")) - 1
        _refuse_row(row, batch, what, error)


def _refuse_row(row: int, batch: pa.RecordBatch, what: str, error: type[Exception] = DataError) -> None:
    name = batch.column("rollout_id")[row].as_py()
    raise error(f"row {row} (rollout {name!r}) is refused: {what}")


def _check_allowed(batch: pa.RecordBatch, name: str, words: Sequence[str]) -> set[str]:
    """The words that a column holds, each one of `words`."""
    column = batch.column(name)
    held = set(column.unique().to_pylist())
    if not held <= set(words):
        known = pc.is_in(column, pa.array(words, pa.string()))
        _refuse(~known.to_numpy(zero_copy_only=False), batch, f"a {name} that is none of {', '.join(words)}")
    return held


def _check_rewards(batch: pa.RecordBatch) -> None:
    reward = batch.column("reward")
    if _check_allowed(batch, "status", _STATUSES) != {ScoreStatus.OK} or reward.null_count:
        missing = reward.is_null().to_numpy(zero_copy_only=False)
        valid = pc.equal(batch.column("status"), ScoreStatus.OK.value).to_numpy(zero_copy_only=False)
        _refuse(valid & missing, batch, "a valid score without a reward")
        _refuse(~valid & ~missing, batch, "a failed score with a reward; it has a reason instead")
        reward = reward.fill_null(0.0)
    infinite = ~np.isfinite(reward.to_numpy())
    what = "a reward is NaN or infinite; such a score is a failed one, with a reason"
    _refuse(infinite, batch, what, NonFiniteError)


def _check_completions(batch: pa.RecordBatch) -> None:
    offsets = list_offsets(batch.column("token_ids"))
    _check_logprobs(batch, offsets)
    origins = _values_of(batch, "token_origin", offsets)
    if origins.max(initial=0) > max(TokenOrigin):
        what = "a token_origin that is none of 0 (prompt), 1 (sampled), 2 (environment)"
        _refuse_value(origins > max(TokenOrigin), offsets, batch, what)
    span_offsets, start = _check_span_order(batch, np.zeros(batch.num_rows, np.int64), offsets)
    uncovered = _uncovered(origins, offsets, span_offsets, start)
    _refuse(uncovered, batch, "a sampled token lies before the first version span")
    _check_allowed(batch, "finish_reason", FINISH_REASONS)
    _check_routes(batch)


def _check_routes(batch: pa.RecordBatch) -> None:
    what = "routed_experts are not one entry for each of its tokens, in the shape that routed_experts_shape says"
    _refuse(misaligned(batch), batch, what)


def _values_of(batch: pa.RecordBatch, name: str, token_offsets: LongArray) -> npt.NDArray[Any]:
    """The values [T] of a list column that has one entry for each token."""
    column = batch.column(name)
    offsets = list_offsets(column)
    if not np.array_equal(offsets, token_offsets):
        unequal = np.diff(offsets) != np.diff(token_offsets)
        _refuse(unequal, batch, f"{name} and token_ids differ in length; each token has one entry in both")
    return list_values(column)


def _check_logprobs(batch: pa.RecordBatch, token_offsets: LongArray) -> None:
    values = _values_of(batch, "rollout_logprobs", token_offsets)
    # NaN is the least and the most of what it is among.
    if len(values) and not (math.isfinite(values.min()) and math.isfinite(values.max())):
        what = "a rollout_logprob is NaN or infinite; end such a rollout as `error`, with log-probs of 0"
        _refuse_value(~np.isfinite(values), token_offsets, batch, what, NonFiniteError)


def _check_pieces(batch: pa.RecordBatch) -> None:
    """Pieces of rollouts: some tokens each, all sampled, and the first span where the piece begins."""
    starts = batch.column("start").to_numpy().astype(np.int64)
    token_offsets = list_offsets(batch.column("token_ids"))
    _refuse((starts < 0) | (np.diff(token_offsets) == 0), batch, "a piece without tokens")
    _refuse(batch.column("attempt").to_numpy() < 0, batch, "a negative attempt")
    _check_logprobs(batch, token_offsets)
    offsets, first = _check_span_order(batch, starts, token_offsets)
    _refuse(np.diff(offsets) == 0, batch, "a piece without a version span")
    _refuse(first[offsets[:-1]] != 0, batch, "the first version span does not start where the piece does")
    if COLUMNS[0] in batch.schema.names:
        _check_routes(batch)


def _check_span_order(batch: pa.RecordBatch, base: LongArray, token_offsets: LongArray) -> tuple[LongArray, LongArray]:
    """base: int64 [N], what `start` counts from in each row. Returns the offsets of the spans and their starts in the
    row's tokens, int64 [S]."""
    spans = batch.column("version_spans")
    offsets, structs = list_offsets(spans), flat(spans)
    row = np.repeat(np.arange(batch.num_rows), np.diff(offsets))
    start, incarnation, step = (structs.field(i).to_numpy() for i in range(3))
    start = start.astype(np.int64) - base[row]
    outside = (start < 0) | (start >= np.diff(token_offsets)[row])
    _refuse_value(outside, offsets, batch, "a version span starts outside the row's tokens")
    same_row = row[1:] == row[:-1]
    if same_row.any():
        older = (incarnation[1:] < incarnation[:-1]) | ((incarnation[1:] == incarnation[:-1]) & (step[1:] < step[:-1]))
        wrong = np.concatenate(([False], same_row & ((start[1:] <= start[:-1]) | older)))
        _refuse_value(wrong, offsets, batch, "version spans must start ever later and never at an older version")
    return offsets, start


def _uncovered(origins: npt.NDArray[Any], token_offsets: LongArray, span_offsets: LongArray, start: LongArray) -> Bools:
    """bool [N]: rows with a sampled token before their first span, or with one and no span at all."""
    before = np.diff(token_offsets)
    with_span = np.diff(span_offsets) > 0
    before[with_span] = start[span_offsets[:-1][with_span]]
    rows = np.flatnonzero(before)
    begin = token_offsets[rows]
    # Every other part is what lies before the first span of a row; origins (0, 1 and 2) have no bit in common.
    parts = np.stack((begin, begin + before[rows]), axis=1).ravel()
    found = np.bitwise_or.reduceat(origins, parts[parts < len(origins)])[::2]
    uncovered = np.zeros(len(before), np.bool_)
    uncovered[rows] = found & TokenOrigin.SAMPLED
    return uncovered
