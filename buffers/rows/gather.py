"""From Arrow to numpy: rows of many frames, gathered for the learner and for the reward stage.

Guaranteed: rows come out in the order asked for, tokens unchanged, with the step that sampled each token
spelled out. Vectorised: nothing here loops over rows' tokens. Batches must have passed the reader's checks;
nothing here does I/O.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from streamrl.buffers.rows import routes
from streamrl.buffers.rows.columns import flat, list_offsets, list_values
from streamrl.types import IntArray, LongArray, RolloutRows, ScoreStatus, TokenOrigin

_LEARNER_COLUMNS = ("token_ids", "token_origin", "rollout_logprobs", "version_spans", "replica", *routes.COLUMNS)

_SCORING_COLUMNS = ("rollout_id", "branch", "stream", "finish_reason", "payload", "token_ids", "token_origin")


@dataclass(frozen=True, slots=True)
class ScoringRows:
    """What the reward stage needs of N rows. Ragged ids are flat with int64 [N + 1] offsets.

    sampled_*: the completion's tokens. prompt_*: the tokens before the first sampled one.
    """

    rollout_id: list[str]
    branch: IntArray
    stream: list[str]
    finish_reason: list[str]
    payload: list[str]
    sampled_ids: IntArray
    sampled_offsets: LongArray
    prompt_ids: IntArray
    prompt_offsets: LongArray


def rollout_rows(
    frames: Sequence[pa.RecordBatch],
    frame_of_row: npt.NDArray[np.integer],
    row_in_frame: npt.NDArray[np.integer],
    group_numbers: LongArray,
    sample_index: npt.NDArray[np.integer],
    rewards: npt.NDArray[np.float64],
    valid: npt.NDArray[np.bool_],
) -> RolloutRows:
    """Rows for the learner: row i is row `row_in_frame[i]` of `frames[frame_of_row[i]]`. All arrays are [N].

    Raises:
        IndexError: a row that its frame does not have.
        DataError: rows with routes of different models.
    """
    batch = _take(frames, frame_of_row, row_in_frame)
    offsets = list_offsets(batch.column("token_ids"))
    origin = np.asarray(list_values(batch.column("token_origin")), np.uint8)
    return RolloutRows(
        offsets=offsets,
        token_ids=np.asarray(list_values(batch.column("token_ids")), np.int32),
        token_origin=origin,
        rollout_logprobs=np.asarray(list_values(batch.column("rollout_logprobs")), np.float32),
        token_steps=_token_steps(batch.column("version_spans"), offsets, origin),
        group=np.asarray(group_numbers, np.int64),
        sample_index=np.asarray(sample_index, np.int64),
        rewards=np.where(valid, rewards, np.nan),
        valid=np.asarray(valid, np.bool_),
        replica=batch.column("replica").to_pylist(),
        routes=routes.routes_of(batch),
    )


def scoring_rows(batch: pa.RecordBatch, rows: npt.NDArray[np.integer] | None = None) -> ScoringRows:
    """The reward stage's view of `rows` of a batch of completions; of all rows if None."""
    batch = batch.select(_SCORING_COLUMNS)
    if rows is not None and not np.array_equal(rows, np.arange(batch.num_rows)):
        batch = batch.take(pa.array(rows))
    ids = np.asarray(list_values(batch.column("token_ids")), np.int32)
    origin = list_values(batch.column("token_origin"))
    offsets = list_offsets(batch.column("token_ids"))
    sampled = origin == TokenOrigin.SAMPLED
    seen = np.concatenate(([0], np.cumsum(sampled)))
    before = (seen[:-1] == np.repeat(seen[offsets[:-1]], np.diff(offsets))) & ~sampled
    return ScoringRows(
        rollout_id=batch.column("rollout_id").to_pylist(),
        branch=batch.column("branch").to_numpy(),
        stream=batch.column("stream").to_pylist(),
        finish_reason=batch.column("finish_reason").to_pylist(),
        payload=batch.column("payload").to_pylist(),
        sampled_ids=ids[sampled],
        sampled_offsets=_offsets_of(sampled, offsets),
        prompt_ids=ids[before],
        prompt_offsets=_offsets_of(before, offsets),
    )


def score_columns(batch: pa.RecordBatch) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.float64]]:
    """(valid bool [N], reward float64 [N]) of a batch of scores; the reward of a failed score is NaN. Its components
    are `columns.map_columns` of the column of that name."""
    rewards = batch.column("reward").to_numpy(zero_copy_only=False).astype(np.float64)
    status = np.asarray(batch.column("status").to_pylist(), dtype=object)
    valid = np.asarray(status == ScoreStatus.OK.value, np.bool_)
    return valid, np.where(valid, rewards, np.nan)


def _take(
    frames: Sequence[pa.RecordBatch],
    frame_of_row: npt.NDArray[np.integer],
    row_in_frame: npt.NDArray[np.integer],
) -> pa.RecordBatch:
    sizes = np.array([frame.num_rows for frame in frames], np.int64)
    if len(row_in_frame) and (row_in_frame >= sizes[frame_of_row]).any():
        raise IndexError(f"a row beyond the {sizes.tolist()} rows of the frames was asked for")
    starts = np.concatenate((np.zeros(1, np.int64), np.cumsum(sizes)))[:-1]
    joined = pa.concat_batches([frame.select(_LEARNER_COLUMNS) for frame in frames])
    return joined.take(pa.array(starts[frame_of_row] + row_in_frame))


def _token_steps(spans: pa.ListArray, offsets: LongArray, origin: npt.NDArray[np.uint8]) -> LongArray:
    """int64 [T], the step that sampled each token, -1 where none did.

    A span is stretched over everything up to the next span, the next row's prompt included: only sampled
    tokens keep the value, and each of those has a span of its own row before it.
    """
    tokens = int(offsets[-1])
    structs = flat(spans)
    if not len(structs):
        return np.full(tokens, -1, np.int64)
    row = np.repeat(np.arange(len(spans)), np.diff(list_offsets(spans)))
    start = structs.field(0).to_numpy() + offsets[row]
    bounds = np.concatenate(([0], start, [tokens]))
    steps = np.concatenate(([-1], structs.field(2).to_numpy()))
    stretched = np.repeat(steps, np.diff(bounds))
    return np.where(origin == TokenOrigin.SAMPLED, stretched, -1).astype(np.int64)


def _offsets_of(flags: npt.NDArray[np.bool_], offsets: LongArray) -> LongArray:
    """int64 [N + 1]: offsets of the flagged tokens, when they are taken out of rows with `offsets`."""
    return np.asarray(np.concatenate(([0], np.cumsum(flags)))[offsets], np.int64)
