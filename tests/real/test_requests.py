"""Requests to real servers: where they end, what they go on behind, what is told of them, who may send them."""

from dataclasses import replace

import psutil
import pytest
import torch
from support.engines.real_engines import (
    CLOSE,
    CLOSE_AT_THE_END,
    CLOSE_OF_MANY,
    CONTEXT,
    LONG,
    RUNNING,
    TIED,
    Served,
    expected,
    requests_of,
)
from support.engines.real_models import furthest

from streamrl.errors import ComponentError, ProcessDiedError
from streamrl.types import FinishReason, GenerationRequest, PartialTokens, UpdateMode, Version, VersionSpan

pytestmark = pytest.mark.parametrize("kind", TIED, ids=str)
END = 2
"""The model's own end token, which ends a completion wherever there are stop tokens."""


def test_a_stop_token_ends_a_completion_and_is_its_last_token(server: Served) -> None:
    stops = (END, 5, 9, 14, 20)
    ended = server.answers(requests_of(8, new=200, stop=stops))
    assert {one.finish_reason for one in ended} == {FinishReason.STOP}
    for one in ended:
        assert one.token_ids[-1] in stops
        assert not set(one.token_ids[:-1].tolist()) & set(stops)


def test_the_seed_decides_the_tokens_where_the_engine_honours_seeds(server: Served) -> None:
    requests = requests_of(8)
    first, again = ({one.request_id: one.token_ids.tolist() for one in server.answers(requests)} for _ in range(2))
    assert (first == again) == (server.name == "vllm"), "docs/guides/engines.md says which engine does"
    other = [GenerationRequest("r/0", requests[0].prompt_ids, 12345, requests[0].sampling, ())]
    assert server.answers(other)[0].token_ids.tolist() != first["r/0"]


def test_a_request_goes_on_behind_its_tokens(server: Served) -> None:
    (request,) = requests_of(1, new=12)
    (whole,) = server.answers([request])
    serves = server.engine.version
    so_far = PartialTokens("r/0", 0, whole.token_ids[:5], whole.logprobs[:5], (VersionSpan(0, serves),))
    (result,) = server.answers([replace(request, so_far=so_far)])
    assert result.token_ids[:5].tolist() == whole.token_ids[:5].tolist()
    assert len(result.token_ids) == 12
    assert result.version_spans == (VersionSpan(0, serves),)
    assert furthest(result.logprobs, expected(server.model, request, result.token_ids)) <= CLOSE


def test_a_completion_may_fill_the_context_to_its_last_token(server: Served) -> None:
    (request,) = requests_of(1, length=CONTEXT - 30, new=30)
    (result,) = server.answers([request])
    assert (result.finish_reason, len(result.token_ids)) == (FinishReason.LENGTH, 30)
    assert furthest(result.logprobs, expected(server.model, request, result.token_ids)) <= CLOSE_AT_THE_END


def test_partial_tokens_are_those_of_the_result(server: Served) -> None:
    engine = server.engine
    engine.submit(requests_of(4, new=LONG))
    told: dict[str, list[int]] = {f"r/{number}": [] for number in range(4)}
    while min(map(len, told.values())) < 16:
        server.step_without_end()
        for piece in engine.partials(16):
            assert piece.start == len(told[piece.request_id])
            assert piece.version_spans == (VersionSpan(piece.start, engine.version),)
            told[piece.request_id] += piece.token_ids.tolist()
    for result in server.abort_all():
        so_far = told[result.request_id]
        assert result.token_ids[: len(so_far)].tolist() == so_far


def test_an_abort_ends_one_with_its_tokens_and_their_versions_and_not_another_whose_name_begins_like_it(
    server: Served,
) -> None:
    engine = server.engine
    requests = requests_of(RUNNING, new=LONG)  # so many that none ends meanwhile
    one, old = requests[1], engine.version
    server.start(requests)
    new = server.load(UpdateMode.RECOMPUTE)
    server.go_on()
    engine.abort(["r/1"])
    (aborted,) = server.rest(1)
    assert (aborted.request_id, aborted.finish_reason) == ("r/1", FinishReason.ABORT)
    first, second = aborted.version_spans
    assert (first.version, second.version) == (old, new)
    ids, found = aborted.token_ids, aborted.logprobs
    by_old, by_new = (expected(server.models[version], one, ids) for version in (old, new))
    assert furthest(found[: second.start], by_old[: second.start]) <= CLOSE_OF_MANY
    assert furthest(found[second.start :], by_new[second.start :]) <= CLOSE_OF_MANY
    assert len(engine._running) == RUNNING - 1, "r/10 to r/19 go on"


def test_requests_that_are_aborted_at_once_end_and_leave_the_server_idle(server: Served) -> None:
    requests = requests_of(16, new=LONG)
    server.engine.submit(requests)
    server.engine.abort([request.request_id for request in requests])
    assert {one.finish_reason for one in server.rest(16)} == {FinishReason.ABORT}
    server.load(UpdateMode.DRAIN)
    (after,) = server.answers(requests_of(1, new=5, name="after"))
    assert len(after.token_ids) == 5


def test_what_the_server_says_of_its_cache_is_told_while_requests_run(server: Served) -> None:
    engine = server.engine
    server.start(requests_of(8, new=LONG))
    while (load := engine.stats().load) is None or load.running < 8:
        server.step_without_end()  # it says so while they run
    stats = engine.stats()
    assert 0 < stats.kv_bytes_used <= stats.kv_bytes_total


@pytest.mark.parametrize("fault", ["missing", "unknown", "shape"])
def test_weights_of_another_model_are_refused_and_the_old_ones_serve_on(fault: str, server: Served) -> None:
    tensors = {name: torch.zeros_like(tensor) for name, tensor in server.model.state_dict().items()}
    if fault == "missing":
        del tensors["model.layers.1.mlp.up_proj.weight"]
    elif fault == "unknown":
        tensors["model.layers.2.mlp.up_proj.weight"] = torch.zeros(384, 128)
    else:
        tensors["model.norm.weight"] = torch.zeros(129)
    with pytest.raises(ComponentError, match="serves on") as caught:
        server.engine.load_weights(tensors, Version(9, 9), UpdateMode.KEEP)
    assert not isinstance(caught.value, ProcessDiedError)
    server.assert_parity(requests_of(4))


def test_nobody_else_on_the_machine_reaches_the_server(server: Served) -> None:
    folder = server.engine._server.folder
    assert folder.stat().st_mode & 0o777 == 0o700
    assert (folder / "socket").is_socket()
    for process in server.processes():
        for connection in process.net_connections("tcp"):
            assert connection.status != psutil.CONN_LISTEN or connection.laddr.ip in ("127.0.0.1", "::1")
        # Those elsewhere would stay when it is killed.
        sockets = {connection.laddr for connection in process.net_connections("unix")}
        assert {path for path in sockets if path.startswith("/") and not path.startswith(str(folder))} == set()
