"""Pieces of unfinished rollouts as Arrow batches of the schema PARTIALS, and back. Nothing here does I/O."""

from collections.abc import Collection, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from streamrl.buffers.rows.routes import route_columns, routes_of_row
from streamrl.buffers.rows.schema import PARTIALS, ROUTED_PARTIALS
from streamrl.scheduling.partial_rollouts import completion_of, parts_of
from streamrl.types import PartialTokens, Version, VersionSpan

_ROW_BYTES = 256
_SPAN_BYTES = 16
_TOKEN_BYTES = 8


class Piece(NamedTuple):
    """Tokens of one attempt at a rollout; its id, or that of a turn of it, is their `request_id`."""

    attempt: int
    tokens: PartialTokens


def piece_bytes(piece: Piece) -> int:
    """The most that a piece takes in a frame with others."""
    tokens = piece.tokens
    routes = 0 if tokens.routes is None else tokens.routes.nbytes
    return _ROW_BYTES + _TOKEN_BYTES * len(tokens.token_ids) + _SPAN_BYTES * len(tokens.version_spans) + routes


def partials_batch(pieces: Sequence[Piece], *, routed: bool = False) -> pa.RecordBatch:
    """One row for each piece, at least one. routed: of the schema ROUTED_PARTIALS, with their routes."""
    tokens = [piece.tokens for piece in pieces]
    spans = [
        {"start": s.start, "incarnation": s.version.incarnation, "step": s.version.step}
        for one in tokens
        for s in one.version_spans
    ]
    rollouts, turns = zip(*(parts_of(one.request_id) for one in tokens), strict=True)
    columns: dict[str, Any] = {
        "rollout_id": pa.array(rollouts, pa.string()),
        "turn": pa.array([turn or None for turn in turns], pa.string()),
        "attempt": pa.array([piece.attempt for piece in pieces], pa.int32()),
        "start": pa.array([one.start for one in tokens], pa.int32()),
        "token_ids": _lists("token_ids", [one.token_ids for one in tokens]),
        "rollout_logprobs": _lists("rollout_logprobs", [one.logprobs for one in tokens]),
        "version_spans": _listed("version_spans", [len(one.version_spans) for one in tokens], spans),
    }
    if routed:
        columns |= route_columns([one.routes for one in tokens], len(tokens))
    schema = ROUTED_PARTIALS if routed else PARTIALS
    return pa.RecordBatch.from_arrays([columns[field.name] for field in schema], schema=schema)


def pieces_of(batch: pa.RecordBatch, rollouts: Collection[str]) -> Iterator[Piece]:
    """The rows of a batch that has passed the reader, in order, of these rollouts only, their turns included."""
    wanted = pc.is_in(batch.column("rollout_id"), pa.array(list(rollouts), pa.string()))
    for row in np.flatnonzero(wanted.to_numpy(zero_copy_only=False)).tolist():
        yield _piece(batch, row)


def newest_step(batch: pa.RecordBatch) -> int:
    """The highest step that sampled into any row."""
    return int(pc.max(batch.column("version_spans").flatten().field("step")).as_py())


def _piece(batch: pa.RecordBatch, row: int) -> Piece:
    spans = batch.column("version_spans")[row].as_py()
    tokens = PartialTokens(
        completion_of(batch.column("rollout_id")[row].as_py(), _turn(batch, row)),
        batch.column("start")[row].as_py(),
        batch.column("token_ids")[row].values.to_numpy(),
        batch.column("rollout_logprobs")[row].values.to_numpy(),
        tuple(VersionSpan(span["start"], Version(span["incarnation"], span["step"])) for span in spans),
        routes=routes_of_row(batch, row),
    )
    return Piece(batch.column("attempt")[row].as_py(), tokens)


def _turn(batch: pa.RecordBatch, row: int) -> str:
    # A column that files of an earlier minor version lack.
    return (batch.column("turn")[row].as_py() or "") if "turn" in batch.schema.names else ""


def _lists(name: str, parts: Sequence[Any]) -> pa.ListArray:
    return _listed(name, [len(part) for part in parts], np.concatenate(parts))


def _listed(name: str, lengths: Sequence[int], values: Any) -> pa.ListArray:
    kind = PARTIALS.field(name).type
    offsets = np.concatenate(([0], np.cumsum(lengths))).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(values, kind.value_type), type=kind)
