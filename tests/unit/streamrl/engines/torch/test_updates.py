"""New weights in the middle of generation: which version sampled which token, and under which cache."""

import numpy as np
import pytest
import torch
from support.engines.tiny_qwen3 import VOCAB, tiny_model
from transformers import DynamicCache, PreTrainedModel

from streamrl.engines.torch import TorchEngine
from streamrl.types import (
    FinishReason,
    GenerationRequest,
    GenerationResult,
    SamplingParams,
    UpdateMode,
    Version,
    VersionSpan,
)

OLD, NEW, NEWER = Version(0, 0), Version(0, 1), Version(0, 2)


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def tensors_of(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


def engine_of(model: PreTrainedModel, *, slots: int = 6) -> TorchEngine:
    return TorchEngine(model, OLD, slots=slots, max_length=200, kv_bytes=2**26)


def requests_of(*, number: int = 4, new: int = 20, length: int = 9, name: str = "") -> list[GenerationRequest]:
    random = np.random.default_rng(number)
    prompts = [random.integers(0, VOCAB, length + i, dtype=np.int32) for i in range(number)]
    sampling = SamplingParams(max_new_tokens=new)
    return [GenerationRequest(f"{name}{i}", ids, i, sampling, ()) for i, ids in enumerate(prompts)]


def run(engine: TorchEngine, *, steps: int = 10_000) -> list[GenerationResult]:
    results = []
    while engine.has_work and steps:
        results += engine.step()
        steps -= 1
    return results


def logprobs_over(
    spans: list[tuple[PreTrainedModel, int]], prompt: np.ndarray, completion: np.ndarray, *, rebuild: bool
) -> np.ndarray:
    """Log-prob of each completion token by transformers, where model i of `spans` serves from its token index.

    rebuild: a new model reads the whole prefix again; else it goes on with the cache that the others left.
    """
    ids = torch.from_numpy(np.concatenate((prompt, completion)).astype(np.int64))[None]
    ends = [start for _, start in spans[1:]] + [len(completion)]
    cache, seen, parts = DynamicCache(), 0, []
    for (model, start), end in zip(spans, ends, strict=True):
        if rebuild:
            cache, seen = DynamicCache(), 0
        stop = len(prompt) + end - 1  # the last token of a span is read by the next one
        with torch.no_grad():
            # By place: transformers renamed this argument in 5.24.
            logits = model(ids[:, seen:stop], None, None, cache, use_cache=True).logits[0]
        wanted = torch.arange(len(prompt) + start - 1, stop) - seen
        chosen = torch.from_numpy(completion[start:end].astype(np.int64))[:, None]
        parts.append(logits[wanted].log_softmax(-1).gather(1, chosen)[:, 0])
        seen = stop
    return torch.cat(parts).numpy()


@pytest.mark.parametrize("mode", [UpdateMode.KEEP, UpdateMode.RECOMPUTE])
def test_each_token_has_the_logprob_of_the_version_that_its_span_names(mode: UpdateMode):
    models = [tiny_model(seed=seed) for seed in range(3)]
    engine = engine_of(models[0])
    requests = requests_of()
    engine.submit(requests)
    results = run(engine, steps=5)
    engine.load_weights(tensors_of(models[1]), NEW, mode)
    results += run(engine, steps=8)
    engine.load_weights(tensors_of(models[2]), NEWER, mode)
    results += run(engine)
    expected_spans = (VersionSpan(0, OLD), VersionSpan(5, NEW), VersionSpan(13, NEWER))
    spans = list(zip(models, (0, 5, 13), strict=True))
    for result in results:
        request = requests[int(result.request_id)]
        assert result.version_spans == expected_spans
        expected = logprobs_over(spans, request.prompt_ids, result.token_ids, rebuild=mode is UpdateMode.RECOMPUTE)
        np.testing.assert_allclose(result.logprobs, expected, atol=1e-5)


def test_keep_and_recompute_differ_so_the_test_above_can_tell_them_apart():
    models = [tiny_model(seed=seed) for seed in range(2)]
    request = requests_of(number=1)[0]
    completion = np.arange(20, dtype=np.int32)
    spans = [(models[0], 0), (models[1], 5)]
    kept = logprobs_over(spans, request.prompt_ids, completion, rebuild=False)
    rebuilt = logprobs_over(spans, request.prompt_ids, completion, rebuild=True)
    assert abs(kept[5:] - rebuilt[5:]).max() > 1e-2


def test_recompute_rebuilds_more_tokens_than_one_pass_takes(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("streamrl.engines.torch.eager.runner.EagerRunner.prefill_tokens", 30)
    models = [tiny_model(seed=seed) for seed in range(2)]
    engine = engine_of(models[0])
    requests = requests_of(length=25)
    engine.submit(requests)
    run(engine, steps=4)
    engine.load_weights(tensors_of(models[1]), NEW, UpdateMode.RECOMPUTE)
    for result in run(engine):
        # One prompt of 25 tokens starts in each step.
        switch = 4 - int(result.request_id)
        prompt = requests[int(result.request_id)].prompt_ids
        expected = logprobs_over([(models[0], 0), (models[1], switch)], prompt, result.token_ids, rebuild=True)
        np.testing.assert_allclose(result.logprobs, expected, atol=1e-5)


def test_prompts_over_the_budget_of_one_pass_wait_for_the_next(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("streamrl.engines.torch.eager.runner.EagerRunner.prefill_tokens", 20)
    engine = engine_of(tiny_model(seed=0))
    engine.submit(requests_of())  # prompts of 9, 10, 11 and 12 tokens
    for running in (2, 3, 4):
        engine.step()
        assert engine.stats().running == running
    assert len(run(engine)) == 4


def test_drain_finishes_what_runs_under_the_old_version_and_starts_nothing_meanwhile():
    models = [tiny_model(seed=seed) for seed in range(2)]
    engine = engine_of(models[0])
    old, new = requests_of(new=10), requests_of(new=10, name="new-")
    engine.submit(old)
    run(engine, steps=3)
    weights = tensors_of(models[1])
    engine.load_weights(weights, NEW, UpdateMode.DRAIN)
    weights.clear()
    engine.submit(new)
    results = []
    while engine.version == OLD:
        assert engine.stats().running <= len(old)
        assert engine.stats().waiting == len(new)
        results += engine.step()
    assert {result.request_id for result in results} == {request.request_id for request in old}
    assert all(result.version_spans == (VersionSpan(0, OLD),) for result in results)
    after = {result.request_id: result for result in run(engine)}
    fresh = engine_of(models[1]).generate(new)
    for expected in fresh:
        result = after[expected.request_id]
        assert result.version_spans == (VersionSpan(0, NEW),)
        assert result.logprobs.tobytes() == expected.logprobs.tobytes()


def test_a_drained_update_of_an_idle_engine_takes_effect_at_once():
    engine = engine_of(tiny_model(seed=0))
    engine.load_weights(tensors_of(tiny_model(seed=1)), NEW, UpdateMode.DRAIN)
    assert engine.version == NEW
    assert not engine.has_work


def test_a_drained_update_takes_effect_when_what_runs_is_aborted():
    engine = engine_of(tiny_model(seed=0))
    engine.submit(requests_of())
    engine.step()
    engine.load_weights(tensors_of(tiny_model(seed=1)), NEW, UpdateMode.DRAIN)
    assert engine.version == OLD
    engine.abort([str(i) for i in range(4)])
    assert engine.version == NEW
    results = run(engine)
    assert all(r.version_spans == (VersionSpan(0, OLD),) for r in results)
    assert all(r.finish_reason is FinishReason.ABORT for r in results)


def test_a_second_update_replaces_a_pending_drain():
    models = [tiny_model(seed=seed) for seed in range(3)]
    engine = engine_of(models[0])
    engine.submit(requests_of())
    run(engine, steps=3)
    engine.load_weights(tensors_of(models[1]), NEW, UpdateMode.DRAIN)
    engine.load_weights(tensors_of(models[2]), NEWER, UpdateMode.KEEP)
    assert engine.version == NEWER
    assert all(r.version_spans == (VersionSpan(0, OLD), VersionSpan(3, NEWER)) for r in run(engine))
    assert engine.version == NEWER


def test_two_updates_without_a_token_between_leave_one_span():
    models = [tiny_model(seed=seed) for seed in range(3)]
    engine = engine_of(models[0])
    engine.submit(requests_of())
    run(engine, steps=3)
    engine.load_weights(tensors_of(models[1]), NEW, UpdateMode.KEEP)
    engine.load_weights(tensors_of(models[2]), NEWER, UpdateMode.KEEP)
    assert all(r.version_spans == (VersionSpan(0, OLD), VersionSpan(3, NEWER)) for r in run(engine))


def test_a_request_that_waits_during_an_update_starts_under_the_new_version():
    engine = engine_of(tiny_model(seed=0), slots=2)
    engine.submit(requests_of(number=3))
    run(engine, steps=4)
    engine.load_weights(tensors_of(tiny_model(seed=1)), NEW, UpdateMode.KEEP)
    by_name = {result.request_id: result for result in run(engine)}
    assert by_name["0"].version_spans == (VersionSpan(0, OLD), VersionSpan(4, NEW))
    assert by_name["2"].version_spans == (VersionSpan(0, NEW),)


def test_aborted_at_an_update_a_request_does_not_claim_a_version_that_sampled_nothing():
    engine = engine_of(tiny_model(seed=0))
    engine.submit(requests_of(number=1))
    run(engine, steps=4)
    engine.load_weights(tensors_of(tiny_model(seed=1)), NEW, UpdateMode.KEEP)
    engine.abort(["0"])
    assert run(engine)[0].version_spans == (VersionSpan(0, OLD),)


@pytest.mark.parametrize("mode", list(UpdateMode))
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.pop("model.layers.1.mlp.up_proj.weight"), "misses tensor model.layers.1.mlp.up_proj"),
        (lambda t: t.update(extra=torch.zeros(1)), "unknown tensor extra"),
        (
            lambda t: t.update({"model.norm.weight": torch.zeros(31)}),
            r"model.norm.weight has shape \(31,\), the model needs \(32,\)",
        ),
        (
            lambda t: t.update({"model.norm.weight": torch.zeros(32).half()}),
            "model.norm.weight has dtype torch.float16, the engine runs in torch.float32",
        ),
        (lambda t: t.update({"lm_head.weight": torch.zeros(VOCAB, 32)}), "lm_head.weight differs from"),
    ],
    ids=["missing", "unknown", "shape", "dtype", "tied head"],
)
def test_a_broken_weight_set_is_refused_whole_and_the_old_version_serves_on(change, message, mode):
    model = tiny_model(seed=0)
    expected = engine_of(model).generate(requests_of())
    engine = engine_of(model)
    engine.submit(requests_of())
    results = run(engine, steps=3)
    broken = tensors_of(tiny_model(seed=1))
    change(broken)
    with pytest.raises(ValueError, match=message):
        engine.load_weights(broken, NEW, mode)
    assert engine.version == OLD
    results += run(engine)
    for ours, theirs in zip(sorted(results, key=lambda r: r.request_id), expected, strict=True):
        assert ours.logprobs.tobytes() == theirs.logprobs.tobytes()
        assert ours.version_spans == (VersionSpan(0, OLD),)


def test_a_tied_set_may_come_with_or_without_its_head():
    model, other = tiny_model(seed=0), tiny_model(seed=1)
    results = []
    for with_head in (True, False):
        tensors = tensors_of(other)
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
        if not with_head:
            del tensors["lm_head.weight"]
        engine = engine_of(model)
        engine.load_weights(tensors, NEW, UpdateMode.KEEP)
        results.append([r.logprobs.tobytes() for r in engine.generate(requests_of())])
    fresh = engine_of(other).generate(requests_of())
    assert results[0] == results[1] == [r.logprobs.tobytes() for r in fresh]


def test_an_untied_head_is_loaded_too():
    model, other = tiny_model(seed=0, tied=False), tiny_model(seed=1, tied=False)
    engine = engine_of(model)
    engine.load_weights(tensors_of(other), NEW, UpdateMode.KEEP)
    fresh = engine_of(other).generate(requests_of())
    for ours, theirs in zip(engine.generate(requests_of()), fresh, strict=True):
        assert ours.logprobs.tobytes() == theirs.logprobs.tobytes()
