"""The engine around a server: order, versions, partial tokens, ends. Over a server without a model."""

import threading
from collections.abc import Iterator
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from support.engines.fake_server import logprob, token
from support.engines.fake_vllm import FakeVllm, fake_engine, name_of

from streamrl.engines.server.engine import ServerEngine
from streamrl.errors import ComponentError
from streamrl.types import (
    FinishReason,
    GenerationRequest,
    GenerationResult,
    PartialTokens,
    SamplingParams,
    UpdateMode,
    Version,
    VersionSpan,
)

OLD, NEW, NEWER = Version(0, 0), Version(0, 1), Version(0, 2)
LIMIT_S = 20.0


@pytest.fixture
def fake() -> FakeVllm:
    return FakeVllm()


@pytest.fixture
def engine(fake: FakeVllm) -> Iterator[ServerEngine]:
    with fake_engine(fake) as engine:
        yield engine


def request(name: str, *, most: int = 8, stop: tuple[int, ...] = (), so_far: PartialTokens | None = None):
    sampling = SamplingParams(temperature=0.7, max_new_tokens=most)
    return GenerationRequest(name, np.array([1, 4, 5], np.int32), 7, sampling, stop, so_far)


def weights() -> dict[str, "torch.Tensor"]:
    head = torch.ones(4, 2)
    return {"model.embed_tokens.weight": head, "lm_head.weight": head, "model.norm.weight": torch.zeros(2)}


def sampled(name: str, count: int, version: Version = OLD) -> PartialTokens:
    ids = np.arange(100, 100 + count, dtype=np.int32)
    return PartialTokens(name, 0, ids, np.full(count, -1.0, np.float32), (VersionSpan(0, version),))


def results(engine: ServerEngine, count: int = 1) -> list[GenerationResult]:
    """Step until so many have ended."""
    ended: list[GenerationResult] = []
    while len(ended) < count:
        ended += engine.step()
    return ended


def tokens_arrive(engine: ServerEngine, count: int) -> None:
    """Step until the engine was told of so many tokens, from its start on."""
    while engine.stats().generated_tokens < count:
        assert engine.step() == []


def begun(fake: FakeVllm, engine: ServerEngine, name: str) -> None:
    """A request of which the engine has heard."""
    engine.submit([request(name)])
    fake.wait_for(1)
    fake.sample(1, name)
    tokens_arrive(engine, 1)


def sent(fake: FakeVllm) -> list[str]:
    return [name_of(body["request_id"]) for path, body in fake.calls if path == "/inference/v1/generate"]


def test_as_many_as_there_are_slots_are_sent_and_the_others_follow_in_order(fake: FakeVllm) -> None:
    with fake_engine(fake, slots=2) as engine:
        engine.submit([request(name) for name in "abcd"])
        fake.wait_for(2)
        assert (engine.stats().running, engine.stats().waiting) == (2, 2)
        fake.sample(8, "b")
        assert [result.request_id for result in results(engine)] == ["b"]
        fake.wait_for(3)
        fake.sample(8)
        assert {result.request_id for result in results(engine, 2)} == {"a", "c"}
        fake.wait_for(4)
        fake.sample(8)
        assert [result.request_id for result in results(engine)] == ["d"]
        assert sorted(sent(fake)[:2]) == ["a", "b"]  # at once, so in either order
        assert sent(fake)[2:] == ["c", "d"]
        assert not engine.has_work
        assert engine.stats().finished_requests == 4


def test_a_result_has_the_servers_ids_log_probs_and_end(fake: FakeVllm, engine: ServerEngine) -> None:
    engine.submit([request("long"), request("stopped", stop=(token(2),))])
    fake.wait_for(2)
    for _ in range(8):
        fake.sample(1, *[name for name in ("long", "stopped") if name in fake.running])
    by_id = {result.request_id: result for result in results(engine, 2)}
    assert by_id["long"].token_ids.tolist() == [token(i) for i in range(8)]
    assert by_id["long"].logprobs.tolist() == [logprob(i) for i in range(8)]
    assert by_id["long"].finish_reason is FinishReason.LENGTH
    assert by_id["stopped"].token_ids.tolist() == [token(0), token(1), token(2)]
    assert by_id["stopped"].finish_reason is FinishReason.STOP
    assert by_id["stopped"].version_spans == (VersionSpan(0, OLD),)


def test_what_was_asked_for_is_what_the_server_is_asked_for(fake: FakeVllm, engine: ServerEngine) -> None:
    engine.submit([request("one", most=9, stop=(3, 4))])
    fake.wait_for(1)
    body = fake.running["one"].body
    assert body["token_ids"] == [1, 4, 5]
    assert body["stream"] is True
    params = {"temperature": 0.7, "top_p": 1.0, "top_k": 0, "min_p": 0.0, "max_tokens": 9, "seed": 7, "logprobs": 0}
    assert body["sampling_params"] == params | {"stop_token_ids": [3, 4], "ignore_eos": True, "detokenize": False}


def test_each_token_has_the_version_that_sampled_it(fake: FakeVllm, engine: ServerEngine) -> None:
    engine.submit([request("one")])
    fake.wait_for(1)
    fake.sample(3)
    tokens_arrive(engine, 3)
    engine.load_weights(weights(), NEW, UpdateMode.KEEP)
    fake.sample(1)
    engine.load_weights(weights(), NEWER, UpdateMode.RECOMPUTE)
    fake.sample(4)
    (result,) = results(engine)
    assert result.version_spans == (VersionSpan(0, OLD), VersionSpan(3, NEW), VersionSpan(4, NEWER))
    assert len(result.token_ids) == 8
    assert engine.version == NEWER


@pytest.mark.parametrize(("mode", "clear"), [("keep", "false"), ("recompute", "true"), ("drain", "true")])
def test_weights_change_while_nothing_is_sampled(mode: str, clear: str, fake: FakeVllm, engine: ServerEngine) -> None:
    engine.load_weights(weights(), NEW, UpdateMode(mode))
    verbs = ["/pause", "/collective_rpc", "/update_weight_version", "/resume"]
    assert [path for path in fake.paths() if path in verbs] == verbs
    assert fake.calls[0] == ("/pause", {"mode": "keep", "clear_cache": clear})
    assert not fake.paused
    assert engine.version == NEW


def test_the_server_reads_each_tensor_once_from_a_folder_that_is_ours_alone_and_then_gone(
    fake: FakeVllm, engine: ServerEngine
) -> None:
    engine.load_weights(weights(), NEW, UpdateMode.KEEP)
    assert fake.loaded == [(["model.embed_tokens.weight", "model.norm.weight"], 0o700)]
    assert [path.name for path in engine._server.folder.iterdir()] == ["socket"]


def test_a_request_under_a_new_version_reuses_no_keys_of_an_old_one(fake: FakeVllm, engine: ServerEngine) -> None:
    begun(fake, engine, "before")
    engine.load_weights(weights(), NEW, UpdateMode.KEEP)
    engine.submit([request("after"), request("too")])
    fake.wait_for(3)
    salts = {name: running.body["cache_salt"] for name, running in fake.running.items()}
    assert salts["before"] != salts["after"] == salts["too"]


@pytest.mark.parametrize("refused", [None, "tensor 'x' is not of this model"])
def test_a_request_that_the_server_may_not_have_begun_is_sent_again_after_an_update_that_keeps_the_keys(
    refused: str | None, fake: FakeVllm, engine: ServerEngine
) -> None:
    begun(fake, engine, "begun")
    engine.submit([request("on its way")])
    fake.wait_for(2)
    fake.refused = refused
    with pytest.raises(ComponentError) if refused else nullcontext():
        engine.load_weights(weights(), NEW, UpdateMode.KEEP)
    fake.wait_for(3)
    assert sent(fake) == ["begun", "on its way", "on its way"]
    old, first, second = [body for path, body in fake.calls if path == "/inference/v1/generate"]
    fake.wait_for_end_of(first["request_id"])
    assert first["request_id"] != second["request_id"]
    assert old["cache_salt"] == first["cache_salt"]
    assert (second["cache_salt"] == first["cache_salt"]) == bool(refused)
    fake.sample(8, "on its way")
    (result,) = results(engine)
    assert result.token_ids.tolist() == [token(i) for i in range(8)]
    assert result.version_spans == (VersionSpan(0, OLD if refused else NEW),)


@pytest.mark.parametrize("mode", [UpdateMode.RECOMPUTE, UpdateMode.DRAIN])
def test_an_update_that_empties_the_cache_sends_nothing_again(
    mode: UpdateMode, fake: FakeVllm, engine: ServerEngine
) -> None:
    engine.submit([request("on its way")])
    fake.wait_for(1)
    engine.load_weights(weights(), NEW, mode)
    fake.sample(8)
    (result,) = results(engine)
    assert result.finish_reason is FinishReason.LENGTH
    assert sent(fake) == ["on its way"]


def test_a_request_that_the_server_may_not_have_begun_is_aborted_by_closing_its_connection(
    fake: FakeVllm, engine: ServerEngine
) -> None:
    engine.submit([request("one")])
    fake.wait_for(1)
    engine.abort(["one"])
    (aborted,) = results(engine)
    assert (aborted.finish_reason, len(aborted.token_ids)) == (FinishReason.ABORT, 0)
    fake.wait_for_end_of(fake.calls[0][1]["request_id"])
    assert "/abort_requests" not in fake.paths()


def test_a_request_goes_on_behind_the_tokens_that_it_came_with(fake: FakeVllm, engine: ServerEngine) -> None:
    engine.load_weights(weights(), NEW, UpdateMode.KEEP)
    engine.submit([request("one", most=6, so_far=sampled("one", 2))])
    fake.wait_for(1)
    body = fake.running["one"].body
    assert body["token_ids"] == [1, 4, 5, 100, 101]
    assert body["sampling_params"]["max_tokens"] == 4
    fake.sample(4)
    (result,) = results(engine)
    assert result.token_ids.tolist() == [100, 101, *(token(i) for i in range(4))]
    assert result.logprobs.tolist() == [-1.0, -1.0, *(logprob(i) for i in range(4))]
    assert result.version_spans == (VersionSpan(0, OLD), VersionSpan(2, NEW))


def test_one_that_had_ended_comes_back_without_the_server(fake: FakeVllm, engine: ServerEngine) -> None:
    engine.submit([request("one", most=2, so_far=sampled("one", 2))])
    (result,) = results(engine)
    assert (result.finish_reason, result.token_ids.tolist()) == (FinishReason.LENGTH, [100, 101])
    assert sent(fake) == []


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (GenerationRequest("one", np.array([], np.int32), 0, SamplingParams(), ()), "empty"),
        (GenerationRequest("one", np.array([500], np.int32), 0, SamplingParams(), ()), r"0\.\.499"),
        (GenerationRequest("one", np.array([1], np.int32), 0, SamplingParams(max_new_tokens=0), ()), "max_new_tokens"),
        (GenerationRequest("one", np.array([1], np.int32), 0, SamplingParams(max_new_tokens=200), ()), "201 tokens"),
    ],
)
def test_a_request_that_can_never_run_is_an_error_and_the_server_never_sees_it(
    bad: GenerationRequest, words: str, fake: FakeVllm, engine: ServerEngine
) -> None:
    engine.submit([bad])
    (result,) = engine.step()
    assert result.finish_reason is FinishReason.ERROR
    assert __import__("re").search(words, result.error)
    assert sent(fake) == []


def test_partials_are_told_once_with_their_version(fake: FakeVllm, engine: ServerEngine) -> None:
    engine.submit([request("one", so_far=sampled("one", 2))])
    fake.wait_for(1)
    fake.sample(2)
    tokens_arrive(engine, 2)
    (first,) = engine.partials(3)
    assert (first.start, first.token_ids.tolist()) == (0, [100, 101, token(0), token(1)])
    assert first.version_spans == (VersionSpan(0, OLD),)
    fake.sample(1)
    tokens_arrive(engine, 3)
    assert engine.partials(2) == []
    (second,) = engine.partials(1)
    assert (second.start, second.token_ids.tolist()) == (4, [token(2)])


def test_tokens_that_come_after_an_update_are_told_only_with_the_end(fake: FakeVllm, engine: ServerEngine) -> None:
    engine.submit([request("one")])
    fake.wait_for(1)
    fake.sample(2)
    tokens_arrive(engine, 2)
    engine.load_weights(weights(), NEW, UpdateMode.KEEP)
    fake.sample(3)
    tokens_arrive(engine, 5)
    (certain,) = engine.partials(1)
    assert certain.token_ids.tolist() == [token(0), token(1)]
    assert engine.partials(1) == []


def test_drain_lets_the_running_ones_end_and_starts_no_other(fake: FakeVllm) -> None:
    with fake_engine(fake, slots=2) as engine:
        engine.submit([request("old")])
        fake.wait_for(1)
        engine.load_weights(weights(), NEW, UpdateMode.DRAIN)
        engine.submit([request("new")])
        assert (engine.stats().running, engine.stats().waiting) == (1, 1)
        assert engine.version == OLD
        assert fake.loaded == []
        fake.sample(8)
        (old,) = results(engine)
        assert engine.version == NEW
        fake.wait_for(2)
        fake.sample(8)
        (new,) = results(engine)
    assert old.version_spans == (VersionSpan(0, OLD),)
    assert new.version_spans == (VersionSpan(0, NEW),)


def test_a_load_replaces_a_drained_one_that_is_pending(fake: FakeVllm, engine: ServerEngine) -> None:
    engine.submit([request("one")])
    fake.wait_for(1)
    engine.load_weights(weights(), NEW, UpdateMode.DRAIN)
    engine.load_weights(weights(), NEWER, UpdateMode.KEEP)
    fake.wait_for(2)  # sent again
    fake.sample(8)
    (result,) = results(engine)
    assert result.version_spans == (VersionSpan(0, NEWER),)
    assert len(fake.loaded) == 1
    assert not engine.has_work


def test_an_abort_ends_the_waiting_at_once_and_the_running_with_their_tokens(fake: FakeVllm) -> None:
    with fake_engine(fake, slots=1) as engine:
        engine.submit([request("running"), request("waiting"), request("stays")])
        fake.wait_for(1)
        fake.sample(2)
        tokens_arrive(engine, 2)
        engine.load_weights(weights(), NEW, UpdateMode.KEEP)
        fake.sample(1)
        engine.abort(["running", "waiting", "nobody"])
        first, second = results(engine, 2)
        assert (first.request_id, first.finish_reason, len(first.token_ids)) == ("waiting", FinishReason.ABORT, 0)
        assert (second.request_id, second.finish_reason) == ("running", FinishReason.ABORT)
        assert second.version_spans == (VersionSpan(0, OLD), VersionSpan(2, NEW))
        assert len(second.token_ids) == 3
        fake.wait_for(2)
        assert list(fake.running) == ["stays"]


def test_an_abort_without_spans_keeps_what_is_certain(fake: FakeVllm, engine: ServerEngine) -> None:
    fake.odd = lambda choice: choice.update(weight_versions=None)
    engine.submit([request("one"), request("other")])
    fake.wait_for(2)
    fake.sample(2)
    tokens_arrive(engine, 4)
    engine.load_weights(weights(), NEW, UpdateMode.KEEP)
    fake.sample(1)
    tokens_arrive(engine, 6)
    engine.abort(["one"])
    (aborted,) = results(engine)
    assert aborted.token_ids.tolist() == [token(0), token(1)]
    assert aborted.version_spans == (VersionSpan(0, OLD),)
    fake.sample(8, "other")
    (ended,) = results(engine)
    assert ended.finish_reason is FinishReason.ERROR
    assert "none" in ended.error


def test_an_older_request_of_the_same_id_ends_before_the_newer_one_starts(fake: FakeVllm, engine: ServerEngine) -> None:
    begun(fake, engine, "one")
    fake.hung.add("/abort_requests")
    engine.abort(["one"])
    engine.submit([request("one"), request("two")])
    assert (engine.stats().running, engine.stats().waiting) == (1, 2)
    fake.end("one", "abort")
    (older,) = results(engine)
    assert older.finish_reason is FinishReason.ABORT
    fake.wait_for(3)
    fake.sample(8, "one")
    (newer,) = results(engine)
    assert newer.finish_reason is FinishReason.LENGTH


def test_an_interrupt_ends_a_step_that_waits(fake: FakeVllm, engine: ServerEngine) -> None:
    engine.submit([request("one")])
    fake.wait_for(1)
    engine.interrupt()
    assert engine.step() == []  # one that came before the wait counts, too
    stepped = threading.Thread(target=engine.step)
    stepped.start()
    engine.interrupt()
    stepped.join(LIMIT_S)
    assert not stepped.is_alive()


def test_what_the_server_says_of_its_cache_is_told(fake: FakeVllm, engine: ServerEngine) -> None:
    engine.submit([request("one")])
    fake.wait_for(1)
    while engine.stats().kv_bytes_used == 0:
        engine.step()
    assert (engine.stats().kv_bytes_used, engine.stats().kv_bytes_total) == (250, 1000)


def test_a_closed_engine_leaves_no_folder_and_says_that_it_is_closed(fake: FakeVllm) -> None:
    with fake_engine(fake) as engine:
        folder = engine._server.folder
        engine.submit([request("one")])
        engine.close()
        engine.close()
        assert not folder.exists()
        with pytest.raises(ComponentError, match="closed"):
            engine.step()
