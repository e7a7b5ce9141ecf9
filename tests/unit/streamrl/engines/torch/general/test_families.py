"""Families that are not in the table of the fast way: what the engine samples is what transformers computes."""

import numpy as np
import pytest
import torch
from support.engines.family_models import FAMILIES, SMALL, family_model
from support.kernels import NEEDS_KERNELS
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from streamrl.engines.torch.eager.own_products import OwnProducts
from streamrl.engines.torch.engine import TorchEngine
from streamrl.engines.torch.general.model import steady_length
from streamrl.engines.torch.general.path import GeneralPath
from streamrl.engines.torch.paths import FamilyPath
from streamrl.engines.torch.products import PlainProducts, RowProducts, TiledProducts
from streamrl.errors import BatchDependenceError, ConfigError
from streamrl.types import GenerationRequest, GenerationResult, SamplingParams, UpdateMode, Version

PROMPTS = (3, 17, 17, 30, 1, 9, 12)


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def engine_of(model: PreTrainedModel, **more: object) -> TorchEngine:
    settings = {"slots": 5, "max_length": 64, "kv_bytes": 2**24, "deterministic": False, **more}
    return TorchEngine(model, Version(0, 0), **settings)  # type: ignore[arg-type]


def requests(new_tokens: int = 16) -> list[GenerationRequest]:
    draw = np.random.default_rng(0)
    prompts = [draw.integers(3, 90, size=length).astype(np.int32) for length in PROMPTS]
    prompts[2] = prompts[1]  # two rows that share the reading of their prompt
    return [
        GenerationRequest(str(n), prompt, n, SamplingParams(temperature=float(n % 2), max_new_tokens=new_tokens), (2,))
        for n, prompt in enumerate(prompts)
    ]


@torch.no_grad()
def logprobs_of(model: PreTrainedModel, request: GenerationRequest, result: GenerationResult) -> torch.Tensor:
    """[n, vocab], transformers' own, at the places of the sampled tokens."""
    ids = torch.from_numpy(np.concatenate([request.prompt_ids, result.token_ids])[None].astype(np.int64))
    logprobs = torch.log_softmax(model(ids).logits[0].float(), -1)
    return logprobs[len(request.prompt_ids) - 1 : -1]


def assert_sampled_by(model: PreTrainedModel, request: GenerationRequest, result: GenerationResult) -> None:
    expected = logprobs_of(model, request, result)
    own = expected.gather(1, torch.from_numpy(result.token_ids.astype(np.int64))[:, None])[:, 0].numpy()
    assert np.abs(own - result.logprobs).max() < 1e-5
    if request.sampling.temperature == 0:
        assert expected.argmax(-1).tolist() == result.token_ids.tolist()


@pytest.mark.parametrize("kind", FAMILIES)
def test_requests_beside_each_other_are_sampled_as_transformers_computes_them_alone(kind: str) -> None:
    model = family_model(kind)
    engine = engine_of(model)
    assert isinstance(engine._path, GeneralPath)
    asked = requests()
    for request, result in zip(asked, engine.generate(asked), strict=True):
        assert_sampled_by(model, request, result)


@pytest.mark.parametrize("kind", FAMILIES)
def test_greedy_tokens_are_those_of_transformers_generate(kind: str) -> None:
    model = family_model(kind)
    request = requests()[4]
    (result,) = engine_of(model).generate([request])
    ids = torch.from_numpy(request.prompt_ids[None].astype(np.int64))
    told = model.generate(ids, max_new_tokens=16, do_sample=False, attention_mask=torch.ones_like(ids))
    assert told[0, len(request.prompt_ids) :].tolist() == result.token_ids.tolist()


@pytest.mark.parametrize("kind", [name for name, family in FAMILIES.items() if family.invariant])
def test_what_shares_a_batch_changes_no_bit_of_a_family(kind: str) -> None:
    engine_of(family_model(kind), deterministic=True, slots=16).self_test()


@pytest.mark.parametrize("kind", ["mistral", "gemma3_text", "lfm2", "falcon_h1"])
@pytest.mark.parametrize(
    "products", [TiledProducts(), pytest.param(OwnProducts(), marks=NEEDS_KERNELS)], ids=["tiles", "own"]
)
def test_the_linear_layers_of_a_family_are_multiplied_in_any_way(kind: str, products: RowProducts) -> None:
    model = family_model(kind)
    engine = engine_of(model, deterministic=True, slots=16, products=[products])
    engine.self_test()
    asked = requests()
    for request, result in zip(asked, engine.generate(asked), strict=True):
        assert_sampled_by(model, request, result)


def test_experts_are_run_in_groups_by_the_library_and_one_by_one_where_rows_are_multiplied_otherwise() -> None:
    model = family_model("qwen3_moe")
    asked = requests()
    for products, experts in (PlainProducts(4), "grouped_mm"), (TiledProducts(), "eager"):
        engine = engine_of(model, deterministic=True, slots=16, products=[products])
        assert engine._path._model._module.config._experts_implementation == experts
        for request, result in zip(asked, engine.generate(asked), strict=True):
            assert_sampled_by(model, request, result)


@pytest.mark.long
@pytest.mark.parametrize("kind", [name for name, family in FAMILIES.items() if not family.invariant])
def test_a_promise_of_equal_bits_is_kept_by_a_rung_or_refused_or_given_up(kind: str) -> None:
    """Which of them is a matter of the processor: strict mode may keep what another library does not."""
    model = family_model(kind)
    engine = engine_of(model, deterministic=True, slots=16)
    engine.self_test(required=False)
    arithmetic = engine.stats().arithmetic
    assert arithmetic is not None
    again = engine_of(family_model(kind), deterministic=True, slots=16)
    if arithmetic.rung == "none":
        assert "depends on its batch" in arithmetic.why
        with pytest.raises(BatchDependenceError, match=r"rollout\.deterministic = false"):
            again.self_test()
    else:
        again.self_test()
        assert again.stats().arithmetic == arithmetic
    (request, *_) = requests()
    assert_sampled_by(model, request, engine.generate([request])[0])


@pytest.mark.parametrize("kind", ["gemma3_text", "qwen3_5_text"])
@pytest.mark.parametrize("mode", [UpdateMode.KEEP, UpdateMode.RECOMPUTE, UpdateMode.DRAIN])
def test_weights_are_taken_up_in_the_middle_of_generation(mode: UpdateMode, kind: str) -> None:
    old, new = family_model(kind), family_model(kind, seed=1)
    engine = engine_of(old)
    asked = requests()[:3]
    engine.submit(asked)
    for _ in range(4):
        assert engine.step() == []
    engine.load_weights(dict(new.named_parameters()), Version(0, 1), mode)
    results: dict[str, GenerationResult] = {}
    while engine.has_work:
        results |= {result.request_id: result for result in engine.step()}
    assert engine.version == Version(0, 1)
    (after,) = engine.generate([requests()[3]])
    assert_sampled_by(new, requests()[3], after)
    for request in asked:
        result = results[request.request_id]
        spans = [(span.start, span.version.step) for span in result.version_spans]
        assert spans == ([(0, 0)] if mode is UpdateMode.DRAIN else [(0, 0), (4, 1)])
        if mode is UpdateMode.RECOMPUTE:
            own = logprobs_of(new, request, result)[4:].gather(
                1, torch.from_numpy(result.token_ids[4:].astype(np.int64))[:, None]
            )
            assert np.abs(own[:, 0].numpy() - result.logprobs[4:]).max() < 1e-5


def test_an_engine_and_one_for_evaluation_may_share_a_model_that_neither_changes() -> None:
    model = family_model("olmo2")
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    first, second = engine_of(model), engine_of(model)
    second.load_weights(dict(family_model("olmo2", seed=3).named_parameters()), Version(0, 5), UpdateMode.KEEP)
    (request,) = requests()[:1]
    assert_sampled_by(model, request, first.generate([request])[0])
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert model.config._attn_implementation != "streamrl_cached"


def test_a_set_that_is_not_whole_is_refused_by_name_and_nothing_is_touched() -> None:
    model = family_model("mistral")
    engine = engine_of(model)
    tensors = dict(model.named_parameters())
    missing = {name: tensor for name, tensor in tensors.items() if "layers.1.mlp" not in name}
    with pytest.raises(ValueError, match=r"misses tensor model.layers.1.mlp"):
        engine.load_weights(missing, Version(0, 1), UpdateMode.KEEP)
    wrong = {**tensors, "model.norm.weight": torch.zeros(7)}
    with pytest.raises(ValueError, match=r"model.norm.weight has shape \(7,\)"):
        engine.load_weights(wrong, Version(0, 1), UpdateMode.KEEP)
    assert engine.version == Version(0, 0)


@pytest.mark.parametrize("tied", [True, False])
def test_tied_and_untied_heads(tied: bool) -> None:
    model = family_model("phi3", tie_word_embeddings=tied)
    request = requests()[1]
    assert_sampled_by(model, request, engine_of(model).generate([request])[0])


def test_the_window_of_a_family_of_the_fast_way_is_run_by_the_general_one() -> None:
    config = AutoConfig.for_model("qwen3", **SMALL, use_sliding_window=True, sliding_window=6, max_window_layers=1)
    model = AutoModelForCausalLM.from_config(config).eval()
    engine = engine_of(model)
    assert isinstance(engine._path, GeneralPath)
    request = requests()[3]
    assert_sampled_by(model, request, engine.generate([request])[0])
    plain = AutoModelForCausalLM.from_config(AutoConfig.for_model("qwen3", **SMALL))
    assert isinstance(engine_of(plain)._path, FamilyPath)


@pytest.mark.parametrize(
    ("kind", "more", "words"),
    [
        (
            "minimax",
            {"layer_types": ["linear_attention", "full_attention", "linear_attention"], "num_local_experts": 2},
            "'minimax': 1 calls of attention in 3 layers: it mixes tokens in another way, too",
        ),
        ("recurrent_gemma", {"lru_width": 32}, "'recurrent_gemma': RecurrentGemmaRecurrentBlock.forward"),
        ("stablelm", {}, "'stablelm': the model does not hand its arguments on to its attention"),
    ],
)
def test_a_model_that_mixes_tokens_in_another_way_is_refused_by_name(kind: str, more: dict, words: str) -> None:
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **{**SMALL, **more}))
    with pytest.raises(ConfigError, match=f"the torch engine cannot run models of type {words}.*rollout.engine"):
        engine_of(model)


def test_a_rotary_embedding_that_changes_with_length_is_run_as_far_as_it_does_not() -> None:
    factors = {"short_factor": [1.0] * 4, "long_factor": [2.0] * 4}
    rope = {"rope_type": "longrope", "rope_theta": 1e4, "original_max_position_embeddings": 48, **factors}
    model = family_model("phi3", rope_parameters=rope, original_max_position_embeddings=48)
    assert steady_length(model.config) == 48
    request = requests()[1]
    assert_sampled_by(model, request, engine_of(model, max_length=48).generate([request])[0])
    with pytest.raises(ConfigError, match="beyond 48 tokens: its rotary embedding changes there"):
        engine_of(model, max_length=49)


def test_a_cache_too_small_for_one_request_is_refused_with_the_bytes_it_needs() -> None:
    with pytest.raises(ConfigError, match=r"kv_bytes is 1000, .* takes \d+ bytes"):
        engine_of(family_model("olmo2"), kv_bytes=1000)
