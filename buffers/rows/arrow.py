"""From numpy to Arrow: the columns of completions and of scores, built without a loop over tokens.

Guaranteed: what is built has the declared schema; token columns are passed on as they are, never rewritten.
Checking them is the writer's business (`streamrl.buffers.rows.checks`). Ragged lists are a flat array plus offsets;
offsets are int64 [N + 1] for N rows, from 0. Nothing here does I/O.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from streamrl.buffers.rows.routes import route_columns
from streamrl.buffers.rows.schema import COMPLETIONS, SCORES
from streamrl.types import (
    FloatArray,
    GenerationResult,
    IntArray,
    LongArray,
    RouteArray,
    SamplingParams,
    Score,
    TokenOrigin,
)


@dataclass(frozen=True, slots=True)
class TokenColumns:
    """The ragged columns of N rollouts. T tokens, S version spans in all.

    offsets: int64 [N + 1] over the tokens. token_ids int32 [T], token_origin uint8 [T], rollout_logprobs
    float32 [T] (0 where not sampled). span_offsets: int64 [N + 1] over the spans. span_start int32 [S],
    counted in tokens of the row, prompt included; span_incarnation int32 [S], span_step int64 [S]. routes: of each row,
    int16 [tokens, layers, experts of a token], -1 where none was recorded, or None; () where no row has some.
    """

    offsets: LongArray
    token_ids: IntArray
    token_origin: npt.NDArray[np.uint8]
    rollout_logprobs: FloatArray
    span_offsets: LongArray
    span_start: IntArray
    span_incarnation: IntArray
    span_step: LongArray
    routes: Sequence[RouteArray | None] = ()

    @property
    def num_rows(self) -> int:
        return len(self.offsets) - 1

    def sampled_tokens(self) -> LongArray:
        """int64 [N], sampled tokens of each row."""
        counts = np.concatenate(([0], np.cumsum(self.token_origin == TokenOrigin.SAMPLED)))
        return np.asarray(counts[self.offsets[1:]] - counts[self.offsets[:-1]], dtype=np.int64)

    def oldest_steps(self) -> LongArray:
        """int64 [N], the lowest step that sampled into each row; -1 for a row without a span."""
        oldest = np.full(self.num_rows, -1, np.int64)
        with_span = np.diff(self.span_offsets) > 0
        if with_span.any():
            oldest[with_span] = np.minimum.reduceat(self.span_step, self.span_offsets[:-1][with_span])
        return oldest


@dataclass(frozen=True, slots=True)
class CompletionRows:
    """N finished rollouts, as a replica hands them to its writer. Lists have N entries, arrays are [N].

    sampling: one setting for the whole batch; seed is each row's own, and so is temperature, float64, where it is
    given. payload: JSON for the reward.
    finish_reason: values of FinishReason. started_ns, finished_ns: wall clock, nanoseconds since the epoch.
    """

    tokens: TokenColumns
    rollout_id: Sequence[str]
    branch: IntArray
    group_id: Sequence[str]
    prompt_id: Sequence[str]
    stream: Sequence[str]
    data_pass: IntArray
    sample_index: IntArray
    attempt: IntArray
    finish_reason: Sequence[str]
    sampling: SamplingParams
    seed: LongArray
    turns: IntArray
    replica: str
    started_ns: LongArray
    finished_ns: LongArray
    payload: Sequence[str]
    temperature: npt.NDArray[np.float64] | None = None


def token_columns(prompts: Sequence[IntArray], results: Sequence[GenerationResult]) -> TokenColumns:
    """The columns of single-turn rollouts: prompt i, then the tokens that result i sampled."""
    prompt_lengths = np.fromiter((len(ids) for ids in prompts), np.int64, len(prompts))
    sampled_lengths = np.fromiter((len(result.token_ids) for result in results), np.int64, len(results))
    offsets = _offsets(prompt_lengths + sampled_lengths)
    parts = [ids for prompt, result in zip(prompts, results, strict=True) for ids in (prompt, result.token_ids)]
    pair_lengths = np.stack((prompt_lengths, sampled_lengths), axis=1).ravel()
    kinds = np.tile(np.array([TokenOrigin.PROMPT, TokenOrigin.SAMPLED], np.uint8), len(results))
    origin = np.repeat(kinds, pair_lengths)
    logprobs = np.zeros(int(offsets[-1]), np.float32)
    logprobs[origin == TokenOrigin.SAMPLED] = _concatenate([result.logprobs for result in results], np.float32)
    spans_of = [result.version_spans if len(result.token_ids) else () for result in results]
    spans = [(span.start, *span.version) for row in spans_of for span in row]
    columns = np.array(spans, np.int64).reshape(-1, 3)
    span_lengths = np.fromiter(map(len, spans_of), np.int64, len(results))
    start = columns[:, 0] + np.repeat(prompt_lengths, span_lengths)
    return TokenColumns(
        offsets=offsets,
        token_ids=_concatenate(parts, np.int32),
        token_origin=origin,
        rollout_logprobs=logprobs,
        span_offsets=_offsets(span_lengths),
        span_start=start.astype(np.int32),
        span_incarnation=columns[:, 1].astype(np.int32),
        span_step=columns[:, 2].copy(),
        routes=[result.routes for result in results] if any(one.routes is not None for one in results) else (),
    )


def completions_batch(rows: CompletionRows) -> pa.RecordBatch:
    """One Arrow batch of the schema COMPLETIONS. Token arrays are taken over without a copy."""
    tokens, count = rows.tokens, rows.tokens.num_rows
    sampling = rows.sampling
    struct = {
        "temperature": np.full(count, sampling.temperature) if rows.temperature is None else rows.temperature,
        "top_p": np.full(count, sampling.top_p),
        "top_k": np.full(count, sampling.top_k, np.int32),
        "min_p": np.full(count, sampling.min_p),
        "seed": rows.seed,
    }
    spans: dict[str, npt.NDArray[Any]] = {
        "start": tokens.span_start,
        "incarnation": tokens.span_incarnation,
        "step": tokens.span_step,
    }
    columns: dict[str, Any] = {
        "rollout_id": rows.rollout_id,
        "branch": rows.branch,
        "group_id": rows.group_id,
        "prompt_id": rows.prompt_id,
        "stream": pa.array(rows.stream, pa.string()),
        "data_pass": rows.data_pass,
        "sample_index": rows.sample_index,
        "attempt": rows.attempt,
        "token_ids": _ragged("token_ids", tokens.offsets, tokens.token_ids),
        "token_origin": _ragged("token_origin", tokens.offsets, tokens.token_origin),
        "rollout_logprobs": _ragged("rollout_logprobs", tokens.offsets, tokens.rollout_logprobs),
        "version_spans": _ragged("version_spans", tokens.span_offsets, _span_structs(spans)),
        "finish_reason": rows.finish_reason,
        "sampling": _structs(COMPLETIONS.field("sampling").type, struct),
        "turns": rows.turns,
        "replica": pa.repeat(rows.replica, count),
        "started_ns": rows.started_ns,
        "finished_ns": rows.finished_ns,
        "payload": rows.payload,
        **route_columns(tokens.routes, count),
    }
    arrays = [_array(columns[field.name], field.type) for field in COMPLETIONS]
    return pa.RecordBatch.from_arrays(arrays, schema=COMPLETIONS)


def scores_batch(
    rollout_id: Sequence[str],
    branch: IntArray,
    scores: Sequence[Score],
    *,
    scorer: str,
    scored_ns: int,
    revision: int = 0,
) -> pa.RecordBatch:
    """One Arrow batch of the schema SCORES. A failed score has a null reward and its reason.

    scored_ns: wall clock, nanoseconds since the epoch. revision: 0 for the first verdict on a rollout.
    """
    count = len(scores)
    columns: dict[str, Any] = {
        "rollout_id": rollout_id,
        "branch": branch,
        "revision": pa.repeat(pa.scalar(revision, pa.int32()), count),
        "status": [score.status for score in scores],
        "components": _components([score.components for score in scores]),
        "reason": [score.reason for score in scores],
        "scorer": pa.repeat(scorer, count),
        "scored_ns": pa.repeat(pa.scalar(scored_ns, pa.int64()), count),
        "reward": [score.reward for score in scores],
        "info": [score.info or None for score in scores],
    }
    arrays = [_array(columns[field.name], field.type) for field in SCORES]
    return pa.RecordBatch.from_arrays(arrays, schema=SCORES)


def _components(components: Sequence[dict[str, float]]) -> pa.MapArray:
    lengths = np.fromiter(map(len, components), np.int64, len(components))
    names = list(chain.from_iterable(components))
    values = [value for one in components for value in one.values()]
    kind = SCORES.field("components").type
    keys, items = pa.array(names, kind.key_type), pa.array(values, kind.item_type)
    return pa.MapArray.from_arrays(pa.array(_offsets(lengths).astype(np.int32)), keys, items, type=kind)


def _offsets(lengths: LongArray) -> LongArray:
    return np.concatenate((np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)))


def _concatenate(parts: Sequence[npt.NDArray[Any]], dtype: type[np.generic]) -> npt.NDArray[Any]:
    return np.concatenate(parts).astype(dtype, copy=False) if parts else np.zeros(0, dtype)


def _array(values: Any, kind: pa.DataType) -> pa.Array:
    return values if isinstance(values, pa.Array) else pa.array(values, kind)


def _ragged(name: str, offsets: LongArray, values: "npt.NDArray[Any] | pa.Array") -> pa.ListArray:
    kind = COMPLETIONS.field(name).type
    flat = _array(values, kind.value_type)
    return pa.ListArray.from_arrays(pa.array(offsets.astype(np.int32)), flat, type=kind)


def _span_structs(columns: dict[str, npt.NDArray[Any]]) -> pa.StructArray:
    return _structs(COMPLETIONS.field("version_spans").type.value_type, columns)


def _structs(kind: pa.StructType, columns: dict[str, npt.NDArray[Any]]) -> pa.StructArray:
    fields = [kind.field(i) for i in range(kind.num_fields)]
    arrays = [pa.array(columns[field.name], field.type) for field in fields]
    return pa.StructArray.from_arrays(arrays, fields=fields)
