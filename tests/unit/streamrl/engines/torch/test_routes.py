"""Routes that the engine records: those that transformers' routers choose, for each token of prompt and completion."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from support.learner.routed import CHOSEN, LAYERS, requests, routed_model, sampled
from transformers import PreTrainedModel, Qwen3Config, Qwen3ForCausalLM

from streamrl.engines.torch import TorchEngine
from streamrl.errors import ConfigError
from streamrl.scheduling.partial_rollouts import join, whole_completion
from streamrl.types import GenerationRequest, GenerationResult, PartialTokens, UpdateMode, Version, VersionSpan


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@torch.no_grad()
def chosen_by(model: PreTrainedModel, ids: np.ndarray) -> np.ndarray:
    """[T, layers, K], what transformers' routers choose, in ascending order."""
    logits = model(torch.from_numpy(ids.astype(np.int64))[None], output_router_logits=True).router_logits
    return np.stack([one.topk(CHOSEN).indices.sort(-1).values.numpy() for one in logits], axis=1)


def assert_routed_by(model: PreTrainedModel, request: GenerationRequest, result: GenerationResult) -> None:
    ids, prompt = np.concatenate([request.prompt_ids, result.token_ids]), len(request.prompt_ids)
    assert result.routes is not None
    assert result.routes.shape == (len(ids), LAYERS, CHOSEN)
    expected = chosen_by(model, ids)
    # Behind the last layer of a prompt stands nothing that reads it, and the last token is never read.
    expected[: prompt - 1, -1] = expected[-1] = -1
    assert np.array_equal(np.sort(result.routes, -1), expected)


@pytest.mark.parametrize("slots", [16, 5, 1])
def test_each_token_has_the_experts_that_its_router_chose_whatever_ran_beside(slots: int) -> None:
    model = routed_model()
    for request, result in zip(requests(), sampled(model, slots=slots), strict=True):
        assert_routed_by(model, request, result)


def test_recording_changes_no_token_and_without_it_there_are_no_routes() -> None:
    with_routes, without = (sampled(routed_model(), record_routes=record) for record in (True, False))
    for one, other in zip(with_routes, without, strict=True):
        assert one.token_ids.tobytes() == other.token_ids.tobytes()
        assert one.logprobs.tobytes() == other.logprobs.tobytes()
        assert other.routes is None


@pytest.mark.parametrize("mode", [UpdateMode.KEEP, UpdateMode.RECOMPUTE])
def test_a_token_keeps_the_experts_of_the_version_that_read_it_first(mode: UpdateMode) -> None:
    old, new = routed_model(), routed_model(seed=1)
    engine = TorchEngine(old, Version(0, 0), slots=4, max_length=64, kv_bytes=2**24, record_routes=True)
    request = requests()[-1]
    (whole,) = engine.generate([request])
    engine.submit([request])
    for _ in range(4):
        engine.step()
    engine.load_weights({name: one.detach() for name, one in new.named_parameters()}, Version(0, 1), mode)
    results: list[GenerationResult] = []
    while engine.has_work:
        results += engine.step()
    (result,) = results
    read = len(request.prompt_ids) + 3
    assert np.array_equal(result.routes[:read], whole.routes[:read])
    assert (result.routes[read:-1] >= 0).all()


def test_of_tokens_that_came_with_a_request_nothing_is_recorded_but_of_those_behind_them() -> None:
    model, request = routed_model(), requests()[5]
    engine = TorchEngine(model, Version(0, 1), slots=4, max_length=64, kv_bytes=2**24, record_routes=True)
    ids = np.array([3, 4, 5], np.int32)
    so_far = PartialTokens(request.request_id, 0, ids, np.zeros(3, np.float32), (VersionSpan(0, Version(0, 0)),))
    asked = GenerationRequest("a", request.prompt_ids, 1, request.sampling, (), so_far=so_far)
    (result,) = engine.generate([asked])
    prompt = len(request.prompt_ids)
    assert (result.routes[: prompt - 1, :-1] >= 0).all()
    assert (result.routes[prompt - 1 : prompt + 2] == -1).all()
    assert (result.routes[prompt + 2 : -1] >= 0).all()


@pytest.mark.parametrize("told_before", [0, 3])
def test_a_request_that_goes_on_elsewhere_keeps_the_experts_that_gave_its_tokens(told_before: int) -> None:
    old, new, request = routed_model(), routed_model(seed=1), requests()[5]
    first = TorchEngine(old, Version(0, 0), slots=4, max_length=64, kv_bytes=2**24, record_routes=True)
    (whole,) = first.generate([request])
    first.submit([request])
    pieces: list[PartialTokens] = []
    for step in range(6):
        first.step()
        if step + 1 == told_before:
            pieces += first.partials(1)
    pieces += first.partials(1)
    so_far = pieces[0] if len(pieces) == 1 else join(*pieces)
    assert so_far is not None
    prompt, known = len(request.prompt_ids), so_far.end
    assert np.array_equal(so_far.routes, whole.routes[prompt - 1 : prompt + known - 1])
    second = TorchEngine(new, Version(0, 1), slots=4, max_length=64, kv_bytes=2**24, record_routes=True)
    (result,) = second.generate([replace(request, so_far=so_far)])
    assert result.token_ids[:known].tolist() == whole.token_ids[:known].tolist()
    assert np.array_equal(result.routes[prompt - 1 : prompt + known - 1], so_far.routes)
    assert (result.routes[prompt + known - 1 : -1] >= 0).all()
    assert np.array_equal(whole_completion(result, "a").routes, result.routes[prompt - 1 : -1])


def test_routes_that_are_not_of_the_tokens_so_far_are_refused() -> None:
    engine = TorchEngine(routed_model(), Version(0, 0), slots=4, max_length=64, kv_bytes=2**24, record_routes=True)
    routes = np.zeros((2, LAYERS, CHOSEN), np.int16)
    spans = (VersionSpan(0, Version(0, 0)),)
    so_far = PartialTokens("a", 0, np.array([3, 4, 5], np.int32), np.zeros(3, np.float32), spans, routes=routes)
    (result,) = engine.generate([replace(requests()[5], so_far=so_far)])
    assert "its 3 tokens so far have routes of 2" in result.error


def test_a_model_without_experts_records_none_and_says_so() -> None:
    sizes = {"vocab_size": 11, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "head_dim": 8}
    model = Qwen3ForCausalLM(Qwen3Config(**sizes, num_key_value_heads=1, intermediate_size=16))
    with pytest.raises(ConfigError, match=r"records routes of experts for Qwen3-MoE .*router_replay = false"):
        TorchEngine(model, Version(0, 0), slots=1, max_length=8, kv_bytes=2**20, record_routes=True)
