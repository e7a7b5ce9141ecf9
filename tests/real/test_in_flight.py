"""New weights under 32 running requests of real servers: each token has the log-prob of the version that it names."""

import asyncio

import pytest
from support.engines.real_engines import (
    CLOSE,
    CLOSE_OF_MANY,
    LONG,
    RUNNING,
    TIED,
    Served,
    expected,
    expected_with_kept_keys,
    requests_of,
)
from support.engines.real_models import furthest

from streamrl.engines.server.http import Http
from streamrl.types import FinishReason, GenerationRequest, GenerationResult, UpdateMode, Version, VersionSpan

PAUSE = {"vllm": ("/pause?mode=keep&clear_cache=false", None), "sglang": ("/pause_generation", {"mode": "in_place"})}
"""The route that lets a server take requests and begin none, and its body."""


@pytest.mark.parametrize("mode", list(UpdateMode))
@pytest.mark.parametrize("kind", TIED, ids=str)
def test_each_token_has_the_log_prob_of_the_version_that_its_span_names(mode: UpdateMode, server: Served) -> None:
    drains = mode is UpdateMode.DRAIN
    requests = requests_of(RUNNING, new=1000 if drains else LONG, temperature=0.7)
    by_id = {request.request_id: request for request in requests}
    old = server.engine.version
    server.start(requests)
    new = server.load(mode)
    assert (server.engine.version, len(server.engine._running)) == (old if drains else new, RUNNING)
    if drains:
        results = server.rest(RUNNING)
    else:
        server.go_on()
        results = server.abort_all()
    assert server.engine.version == new
    for result in results:
        assert_close_at_each_version(server, mode, by_id[result.request_id], result, (old, new))


def assert_close_at_each_version(
    server: Served,
    mode: UpdateMode,
    request: GenerationRequest,
    result: GenerationResult,
    versions: tuple[Version, Version],
) -> None:
    (old, new), ids, found = versions, result.token_ids, result.logprobs
    by_old = expected(server.models[old], request, ids)
    if mode is UpdateMode.DRAIN:
        assert (result.finish_reason, len(ids)) == (FinishReason.LENGTH, 1000)
        assert result.version_spans == (VersionSpan(0, old),)
        assert furthest(found, by_old) <= CLOSE_OF_MANY
        return
    first, second = result.version_spans
    assert (first, second.version) == (VersionSpan(0, old), new)
    switch = second.start
    assert 0 < switch < len(ids)
    assert furthest(found[:switch], by_old[:switch]) <= CLOSE_OF_MANY
    recomputed = expected(server.models[new], request, ids)[switch:]
    kept = expected_with_kept_keys(server.models[old], server.models[new], request, ids, switch)
    right, wrong = (recomputed, kept) if mode is UpdateMode.RECOMPUTE else (kept, recomputed)
    assert furthest(found[switch:], right) <= CLOSE_OF_MANY
    assert furthest(found[switch:], wrong) > 20 * CLOSE_OF_MANY, "the check would pass the other mode"


@pytest.mark.parametrize("kind", TIED, ids=str)
def test_two_updates_during_one_completion_give_three_spans(server: Served) -> None:
    requests = requests_of(16, new=LONG)
    by_id = {request.request_id: request for request in requests}
    versions = [server.engine.version]
    server.start(requests)
    for _ in range(2):
        versions.append(server.load(UpdateMode.RECOMPUTE))
        server.go_on()
    for result in server.abort_all():
        ids, spans = result.token_ids, result.version_spans
        assert [span.version for span in spans] == versions
        for span, end in zip(spans, [*(one.start for one in spans[1:]), len(ids)], strict=True):
            theirs = expected(server.models[span.version], by_id[result.request_id], ids)
            assert furthest(result.logprobs[span.start : end], theirs[span.start : end]) <= CLOSE_OF_MANY


@pytest.mark.parametrize("kind", TIED, ids=str)
def test_a_prompt_that_was_read_by_the_old_version_is_read_again_by_the_new_one(server: Served) -> None:
    requests = requests_of(4, new=4, length=300)
    server.assert_parity(requests)
    server.assert_parity(requests)  # from the cache, now
    server.load(UpdateMode.KEEP)
    server.assert_parity(requests)


@pytest.mark.parametrize("kind", TIED, ids=str)
def test_a_request_that_was_on_its_way_when_the_update_came_uses_no_keys_of_the_old_version(
    server: Served,
) -> None:
    (request,) = requests_of(1, new=24, length=301)
    server.assert_parity([request])  # its prompt is in the cache
    route, body = PAUSE[server.name]
    asyncio.run(_post(server, route, body))
    server.engine.submit([request])
    new = server.load(UpdateMode.KEEP)
    (result,) = server.rest(1)
    assert result.version_spans == (VersionSpan(0, new),)
    assert furthest(result.logprobs, expected(server.model, request, result.token_ids)) <= CLOSE


async def _post(server: Served, route: str, body: object) -> None:
    http = Http(socket=server.engine._server.folder / "socket")
    answer = await http.post(route, body)
    assert answer.ok, answer.error_text()
    await http.close()
