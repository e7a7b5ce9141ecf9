"""What requests change of the logits: each term by its formula, and the distribution that is left is the one told."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel, Qwen3Config, Qwen3ForCausalLM

from streamrl.engines.torch import TorchEngine
from streamrl.engines.torch.logits_processors.adjustments import MOST_NAMED, terms_of
from streamrl.types import (
    Adjustments,
    FinishReason,
    GenerationRequest,
    GenerationResult,
    PartialTokens,
    SamplingParams,
    Version,
    VersionSpan,
)

VOCAB = 40
STOP = 7
EVERYTHING = Adjustments(
    logit_bias=((3, 4.0), (5, -100.0)),
    repetition_penalty=1.3,
    frequency_penalty=0.7,
    presence_penalty=-0.4,
    min_tokens=6,
)
EACH = {
    "bias": Adjustments(logit_bias=((3, 4.0), (5, -100.0))),
    "repetition": Adjustments(repetition_penalty=1.8),
    "frequency": Adjustments(frequency_penalty=1.5),
    "presence": Adjustments(presence_penalty=2.0),
    "length": Adjustments(min_tokens=9),
    "everything": EVERYTHING,
}


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def tiny_model() -> PreTrainedModel:
    torch.manual_seed(0)
    sizes = {
        "vocab_size": VOCAB,
        "hidden_size": 48,
        "intermediate_size": 80,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "initializer_range": 0.3,
    }
    return Qwen3ForCausalLM(Qwen3Config(**sizes)).eval()


def engine_of(model: PreTrainedModel, **options) -> TorchEngine:
    return TorchEngine(model, Version(0, 0), slots=4, max_length=200, kv_bytes=2**26, **options)


def request(
    asked: Adjustments | None, *, name: str = "r", length: int = 9, new: int = 24, seed: int = 3, **sampling
) -> GenerationRequest:
    prompt = np.random.default_rng(length).integers(8, VOCAB, length, dtype=np.int32)
    params = SamplingParams(max_new_tokens=new, **sampling)
    return GenerationRequest(name, prompt, seed, params, (STOP,), adjustments=asked)


def changed(logits: torch.Tensor, asked: GenerationRequest, said: list[int]) -> torch.Tensor:
    """The logits [vocab] behind what was said, by the formulas, token by token."""
    terms, out = asked.adjustments, logits.clone()
    assert terms is not None
    for token, value in terms.logit_bias:
        out[token] += value
    for token in {*asked.prompt_ids.tolist(), *said}:
        out[token] = out[token] / terms.repetition_penalty if out[token] > 0 else out[token] * terms.repetition_penalty
    for token in set(said):
        out[token] -= terms.frequency_penalty * said.count(token) + terms.presence_penalty
    if len(said) < terms.min_tokens:
        out[STOP] = -torch.inf
    return out


def logprobs_of(model: PreTrainedModel, asked: GenerationRequest, result: GenerationResult) -> torch.Tensor:
    """[n, vocab]: by transformers, with what is changed."""
    ids = torch.from_numpy(np.concatenate((asked.prompt_ids, result.token_ids)).astype(np.int64))
    with torch.inference_mode():
        logits = model(ids[None]).logits[0, len(asked.prompt_ids) - 1 : -1]
    said = result.token_ids.tolist()
    rows = [changed(row, asked, said[:place]) for place, row in enumerate(logits)]
    return (torch.stack(rows) / (asked.sampling.temperature or 1.0)).log_softmax(-1)


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("temperature", [1.0, 0.6, 0.0])
@pytest.mark.parametrize("kind", EACH)
def test_log_probs_are_of_the_distribution_that_is_left(kind: str, temperature: float, compiled: bool) -> None:
    model = tiny_model()
    asked = replace(request(EACH[kind], temperature=temperature), top_logprobs=5)
    (result,) = engine_of(model, compiled=compiled).generate([asked])
    expected = logprobs_of(model, asked, result)
    ids = torch.from_numpy(result.token_ids.astype(np.int64))
    own = expected.gather(1, ids[:, None])[:, 0]
    assert np.abs(result.logprobs - own.numpy()).max() < 1e-4
    told = result.top_logprobs
    assert told is not None
    best = expected.topk(5).values.numpy()
    assert np.abs(np.where(np.isfinite(best), told.logprobs - best, 0)).max() < 1e-4
    if temperature == 0.0:
        np.testing.assert_array_equal(ids.numpy(), expected.argmax(-1).numpy())


@pytest.mark.parametrize("compiled", [True, False])
def test_others_in_the_batch_keep_their_bits(compiled: bool) -> None:
    model = tiny_model()
    free = [request(None, name=f"free-{i}", length=4 + i, new=12 + i, seed=i) for i in range(4)]
    bound = [request(one, name=f"bound-{name}", seed=i) for i, (name, one) in enumerate(EACH.items())]
    mixed = [*bound[:2], *free, *bound[2:]]
    together = {one.request_id: one for one in engine_of(model, compiled=compiled).generate(mixed)}
    for one in (*free, *bound):
        (alone,) = engine_of(model, compiled=compiled).generate([one])
        np.testing.assert_array_equal(together[one.request_id].token_ids, alone.token_ids)
        np.testing.assert_array_equal(together[one.request_id].logprobs, alone.logprobs)


def test_no_stop_token_comes_before_its_time() -> None:
    model = tiny_model()
    likely = ((STOP, 50.0),)
    (early,) = engine_of(model).generate([request(Adjustments(logit_bias=likely))])
    (late,) = engine_of(model).generate([request(Adjustments(logit_bias=likely, min_tokens=9))])
    assert (len(early.token_ids), len(late.token_ids)) == (1, 10)
    assert early.finish_reason is late.finish_reason is FinishReason.STOP


@pytest.mark.parametrize("version", [Version(0, 0), Version(0, 5)], ids=str)
def test_a_request_that_came_with_tokens_counts_them(version: Version) -> None:
    model, asked = tiny_model(), request(EVERYTHING, seed=11)
    (whole,) = engine_of(model).generate([asked])
    known = len(whole.token_ids) // 2
    so_far = PartialTokens("r", 0, whole.token_ids[:known], whole.logprobs[:known], (VersionSpan(0, version),))
    (rest,) = engine_of(model).generate([replace(asked, so_far=so_far)])
    np.testing.assert_array_equal(rest.token_ids, whole.token_ids)


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        (Adjustments(logit_bias=((VOCAB, 1.0),)), f"names the token {VOCAB}; the vocabulary has {VOCAB}"),
        (Adjustments(logit_bias=((-1, 1.0),)), "names the token -1"),
        (Adjustments(presence_penalty=float("nan")), "not finite"),
        (Adjustments(repetition_penalty=0.0), "not above 0"),
        (Adjustments(logit_bias=tuple((i % VOCAB, 1.0) for i in range(MOST_NAMED + 1))), f"at most {MOST_NAMED}"),
    ],
)
def test_what_cannot_be_changed_is_an_error_of_its_request_alone(asked: Adjustments, told: str) -> None:
    bad, good = engine_of(tiny_model()).generate([request(asked, name="bad"), request(EVERYTHING, name="good")])
    assert bad.finish_reason is FinishReason.ERROR
    assert told in bad.error
    assert good.error == ""


def test_each_token_has_one_term() -> None:
    asked = request(EVERYTHING)
    terms = terms_of(asked, np.array([3, 9, 9]), np.array([9, 9, 4]))
    assert terms.ids.tolist() == [3, 4, 5, STOP, 9]
    assert terms.bias.tolist() == [4.0, 0.0, -100.0, 0.0, 0.0]
    assert terms.repetition.tolist() == pytest.approx([1.3, 1.3, 1.0, 1.0, 1.3])
    assert terms.penalty[[0, 1, 2, 4]].tolist() == pytest.approx([0.0, 0.3, 0.0, 1.0])
