"""Routes of experts: bit-exact through Arrow and segments; none is no byte more; misaligned ones are refused."""

import dataclasses
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from support.queue.run_files import completion_rows

from streamrl.buffers.rows.arrow import completions_batch, token_columns
from streamrl.buffers.rows.checks import RowGate
from streamrl.buffers.rows.gather import rollout_rows
from streamrl.buffers.rows.schema import COMPLETIONS
from streamrl.buffers.segments.reader import SegmentReader
from streamrl.buffers.segments.writer import SegmentWriter
from streamrl.errors import DataError
from streamrl.types import FinishReason, GenerationResult, RolloutRows, RouteArray, Version, VersionSpan

SEED = 5


def routes_of(tokens: int, *, experts: int, layers: int = 3) -> RouteArray:
    """Random ones, some of them not recorded."""
    draw = np.random.default_rng([SEED, tokens, experts])
    routes = draw.integers(0, experts, (tokens, layers, 2)).astype(np.int16)
    routes[0, 0, 0], routes[-1] = experts - 1, -1
    return routes


def batch_of(routes: list[RouteArray | None]) -> pa.RecordBatch:
    """Rows of 3, 4, 5, ... tokens, the first two of them the prompt's."""
    results = [
        GenerationResult(
            f"0/{place}",
            np.arange(1 + place, dtype=np.int32),
            np.full(1 + place, -0.5, np.float32),
            (VersionSpan(0, Version(0, 0)),),
            FinishReason.STOP,
            routes=one,
        )
        for place, one in enumerate(routes)
    ]
    rows = completion_rows(count=len(routes))
    return completions_batch(
        dataclasses.replace(rows, tokens=token_columns([np.array([7, 8], np.int32)] * len(routes), results))
    )


def gathered(batch: pa.RecordBatch, order: list[int]) -> RolloutRows:
    index = np.array(order)
    ones = np.ones(len(order), np.int64)
    return rollout_rows([batch], 0 * index, index, ones, ones, np.ones(len(order)), np.ones(len(order), np.bool_))


@pytest.mark.parametrize(("experts", "width"), [(8, 1), (255, 1), (256, 2), (384, 2)])
def test_routes_come_back_with_their_tokens_in_any_order(experts: int, width: int) -> None:
    routes: list[RouteArray | None] = [routes_of(3 + place, experts=experts) for place in range(3)]
    batch = batch_of(routes)
    RowGate(COMPLETIONS).check(batch)
    assert [len(one) for one in batch.column("routed_experts").to_pylist()] == [width * one.size for one in routes]
    rows = gathered(batch, [2, 0, 1])
    assert rows.routes.dtype == np.int16
    assert np.array_equal(rows.routes, np.concatenate([routes[2], routes[0], routes[1]]))


def test_routes_go_through_a_segment_on_disk_unchanged(tmp_path: Path) -> None:
    routes: list[RouteArray | None] = [routes_of(3 + place, experts=300) for place in range(3)]
    writer = SegmentWriter(tmp_path, "queue/completions", "w", 0, COMPLETIONS, 2**18, "memory", 0.0)
    frame = writer.append(batch_of(routes)).result()
    writer.close()
    rows = gathered(SegmentReader(tmp_path).read(frame), [0, 1, 2])
    assert np.array_equal(rows.routes, np.concatenate(routes))


def test_a_row_without_routes_among_others_has_none_recorded() -> None:
    routes = routes_of(4, experts=8)
    rows = gathered(batch_of([None, routes, None]), [0, 1])
    assert (rows.routes[:3] == -1).all()
    assert np.array_equal(rows.routes[3:], routes)


def test_without_routes_a_batch_is_to_the_byte_what_it_was() -> None:
    batch = batch_of([None, None])
    for name, kind in ("routed_experts", pa.binary()), ("routed_experts_shape", pa.list_(pa.int32())):
        assert batch.column(name).equals(pa.nulls(2, kind))
        own, plain = batch.column(name).buffers(), pa.nulls(2, kind).buffers()
        assert [one and one.to_pybytes() for one in own] == [one and one.to_pybytes() for one in plain]
    assert gathered(batch, [0, 1]).routes is None


def changed(batch: pa.RecordBatch, written: list[bytes | None], shapes: list[list[int] | None]) -> pa.RecordBatch:
    columns = dict(zip(batch.schema.names, batch.columns, strict=True))
    columns["routed_experts"] = pa.array(written, pa.binary())
    columns["routed_experts_shape"] = pa.array(shapes, pa.list_(pa.int32()))
    return pa.RecordBatch.from_arrays(list(columns.values()), schema=batch.schema)


@pytest.mark.parametrize(
    ("written", "shape"),
    [
        (bytes(2 * 6), [2, 3, 2]),  # a token too few
        (bytes(4 * 6), [4, 3, 2]),  # one too many
        (bytes(17), [3, 3, 2]),  # cut
        (bytes(3 * 18), [3, 3, 2]),
        (bytes(18), [3, 6]),
        (bytes(18), None),
        (None, [3, 3, 2]),
        (b"", [3, 0, 2]),
        (bytes(18), [3, -3, -2]),
    ],
)
def test_routes_that_are_not_of_their_tokens_are_refused(written: bytes | None, shape: list[int] | None) -> None:
    batch = batch_of([routes_of(3, experts=8), routes_of(4, experts=8)])
    fine = batch.column("routed_experts")[1].as_py(), [4, 3, 2]
    RowGate(COMPLETIONS).check(changed(batch, [bytes(18), fine[0]], [[3, 3, 2], fine[1]]))
    with pytest.raises(DataError, match=r"row 0 .*routed_experts are not one entry for each of its tokens"):
        RowGate(COMPLETIONS).check(changed(batch, [written, fine[0]], [shape, fine[1]]))


def test_rows_of_models_with_other_layers_are_refused_together() -> None:
    batch = batch_of([routes_of(3, experts=8), routes_of(4, experts=8, layers=2)])
    with pytest.raises(DataError, match=r"different models: layers and experts \[\(2, 2\), \(3, 2\)\]"):
        gathered(batch, [0, 1])
