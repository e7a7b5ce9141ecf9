"""Pieces of rollouts with routes of experts, in the journal and back; and journals without, as they were."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from streamrl.buffers.rows.checks import RowGate
from streamrl.buffers.rows.partial_rows import Piece, partials_batch
from streamrl.buffers.rows.schema import PARTIALS, ROUTED_PARTIALS
from streamrl.buffers.segments.partial_log import PartialLog, read_partials
from streamrl.errors import DataError
from streamrl.scheduling.partial_rollouts import PartialChains, cut, cut_from
from streamrl.types import PartialTokens, RouteArray, Version, VersionSpan


def routes_of(count: int, seed: int) -> RouteArray:
    return np.random.default_rng(seed).integers(-1, 300, (count, 3, 2)).astype(np.int16)


def piece(start: int, count: int, *, seed: int = 0, routed: bool = True) -> Piece:
    tokens = PartialTokens(
        "g/0",
        start,
        np.arange(start, start + count, dtype=np.int32),
        np.full(count, -0.5, np.float32),
        (VersionSpan(start, Version(0, seed)),),
        routes=routes_of(count, seed) if routed else None,
    )
    return Piece(1, tokens)


def journalled(folder: Path, pieces: list[Piece], *, routed: bool) -> list[Piece]:
    log = PartialLog(folder, "queue/partials", "replica-0", 0, 2**16, "memory", 0.0, routed=routed)
    for one in pieces:
        for _, future in log.append([one]):
            future.result()
    log.close()
    faults: list[str] = []
    found = read_partials(folder, "queue/partials", ["g/0"], faults.append)
    assert faults == []
    return found


def test_pieces_come_back_with_their_routes_and_join_to_those_of_all_tokens(tmp_path: Path) -> None:
    pieces = [piece(0, 4, seed=1), piece(4, 3, seed=2), piece(7, 2, seed=3, routed=False)]
    chains = PartialChains()
    for attempt, tokens in journalled(tmp_path, pieces, routed=True):
        chains.add(attempt, tokens)
    whole = chains.newest("g/0", 2)
    assert whole is not None
    expected = np.concatenate([routes_of(4, 1), routes_of(3, 2), np.full((2, 3, 2), -1, np.int16)])
    assert np.array_equal(whole.routes, expected)
    head = cut(whole, 5)
    assert head is not None
    assert np.array_equal(head.routes, expected[:5])
    assert np.array_equal(cut_from(whole, 5).routes, expected[5:])


def test_a_journal_without_routes_is_to_the_byte_what_it_was(tmp_path: Path) -> None:
    (found,) = journalled(tmp_path, [piece(0, 4, routed=False)], routed=False)
    assert found.tokens.routes is None
    batch = partials_batch([piece(0, 4)])
    assert batch.schema.equals(PARTIALS, check_metadata=True)
    assert "routed_experts" not in batch.schema.names


def test_a_piece_whose_routes_are_not_of_its_tokens_is_refused() -> None:
    batch = partials_batch([piece(0, 4)], routed=True)
    RowGate(ROUTED_PARTIALS).check(batch)
    place = ROUTED_PARTIALS.get_field_index("routed_experts_shape")
    broken = batch.set_column(place, ROUTED_PARTIALS.field(place), pa.array([[3, 4, 2]], pa.list_(pa.int32())))
    with pytest.raises(DataError, match=r"row 0 .*routed_experts are not one entry for each of its tokens"):
        RowGate(ROUTED_PARTIALS).check(broken)
