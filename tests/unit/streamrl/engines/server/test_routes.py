"""The experts that servers name: in the forms of each, and what the books make of them."""

import base64
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.engines.fake_server import logprob, token
from support.engines.routed_model import CHOSEN, LAYERS, write_routed_model

from streamrl.engines.server.books import NO_ROUTES, Running
from streamrl.engines.server.contract import Piece
from streamrl.engines.server.programs import route_size
from streamrl.engines.server.sglang.answers import ChunkReader
from streamrl.engines.server.vllm.answers import read_chunk
from streamrl.errors import ComponentError, ConfigError, DataError
from streamrl.types import (
    FinishReason,
    GenerationRequest,
    PartialTokens,
    RouteArray,
    SamplingParams,
    Version,
    VersionSpan,
)

PROMPT = np.array([token(place) for place in range(4)], np.int32)
FIRST = Version(0, 1)


def routes_of(count: int) -> RouteArray:
    """Other ones in each place."""
    return np.arange(count * LAYERS * CHOSEN, dtype=np.int16).reshape(count, LAYERS, CHOSEN)


def as_numpy_file(routes: RouteArray) -> str:
    file = io.BytesIO()
    np.save(file, routes)
    return base64.b64encode(file.getvalue()).decode()


def chunk_of_vllm(written: str | None, reason: str | None = "length") -> bytes:
    spans = [{"version": "0.1", "start": 0, "end": 1}] if reason else None
    said = {"token_ids": [token(0)], "logprobs": {"content": [{"logprob": -1.0}]}, "finish_reason": reason}
    return json.dumps({"choices": [{**said, "weight_versions": spans, "routed_experts": written}]}).encode()


def chunk_of_sglang(written: str | None) -> bytes:
    meta = {"completion_tokens": 1, "output_token_logprobs": [[-1.0, token(0), None]], "routed_experts": written}
    spans = [{"version": "0.1", "start": 0, "end": 1}]
    ending = {"finish_reason": {"type": "length"}, "weight_versions": spans}
    return json.dumps({"output_ids": [token(0)], "meta_info": {**meta, **ending}}).encode()


@pytest.mark.parametrize("kind", [np.uint8, np.uint16, np.int32])
def test_vllm_writes_a_numpy_file(kind: type) -> None:
    piece = read_chunk(chunk_of_vllm(as_numpy_file(routes_of(4).astype(kind))))
    assert piece.routes.dtype == np.int16
    assert np.array_equal(piece.routes, routes_of(4))
    assert read_chunk(chunk_of_vllm(None)).routes is None
    assert read_chunk(chunk_of_vllm(None, None)).routes is None


@pytest.mark.parametrize("written", ["?", "", "aGVsbG8=", as_numpy_file(np.array([None], object))])
def test_what_is_no_numpy_file_is_an_error(written: str) -> None:
    with pytest.raises(ComponentError, match="routed_experts cannot be read"):
        read_chunk(chunk_of_vllm(written))


def test_sglang_writes_one_number_after_the_other() -> None:
    written = base64.b64encode(routes_of(4).astype("<i4").tobytes()).decode()
    piece = ChunkReader(1, routes=(LAYERS, CHOSEN)).read(chunk_of_sglang(written))
    assert piece.routes.dtype == np.int16
    assert np.array_equal(piece.routes, routes_of(4))
    assert ChunkReader(1).read(chunk_of_sglang(written)).routes is None
    assert ChunkReader(1, routes=(LAYERS, CHOSEN)).read(chunk_of_sglang(None)).routes is None


@pytest.mark.parametrize("written", ["?", "AAA=", base64.b64encode(np.zeros(7, "<i4").tobytes()).decode()])
def test_numbers_that_are_not_of_so_many_layers_and_experts_are_an_error(written: str) -> None:
    with pytest.raises(DataError, match="not of 3 layers and 2 experts of each token"):
        ChunkReader(1, routes=(LAYERS, CHOSEN)).read(chunk_of_sglang(written))


# ---- the books


def running(so_far: int = 0, known: RouteArray | None = None, *, routes: bool = True) -> Running:
    ids = np.arange(50, 50 + so_far, dtype=np.int32)
    spans = (VersionSpan(0, FIRST),)
    before = PartialTokens("r", 0, ids, np.zeros(so_far, np.float32), spans, routes=known) if so_far else None
    request = GenerationRequest("r", PROMPT, 7, SamplingParams(max_new_tokens=5 + so_far), (), before)
    return Running(request, [FIRST], 0.0, (LAYERS, CHOSEN) if routes else None)


def last_piece(routes: RouteArray | None, reason: FinishReason = FinishReason.LENGTH, **more: Any) -> Piece:
    ids = np.array([token(place) for place in range(5)], np.int32)
    logprobs = np.array([logprob(place) for place in range(5)], np.float32)
    return Piece(ids, logprobs, reason, **{"version_spans": (VersionSpan(0, FIRST),), **more}, routes=routes)


def ended(one: Running, piece: Piece) -> Any:
    one.add(piece)
    return one.result(piece)


def test_a_result_has_the_experts_of_all_tokens_but_the_last() -> None:
    result = ended(running(), last_piece(routes_of(8)))
    assert result.routes.shape == (9, LAYERS, CHOSEN)
    assert np.array_equal(result.routes[:-1], routes_of(8))
    assert (result.routes[-1] == -1).all()


def test_what_a_request_came_with_went_where_it_was_recorded_then() -> None:
    given = routes_of(11)
    before = np.full((3, LAYERS, CHOSEN), 7, np.int16)
    for known, expected in ((before, 7), (None, -1)):
        result = ended(running(3, known), last_piece(given))
        assert result.routes.shape == (12, LAYERS, CHOSEN)
        assert (result.routes[3:6] == expected).all()  # the prompt's last token gave the first of them
        assert np.array_equal(result.routes[:3], given[:3])
        assert np.array_equal(result.routes[6:-1], given[6:])


@pytest.mark.parametrize("given", [routes_of(7), routes_of(9), routes_of(8)[:, :2], routes_of(8)[:, :, :1]])
def test_routes_of_other_tokens_are_of_none(given: RouteArray) -> None:
    assert (ended(running(), last_piece(given)).routes == -1).all()


def test_a_server_that_names_no_experts_is_told_how_to() -> None:
    result = ended(running(), last_piece(None))
    assert (result.finish_reason, result.error) == (FinishReason.ERROR, NO_ROUTES)
    aborted = ended(running(), last_piece(None, FinishReason.ABORT))
    assert (aborted.routes == -1).all()
    assert len(aborted.routes) == 9


def test_a_cut_result_keeps_what_its_request_came_with() -> None:
    one = running(3, np.full((3, LAYERS, CHOSEN), 7, np.int16))
    one.add(last_piece(None, version_spans=()))
    one.update_begins(Version(0, 2))
    result = one.result(last_piece(None, FinishReason.ABORT, version_spans=()))
    assert len(result.token_ids) == 8
    assert result.routes.shape == (12, LAYERS, CHOSEN)
    assert (result.routes[3:6] == 7).all()
    assert (result.routes[6:] == -1).all()


def test_where_nobody_asks_a_result_has_none() -> None:
    assert ended(running(routes=False), last_piece(routes_of(8))).routes is None


# ---- whose


def test_layers_and_experts_are_those_of_the_models_folder(tmp_path: Path) -> None:
    write_routed_model(tmp_path, 0)
    assert route_size(tmp_path) == (LAYERS, CHOSEN)


@pytest.mark.parametrize("more", [{"mlp_only_layers": [1]}, {"decoder_sparse_step": 2}])
def test_a_model_with_layers_that_have_no_experts_is_refused(tmp_path: Path, more: dict[str, Any]) -> None:
    write_routed_model(tmp_path, 0, **more)
    with pytest.raises(ConfigError, match=r"learner.router_replay: not every layer of the model \(qwen3_moe\)"):
        route_size(tmp_path)
