"""The torch engine against transformers: the same tokens, the same log-probs; and what it refuses."""

import numpy as np
import pytest
import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

from streamrl.engines.torch import TorchEngine
from streamrl.engines.torch.general.path import GeneralPath
from streamrl.engines.torch.paths import path_for
from streamrl.errors import ComponentError, ConfigError
from streamrl.types import FinishReason, GenerationRequest, GenerationResult, SamplingParams, Version

VOCAB = 61
TIE = 1e-5
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
EXPERTS = {"num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 24, "head_dim": 16}
FAMILIES = {
    "qwen2": (Qwen2Config, Qwen2ForCausalLM, {}),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM, {"head_dim": 16}),
    "qwen3-bias": (Qwen3Config, Qwen3ForCausalLM, {"head_dim": 8, "attention_bias": True}),
    "llama": (LlamaConfig, LlamaForCausalLM, {}),
    "llama-bias": (LlamaConfig, LlamaForCausalLM, {"attention_bias": True, "mlp_bias": True}),
    "llama3-rope": (LlamaConfig, LlamaForCausalLM, {"rope_parameters": LLAMA3_ROPE}),
    "qwen3-moe": (Qwen3MoeConfig, Qwen3MoeForCausalLM, {**EXPERTS, "norm_topk_prob": True}),
    "qwen3-moe-weights-below-1": (Qwen3MoeConfig, Qwen3MoeForCausalLM, {**EXPERTS, "norm_topk_prob": False}),
    "mixtral": (MixtralConfig, MixtralForCausalLM, {"num_local_experts": 4, "num_experts_per_tok": 2}),
}


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def tiny_model(*, family: str = "qwen3", tied: bool = True, seed: int = 0) -> PreTrainedModel:
    config_class, model_class, extra = FAMILIES[family]
    sizes = {
        "vocab_size": VOCAB,
        "hidden_size": 48,
        "intermediate_size": 80,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
        "initializer_range": 0.2,
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": 0,
    }
    torch.manual_seed(seed)
    model = model_class(config_class(**{**sizes, "tie_word_embeddings": tied, **extra})).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name or name.endswith("bias"):  # their initial ones and zeros would hide a mistake
                parameter.add_(0.3 * torch.randn_like(parameter))
    return model


def engine_of(model: PreTrainedModel, *, slots: int = 8, max_length: int = 400, **options) -> TorchEngine:
    options = {"kv_bytes": 2**26, **options}
    return TorchEngine(model, Version(0, 0), slots=slots, max_length=max_length, **options)


def request(
    *, name: str = "r", prompt: list[int] | np.ndarray, seed: int = 0, stop: tuple[int, ...] = (), **sampling
) -> GenerationRequest:
    params = SamplingParams(**{"max_new_tokens": 12, **sampling})
    return GenerationRequest(name, np.asarray(prompt, dtype=np.int32), seed, params, stop)


def random_prompts(*, lengths: list[int], seed: int) -> list[np.ndarray]:
    random = np.random.default_rng(seed)
    return [random.integers(0, VOCAB, length, dtype=np.int32) for length in lengths]


def full_logits(model: PreTrainedModel, prompt: np.ndarray, completion: np.ndarray) -> torch.Tensor:
    """Logits that predicted each completion token, by one plain forward pass of transformers."""
    ids = torch.from_numpy(np.concatenate((prompt, completion)).astype(np.int64))[None]
    with torch.no_grad():
        return model(ids).logits[0, len(prompt) - 1 : -1].float()


def expected_logprobs(logits: torch.Tensor, result: GenerationResult) -> np.ndarray:
    chosen = torch.from_numpy(result.token_ids.astype(np.int64))[:, None]
    return logits.log_softmax(-1).gather(1, chosen)[:, 0].numpy()


def assert_same_up_to_a_tie(ours: list[int], theirs: list[int], logits: torch.Tensor) -> None:
    for place, (a, b) in enumerate(zip(ours, theirs, strict=True)):
        if a != b:
            best = logits[place].topk(2).values
            assert (best[0] - best[1]).item() < TIE, f"token {place}: {a} is not {b}"
            return


@pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "library"])
@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_tokens_and_logprobs_are_those_of_transformers(family: str, tied: bool, compiled: bool):
    model = tiny_model(family=family, tied=tied)
    prompts = random_prompts(lengths=[1, 2, 9, 31, 32, 33, 140, 290], seed=1)
    engine = engine_of(model, compiled=compiled)
    requests = [request(name=str(i), prompt=p, temperature=0.0) for i, p in enumerate(prompts)]
    for prompt, result in zip(prompts, engine.generate(requests), strict=True):
        ids = torch.from_numpy(prompt.astype(np.int64))[None]
        with torch.no_grad():
            out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=12, do_sample=False)
        logits = full_logits(model, prompt, result.token_ids)
        assert_same_up_to_a_tie(result.token_ids.tolist(), out[0, len(prompt) :].tolist(), logits)
        np.testing.assert_allclose(result.logprobs, expected_logprobs(logits, result), atol=1e-5)
        assert result.finish_reason is FinishReason.LENGTH
        assert result.version_spans == ((0, Version(0, 0)),)


@pytest.mark.parametrize("family", ["qwen2", "qwen3", "llama"])
def test_sampled_logprobs_are_those_of_the_tempered_distribution(family: str):
    model = tiny_model(family=family)
    prompts = random_prompts(lengths=[3, 17, 40, 60, 270], seed=2)
    requests = [request(name=str(i), prompt=p, seed=i, temperature=0.7) for i, p in enumerate(prompts)]
    for prompt, result in zip(prompts, engine_of(model).generate(requests), strict=True):
        logits = full_logits(model, prompt, result.token_ids) / 0.7
        # Of the log-prob, too: a temperature below 1 makes of a rounding more than it was.
        np.testing.assert_allclose(result.logprobs, expected_logprobs(logits, result), atol=1e-5, rtol=1e-5)


def test_a_truncated_logprob_is_normalised_over_the_kept_tokens():
    model = tiny_model()
    prompt = random_prompts(lengths=[20], seed=3)[0]
    result = engine_of(model).generate([request(prompt=prompt, seed=5, top_k=3)])[0]
    logits = full_logits(model, prompt, result.token_ids)
    floor = logits.topk(3).values[:, -1:]
    kept = logits.masked_fill(logits < floor, float("-inf"))
    np.testing.assert_allclose(result.logprobs, expected_logprobs(kept, result), atol=1e-5)


@pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "library"])
def test_rows_with_different_sampling_share_a_batch_without_touching_each_other(compiled: bool):
    model = tiny_model()
    prompts = random_prompts(lengths=[5, 6, 7, 8, 9], seed=4)
    kinds = [{"temperature": 0.0}, {}, {"top_k": 4}, {"top_p": 0.6, "temperature": 1.3}, {"min_p": 0.2}]
    requests = [
        request(name=str(i), prompt=p, seed=i, **kind) for i, (p, kind) in enumerate(zip(prompts, kinds, strict=True))
    ]
    together = engine_of(model, compiled=compiled).generate(requests)
    alone = [engine_of(model, compiled=compiled).generate([one])[0] for one in requests]
    for a, b in zip(together, alone, strict=True):
        assert a.token_ids.tolist() == b.token_ids.tolist()
        assert a.logprobs.tobytes() == b.logprobs.tobytes()


def test_a_group_of_equal_prompts_equals_its_members_alone():
    model = tiny_model()
    prompt, other, single = random_prompts(lengths=[40, 3, 1], seed=5)
    group = [request(name=f"a{i}", prompt=prompt, seed=i) for i in range(4)]
    group += [request(name=f"b{i}", prompt=other, seed=i) for i in range(3)]
    group += [request(name=f"c{i}", prompt=single, seed=i) for i in range(2)]
    together = engine_of(model, slots=9).generate(group)
    together[7:] = engine_of(model).generate(group[7:])  # nothing to prefill at all
    for one, result in zip(group, together, strict=True):
        alone = engine_of(model, slots=1).generate([one])[0]
        assert alone.token_ids.tolist() == result.token_ids.tolist()
        assert alone.logprobs.tobytes() == result.logprobs.tobytes()


def test_a_stop_token_ends_a_request_and_is_part_of_the_result():
    model = tiny_model()
    prompt = random_prompts(lengths=[10], seed=6)[0]
    free = engine_of(model).generate([request(prompt=prompt, seed=1, max_new_tokens=30)])[0]
    stop = int(free.token_ids[7])
    first = free.token_ids.tolist().index(stop)
    stopped = engine_of(model).generate(
        [
            request(name="one", prompt=prompt, seed=1, max_new_tokens=30, stop=(stop,)),
            request(name="many", prompt=prompt, seed=1, max_new_tokens=30, stop=(VOCAB + 5, VOCAB + 6, stop)),
        ]
    )
    for result in stopped:
        assert result.finish_reason is FinishReason.STOP
        assert result.token_ids.tolist() == free.token_ids[: first + 1].tolist()
        assert result.logprobs.tobytes() == free.logprobs[: first + 1].tobytes()


def test_more_requests_than_slots_all_finish_and_slots_are_refilled_at_once():
    model = tiny_model()
    random = np.random.default_rng(7)
    requests = [
        request(name=str(i), prompt=random.integers(0, VOCAB, 6), seed=i, max_new_tokens=int(size))
        for i, size in enumerate(random.integers(1, 30, 40))
    ]
    engine = engine_of(model, slots=5)
    engine.submit(requests)
    results = []
    while engine.has_work:
        ended = engine.step()
        results += ended
        assert engine.stats().waiting == 0 or engine.stats().running + len(ended) == 5
    assert sorted(int(r.request_id) for r in results) == list(range(40))
    sizes = {r.request_id: len(r.token_ids) for r in results}
    assert all(sizes[r.request_id] == r.sampling.max_new_tokens for r in requests)
    assert engine.stats().generated_tokens == sum(sizes.values())
    assert engine.stats().finished_requests == 40


def test_each_bad_request_comes_back_as_an_error_and_the_good_ones_run():
    engine = engine_of(tiny_model(), max_length=32)
    prompt = [1, 2, 3]
    bad = {
        "empty": request(name="empty", prompt=[]),
        "over the engine's length of 32": request(name="long", prompt=[1] * 30),
        "outside the vocabulary of 61": request(name="vocab", prompt=[1, VOCAB]),
        "outside the vocabulary": request(name="negative", prompt=[-1]),
        "temperature = -1": request(name="temperature", prompt=prompt, temperature=-1.0),
        "temperature = nan": request(name="nan", prompt=prompt, temperature=float("nan")),
        "top_p = 0": request(name="top_p", prompt=prompt, top_p=0.0),
        "top_k = -1": request(name="top_k", prompt=prompt, top_k=-1),
        "min_p = 2": request(name="min_p", prompt=prompt, min_p=2.0),
        "max_new_tokens = 0": request(name="none", prompt=prompt, max_new_tokens=0),
        "seed -1": request(name="seed", prompt=prompt, seed=-1),
    }
    good = request(name="good", prompt=prompt)
    *failed, last = engine.generate([*bad.values(), good])
    for text, result in zip(bad, failed, strict=True):
        assert result.finish_reason is FinishReason.ERROR
        assert text in result.error
        assert len(result.token_ids) == 0
        assert result.version_spans == ()
    assert last.finish_reason is FinishReason.LENGTH


def test_abort_returns_the_tokens_so_far_and_leaves_the_others_alone():
    model = tiny_model()
    prompts = random_prompts(lengths=[4, 5, 6, 7], seed=8)
    requests = [request(name=str(i), prompt=p, seed=i) for i, p in enumerate(prompts)]
    undisturbed = engine_of(model).generate(requests)
    engine = engine_of(model, slots=3)
    engine.submit(requests)
    results = [result for _ in range(5) for result in engine.step()]
    engine.abort(["0", "3", "unknown"])
    while engine.has_work:
        results += engine.step()
    by_name = {result.request_id: result for result in results}
    assert len(results) == 4
    assert by_name["0"].finish_reason is by_name["3"].finish_reason is FinishReason.ABORT
    assert by_name["0"].token_ids.tolist() == undisturbed[0].token_ids[:5].tolist()
    assert by_name["3"].token_ids.tolist() == []
    for name in ("1", "2"):
        assert by_name[name].token_ids.tolist() == undisturbed[int(name)].token_ids.tolist()
        assert by_name[name].logprobs.tobytes() == undisturbed[int(name)].logprobs.tobytes()


@pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "library"])
def test_invariant_12_non_finite_logits_end_the_request_and_do_not_outlive_it(compiled: bool):
    model = tiny_model(tied=False)
    good = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    poisoned = {name: tensor.clone() for name, tensor in good.items()}
    poisoned["model.embed_tokens.weight"][7] = float("nan")
    # The broken prompt is longer than those that follow in its slot: what it leaves there is masked, not overwritten.
    requests = [request(name=str(i), prompt=[5, 7] * 6 if i == 3 else [5, 6], seed=i) for i in range(4)]
    options = {"slots": 4, "max_length": 32, "kv_bytes": 2**22, "compiled": compiled}
    clean = TorchEngine(model.config, Version(0, 0), tensors=good, **options)
    engine = TorchEngine(model.config, Version(0, 0), tensors=poisoned, **options)
    results = engine.generate(requests)
    assert results[3].finish_reason is FinishReason.ERROR
    assert "non-finite log-prob at token 0, version 0.0" in results[3].error
    assert all(np.isfinite(result.logprobs).all() for result in results)
    engine.load_weights(good, Version(0, 1), "keep")
    again = [request(name=str(i), prompt=[5, 6, 5], seed=i) for i in range(4)]
    for ours, expected in zip(engine.generate(again), clean.generate(again), strict=True):
        assert ours.logprobs.tobytes() == expected.logprobs.tobytes()
        assert ours.finish_reason is FinishReason.LENGTH


def test_a_non_finite_row_keeps_the_tokens_before_it():
    model = tiny_model(tied=False)
    good = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    poisoned = {**good, "lm_head.weight": good["lm_head.weight"] * float("nan")}
    engine = engine_of(model)
    engine.submit([request(prompt=[1, 2, 3])])
    results = [result for _ in range(4) for result in engine.step()]
    engine.load_weights(poisoned, Version(0, 1), "keep")
    results += engine.step()
    assert results[0].finish_reason is FinishReason.ERROR
    assert "version 0.1" in results[0].error
    assert len(results[0].token_ids) == len(results[0].logprobs) == 4
    assert results[0].version_spans == ((0, Version(0, 0)),)


def test_the_cache_stays_within_its_bytes_and_slots_shrink_to_what_fits():
    model = tiny_model()
    slot_bytes = 3 * 2 * 2 * 16 * 64 * 4  # layers, k and v, kv heads, head_dim, positions, float32
    engine = engine_of(model, slots=8, max_length=64, kv_bytes=3 * slot_bytes + 5)
    assert engine.slots == 3
    assert engine.stats().kv_bytes_total == 3 * slot_bytes
    engine.submit([request(name=str(i), prompt=[1, 2, 3, 4]) for i in range(5)])
    engine.step()
    stats = engine.stats()
    assert (stats.running, stats.waiting) == (3, 2)
    assert stats.kv_bytes_used == 3 * 5 * slot_bytes // 64


def test_a_cache_too_small_for_one_request_is_refused_with_the_bytes_it_needs():
    slot_bytes = 3 * 2 * 2 * 16 * 64 * 4
    with pytest.raises(ConfigError, match=f"kv_bytes is 1000, .* takes {slot_bytes} bytes"):
        engine_of(tiny_model(), max_length=64, kv_bytes=1000)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"quantization_config": {"quant_method": "x"}}, "quantization_config"),
    ],
)
def test_a_model_it_would_compute_differently_is_refused_by_name(change: dict, message: str):
    config = Qwen3Config(hidden_size=48, num_attention_heads=4, num_hidden_layers=3, **change)
    with pytest.raises(ConfigError, match=message):
        TorchEngine(
            config,
            Version(0, 0),
            tensors={"model.embed_tokens.weight": torch.zeros(1)},
            slots=1,
            max_length=8,
            kv_bytes=2**20,
        )


@pytest.mark.parametrize(
    "change", [{"mlp_only_layers": [1]}, {"decoder_sparse_step": 2}, {"use_sliding_window": True, "sliding_window": 8}]
)
def test_experts_in_another_form_than_the_fused_weights_have_go_the_general_way(change: dict):
    sizes = {"vocab_size": VOCAB, "hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2}
    config = Qwen3MoeConfig(**sizes, **EXPERTS, **change, intermediate_size=48, num_hidden_layers=2)
    assert isinstance(path_for(config, torch.float32, torch.device("cpu"), compiled=True), GeneralPath)


def test_requests_longer_than_the_models_context_are_refused():
    with pytest.raises(ConfigError, match="600 tokens do not fit the model's context of 512"):
        engine_of(tiny_model(), max_length=600)


def test_cuda_without_a_device_is_refused_in_words():
    if torch.cuda.is_available():
        pytest.skip("this machine has a CUDA device")
    with pytest.raises(ConfigError, match=r"cannot use a GPU here|finds no GPU here"):
        engine_of(tiny_model(), device="cuda")


def test_generate_refuses_to_mix_with_running_requests():
    engine = engine_of(tiny_model())
    engine.submit([request(prompt=[1])])
    with pytest.raises(ComponentError, match="other requests are running"):
        engine.generate([request(prompt=[2])])


def test_a_closed_engine_says_so():
    engine = engine_of(tiny_model())
    engine.close()
    engine.close()
    with pytest.raises(ComponentError, match="closed"):
        engine.step()
    with pytest.raises(ComponentError, match="closed"):
        engine.submit([])


def test_bfloat16_generates_close_to_transformers():
    model = tiny_model().to(torch.bfloat16)
    prompts = random_prompts(lengths=[3, 40], seed=9)
    requests = [request(name=str(i), prompt=p, seed=i) for i, p in enumerate(prompts)]
    for prompt, result in zip(prompts, engine_of(model).generate(requests), strict=True):
        logits = full_logits(model, prompt, result.token_ids)
        assert abs(result.logprobs - expected_logprobs(logits, result)).max() < 0.5
