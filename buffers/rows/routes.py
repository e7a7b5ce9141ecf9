"""Experts that tokens went to, as two Arrow columns of completions: bytes, and their shape.

Guaranteed: an expert's number takes one byte where all that a row has are below 255, else two, little end first; the
highest value stands for none recorded. A row that has no routes is null in both columns. There is one entry for each
token of the row, prompt included, so a row's routes cannot be shifted against its tokens unseen.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from streamrl.buffers.rows.columns import list_offsets
from streamrl.errors import DataError
from streamrl.types import RouteArray

COLUMNS = ("routed_experts", "routed_experts_shape")
_ONE, _TWO = np.dtype("<u1"), np.dtype("<u2")


def route_columns(routes: Sequence[RouteArray | None], count: int) -> dict[str, pa.Array]:
    """Of `count` rows, all without routes where `routes` is empty."""
    if not routes:
        return dict(zip(COLUMNS, (pa.nulls(count, pa.binary()), pa.nulls(count, pa.list_(pa.int32()))), strict=True))
    written = [None if one is None else _narrow(one).tobytes() for one in routes]
    shapes = [None if one is None else list(one.shape) for one in routes]
    return dict(zip(COLUMNS, (pa.array(written, pa.binary()), pa.array(shapes, pa.list_(pa.int32()))), strict=True))


def routes_of(batch: pa.RecordBatch) -> RouteArray | None:
    """int16 [T, layers, K] of all tokens of a batch that passed the gate, -1 where none was recorded; None where no row
    has some.

    Raises:
        DataError: rows are of models with other layers, or another number of experts for each token.
    """
    written, shapes = (batch.column(name) for name in COLUMNS)
    if written.null_count == len(written):
        return None
    lengths = np.diff(list_offsets(batch.column("token_ids"))).tolist()
    sizes = {tuple(shape[1:]) for shape in shapes.to_pylist() if shape is not None}
    if len(sizes) > 1:
        raise DataError(f"rows of one batch have routes of different models: layers and experts {sorted(sizes)}")
    (size,) = sizes
    return np.concatenate([_row(one.as_py(), (length, *size)) for one, length in zip(written, lengths, strict=True)])


def routes_of_row(batch: pa.RecordBatch, row: int) -> RouteArray | None:
    """int16 [tokens, layers, K] of one row of a batch that passed the gate; None where it has none."""
    if COLUMNS[0] not in batch.schema.names:
        return None
    written, shape = (batch.column(name)[row].as_py() for name in COLUMNS)
    return None if written is None else _row(written, tuple(shape))


def misaligned(batch: pa.RecordBatch) -> npt.NDArray[np.bool_]:
    """bool [N]: rows whose routes are not of their tokens, one by one, or not of the shape that they say."""
    written, shapes = (batch.column(name) for name in COLUMNS)
    if written.null_count == shapes.null_count == len(written):
        return np.zeros(len(written), np.bool_)
    lengths = np.diff(list_offsets(batch.column("token_ids")))
    found = zip(written.to_pylist(), shapes.to_pylist(), lengths.tolist(), strict=True)
    return np.array([not _fits(*one) for one in found])


def _fits(written: bytes | None, shape: list[int] | None, tokens: int) -> bool:
    if written is None or shape is None:
        return written is None and shape is None
    if len(shape) != 3 or None in shape or shape[0] != tokens or min(shape) < 1:
        return False
    return len(written) in (shape[0] * shape[1] * shape[2], 2 * shape[0] * shape[1] * shape[2])


def _narrow(routes: RouteArray) -> npt.NDArray[Any]:
    kind = _ONE if routes.max(initial=-1) < np.iinfo(_ONE).max else _TWO
    return routes.astype(kind)


def _row(written: bytes | None, shape: tuple[int, ...]) -> RouteArray:
    if written is None:
        return np.full(shape, -1, np.int16)
    kind = _ONE if len(written) == int(np.prod(shape)) else _TWO
    found = np.frombuffer(written, kind).reshape(shape)
    return np.where(found == np.iinfo(kind).max, np.int16(-1), found.astype(np.int16))
