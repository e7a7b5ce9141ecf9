"""What the torch engine tells beside its tokens, as transformers has it: likeliest tokens, log-probs of prompts."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from streamrl.engines.torch import TorchEngine
from streamrl.types import (
    MOST_TOP_LOGPROBS,
    FinishReason,
    GenerationRequest,
    GenerationResult,
    PartialTokens,
    SamplingParams,
    TopLogprobs,
    UpdateMode,
    Version,
    VersionSpan,
)

VOCAB = 61
SIZES = {
    "vocab_size": VOCAB,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "initializer_range": 0.2,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": 0,
}
FAMILIES = {
    "qwen3": (Qwen3Config, Qwen3ForCausalLM),
    "llama": (LlamaConfig, LlamaForCausalLM),
    "gemma2": (Gemma2Config, Gemma2ForCausalLM),
}


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def tiny_model(family: str = "qwen3") -> PreTrainedModel:
    config_class, model_class = FAMILIES[family]
    torch.manual_seed(0)
    return model_class(config_class(**SIZES)).eval()


def engine_of(model: PreTrainedModel, *, slots: int = 4, **options) -> TorchEngine:
    return TorchEngine(model, Version(0, 0), slots=slots, max_length=400, kv_bytes=2**26, **options)


def request(
    *, name: str = "r", length: int = 9, top_logprobs: int = 0, scores: bool = False, new: int = 6, **sampling
) -> GenerationRequest:
    prompt = np.random.default_rng(length).integers(0, VOCAB, length, dtype=np.int32)
    params = SamplingParams(max_new_tokens=new, **sampling)
    return GenerationRequest(name, prompt, 7, params, (), top_logprobs=top_logprobs, prompt_logprobs=scores)


def distributions(
    model: PreTrainedModel, asked: GenerationRequest, result: GenerationResult, temperature: float = 1.0
) -> tuple[np.ndarray, np.ndarray]:
    """Log-probs by transformers, float32 [n, vocab]: behind each of the prompt's tokens but the last, at temperature 1,
    and in the place of each sampled one."""
    ids = torch.from_numpy(np.concatenate((asked.prompt_ids, result.token_ids)).astype(np.int64))
    with torch.no_grad():
        logits = model(ids[None]).logits[0].float()
    last = len(asked.prompt_ids) - 1
    prompt, sampled = logits[:last].log_softmax(-1), (logits[last:-1] / temperature).log_softmax(-1)
    return prompt.numpy(), sampled.numpy()


def assert_likeliest(told: TopLogprobs | None, logprobs: np.ndarray, most: int) -> None:
    """They are the greatest `most` of each row of [n, vocab], the greatest first."""
    assert told is not None
    assert told.token_ids.shape == told.logprobs.shape == (len(logprobs), most)
    greatest = np.sort(logprobs, axis=-1)[:, ::-1][:, :most]
    np.testing.assert_allclose(told.logprobs, greatest, atol=1e-4)
    np.testing.assert_allclose(told.logprobs, np.take_along_axis(logprobs, told.token_ids, 1), atol=1e-4)


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("family", FAMILIES)
def test_what_is_told_is_what_transformers_says(family: str, compiled: bool) -> None:
    model = tiny_model(family)
    asked = [
        request(name="prompt", length=30, top_logprobs=5, scores=True),
        request(name="most", length=2, top_logprobs=MOST_TOP_LOGPROBS),
        request(name="long", length=300, scores=True, new=1),
        request(name="greedy", length=17, top_logprobs=1, scores=True, temperature=0.0),
        request(name="hot", length=5, top_logprobs=3, temperature=1.7),
        request(name="nothing", length=8),
    ]
    results = engine_of(model, compiled=compiled).generate(asked)
    for one, result in zip(asked, results, strict=True):
        assert result.finish_reason is FinishReason.LENGTH, result.error
        prompt, sampled = distributions(model, one, result, one.sampling.temperature or 1.0)
        if one.top_logprobs:
            assert_likeliest(result.top_logprobs, sampled, one.top_logprobs)
        else:
            assert result.top_logprobs is None
        if not one.prompt_logprobs:
            assert result.prompt is None
            continue
        own = prompt[np.arange(len(prompt)), one.prompt_ids[1:]]
        np.testing.assert_allclose(result.prompt.logprobs, own, atol=1e-4)
        if one.top_logprobs:
            assert_likeliest(result.prompt.top_logprobs, prompt, one.top_logprobs)
        else:
            assert result.prompt.top_logprobs is None


def test_the_likeliest_are_those_of_the_distribution_that_is_sampled() -> None:
    model = tiny_model()
    asked = request(top_logprobs=5, top_k=3, temperature=0.7)
    (result,) = engine_of(model).generate([asked])
    ids, logprobs = result.top_logprobs.token_ids, result.top_logprobs.logprobs
    assert (ids[:, 3:] == -1).all()
    assert np.isneginf(logprobs[:, 3:]).all()
    np.testing.assert_allclose(np.exp(logprobs[:, :3]).sum(1), 1, atol=1e-5)
    drawn = ids == result.token_ids[:, None]
    assert (drawn.sum(1) == 1).all()
    np.testing.assert_allclose(logprobs[drawn], result.logprobs, atol=1e-6)


@pytest.mark.parametrize("compiled", [True, False])
def test_nothing_depends_on_what_shares_the_batch_or_on_who_asks(compiled: bool) -> None:
    model = tiny_model()
    asked = [
        request(name=f"{i}", length=3 + 7 * i, top_logprobs=i % 3 * 4, scores=i % 2 == 0, new=4 + i) for i in range(9)
    ]
    together = engine_of(model, compiled=compiled).generate(asked)
    for one, result in zip(asked, together, strict=True):
        (alone,) = engine_of(model, compiled=compiled).generate([one])
        (silent,) = engine_of(model, compiled=compiled).generate([replace(one, top_logprobs=0, prompt_logprobs=False)])
        np.testing.assert_array_equal(result.token_ids, silent.token_ids)
        np.testing.assert_array_equal(result.logprobs, silent.logprobs)
        if one.top_logprobs:
            np.testing.assert_array_equal(result.top_logprobs.token_ids, alone.top_logprobs.token_ids)
            np.testing.assert_array_equal(result.top_logprobs.logprobs, alone.top_logprobs.logprobs)
        if one.prompt_logprobs:
            np.testing.assert_array_equal(result.prompt.logprobs, alone.prompt.logprobs)


def test_requests_with_one_prompt_are_each_told_what_they_asked_for() -> None:
    model = tiny_model()
    shared = request(length=12, scores=True)
    asked = [
        replace(shared, request_id="first", prompt_logprobs=False, seed=11),
        replace(shared, request_id="none"),
        replace(shared, request_id="two", top_logprobs=2, seed=8),
        replace(shared, request_id="five", top_logprobs=5, seed=9),
        replace(shared, request_id="silent", prompt_logprobs=False, seed=10),
    ]
    first, none, two, five, silent = engine_of(model, slots=5).generate(asked)
    prompt, _ = distributions(model, shared, none)
    assert none.prompt.top_logprobs is None
    assert first.prompt is silent.prompt is None
    assert_likeliest(two.prompt.top_logprobs, prompt, 2)
    assert_likeliest(five.prompt.top_logprobs, prompt, 5)
    np.testing.assert_array_equal(none.prompt.logprobs, five.prompt.logprobs)


@pytest.mark.parametrize("compiled", [True, False])
def test_a_request_that_moves_to_the_row_of_another_is_told_what_it_asked_for(compiled: bool) -> None:
    model = tiny_model()
    asked = [
        request(name="ends", length=40, new=2),
        request(name="asks", length=9, top_logprobs=2, new=8),
        request(name="silent", length=3, new=9),
        request(name="more", length=5, top_logprobs=7, new=5),
    ]
    results = engine_of(model, compiled=compiled).generate(asked)
    for one, result in zip(asked, results, strict=True):
        _, sampled = distributions(model, one, result)
        if one.top_logprobs:
            assert_likeliest(result.top_logprobs, sampled, one.top_logprobs)
        else:
            assert result.top_logprobs is None


def test_a_prompt_of_one_token_has_no_logprobs() -> None:
    (result,) = engine_of(tiny_model()).generate([request(length=1, top_logprobs=4, scores=True)])
    assert result.prompt.logprobs.shape == (0,)
    assert result.prompt.top_logprobs.token_ids.shape == (0, 4)
    assert result.top_logprobs.token_ids.shape == (6, 4)


def test_pieces_have_their_part_and_the_first_one_the_prompt() -> None:
    engine, asked = engine_of(tiny_model()), request(top_logprobs=3, scores=True, new=5)
    engine.submit([asked])
    pieces: list[PartialTokens] = []
    results: list[GenerationResult] = []
    while engine.has_work:
        results += engine.step()
        pieces += engine.partials(2)
    assert [(piece.start, piece.end) for piece in pieces] == [(0, 2), (2, 4)]
    assert [piece.prompt is None for piece in pieces] == [False, True]
    np.testing.assert_array_equal(pieces[0].prompt.logprobs, results[0].prompt.logprobs)
    for piece in pieces:
        told = results[0].top_logprobs.token_ids[piece.start : piece.end]
        np.testing.assert_array_equal(piece.top_logprobs.token_ids, told)


def test_an_aborted_request_has_what_was_told_so_far() -> None:
    engine = engine_of(tiny_model())
    engine.submit([request(top_logprobs=3, scores=True, new=50)])
    for _ in range(4):
        assert not engine.step()
    engine.abort(["r"])
    (result,) = engine.step()
    assert result.finish_reason is FinishReason.ABORT
    assert result.top_logprobs.token_ids.shape == (len(result.token_ids), 3)
    assert len(result.prompt.logprobs) == 8


@pytest.mark.parametrize("same_version", [True, False])
@pytest.mark.parametrize("compiled", [True, False])
def test_a_request_that_came_with_tokens_is_told_of_those_behind_them(compiled: bool, same_version: bool) -> None:
    model, asked = tiny_model(), request(length=20, top_logprobs=3, scores=True, new=8)
    (whole,) = engine_of(model, compiled=compiled).generate([asked])
    version = Version(0, 0 if same_version else 7)
    so_far = PartialTokens("r", 0, whole.token_ids[:3], whole.logprobs[:3], (VersionSpan(0, version),))
    (rest,) = engine_of(model, compiled=compiled).generate([replace(asked, so_far=so_far)])
    np.testing.assert_array_equal(rest.token_ids, whole.token_ids)
    assert (rest.top_logprobs.token_ids[:3] == -1).all()
    np.testing.assert_array_equal(rest.top_logprobs.token_ids[3:], whole.top_logprobs.token_ids[3:])
    np.testing.assert_allclose(rest.top_logprobs.logprobs[3:], whole.top_logprobs.logprobs[3:], atol=1e-5)
    np.testing.assert_allclose(rest.prompt.logprobs, whole.prompt.logprobs, atol=1e-5)


def test_a_version_that_comes_meanwhile_tells_of_its_own_tokens() -> None:
    model = tiny_model()
    other = {name: tensor * 1.1 for name, tensor in model.state_dict().items()}
    engine = engine_of(model)
    engine.submit([request(top_logprobs=2, scores=True, new=8)])
    engine.step()
    engine.load_weights(other, Version(0, 1), UpdateMode.RECOMPUTE)
    results: list[GenerationResult] = []
    while engine.has_work:
        results += engine.step()
    (before,) = engine_of(model).generate([request(top_logprobs=2, scores=True, new=8)])
    np.testing.assert_array_equal(results[0].prompt.logprobs, before.prompt.logprobs)
    np.testing.assert_array_equal(results[0].top_logprobs.logprobs[:1], before.top_logprobs.logprobs[:1])
    assert not np.array_equal(results[0].top_logprobs.logprobs[1], before.top_logprobs.logprobs[1])


def test_what_a_conversation_has_left_serves_no_request_that_asks_for_its_prompt() -> None:
    model = tiny_model()
    first = replace(request(name="a", length=12), conversation="c")
    engine = engine_of(model)
    (said,) = engine.generate([first])
    longer = np.concatenate((first.prompt_ids, said.token_ids, [1, 2, 3])).astype(np.int32)
    second = replace(request(name="b", scores=True), prompt_ids=longer, conversation="c", opening=12)
    (result,) = engine.generate([second])
    assert engine.stats().kept_tokens == 0
    prompt, _ = distributions(model, second, result)
    np.testing.assert_allclose(result.prompt.logprobs, prompt[np.arange(len(prompt)), longer[1:]], atol=1e-4)


@pytest.mark.parametrize("top_logprobs", [-1, MOST_TOP_LOGPROBS + 1])
def test_more_than_the_most_is_refused(top_logprobs: int) -> None:
    (result,) = engine_of(tiny_model()).generate([request(top_logprobs=top_logprobs)])
    assert result.finish_reason is FinishReason.ERROR
    assert result.error == f"top_logprobs = {top_logprobs} is outside 0..{MOST_TOP_LOGPROBS}"


def test_a_vocabulary_smaller_than_what_is_asked_for_is_told_whole() -> None:
    torch.manual_seed(0)
    model = Qwen3ForCausalLM(Qwen3Config(**SIZES | {"vocab_size": 7})).eval()
    asked = replace(request(top_logprobs=20, scores=True), prompt_ids=np.array([1, 2, 3], np.int32))
    (result,) = engine_of(model).generate([asked])
    so_far = PartialTokens("r", 0, result.token_ids[:2], result.logprobs[:2], (VersionSpan(0, Version(0, 0)),))
    (rest,) = engine_of(model).generate([replace(asked, so_far=so_far)])
    for told in (result.top_logprobs, result.prompt.top_logprobs):
        assert told.token_ids.shape[1] == 20
        assert (told.token_ids[:, 7:] == -1).all()
        np.testing.assert_allclose(np.exp(told.logprobs).sum(1), 1, atol=1e-5)
    np.testing.assert_array_equal(rest.top_logprobs.token_ids[2:], result.top_logprobs.token_ids[2:])
