"""Completions that follow a grammar: the distribution that is left is the one that is sampled and told."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from support.engines.bytewise import BYTEWISE
from transformers import PreTrainedModel, Qwen3Config, Qwen3ForCausalLM

from streamrl.engines.torch import TorchEngine
from streamrl.models.grammars import Grammars
from streamrl.types import (
    FinishReason,
    GenerationRequest,
    GenerationResult,
    Grammar,
    GrammarKind,
    PartialTokens,
    SamplingParams,
    Version,
    VersionSpan,
)

VOCAB = 260
EOS = BYTEWISE.eos_token_ids[0]
DIGITS = Grammar(GrammarKind.REGEX, "[0-9]{3}(=[ab]{1,4})?")
TIGHT = '"x-guidance": {"whitespace_flexible": false}'
"""Weights that were drawn by chance like blanks as much as anything."""
SCHEMA = Grammar(
    GrammarKind.JSON_SCHEMA, f'{{"type": "array", "items": {{"enum": ["a", "bc"]}}, "maxItems": 3, {TIGHT}}}'
)


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
        "initializer_range": 0.2,
    }
    return Qwen3ForCausalLM(Qwen3Config(**sizes)).eval()


def engine_of(model: PreTrainedModel, *, slots: int = 4, **options) -> TorchEngine:
    options = {"grammars": Grammars(lambda: BYTEWISE, VOCAB), **options}
    return TorchEngine(model, Version(0, 0), slots=slots, max_length=200, kv_bytes=2**26, **options)


def request(
    *, name: str = "r", length: int = 7, grammar: Grammar | None = None, new: int = 40, seed: int = 3, **sampling
) -> GenerationRequest:
    prompt = np.random.default_rng(length).integers(1, 256, length, dtype=np.int32)
    params = SamplingParams(max_new_tokens=new, **sampling)
    return GenerationRequest(name, prompt, seed, params, (EOS,), grammar=grammar)


def allowed(grammar: Grammar, token_ids: np.ndarray) -> np.ndarray:
    """bool [n, vocab]: what could come in each place."""
    constraint, rows = Grammars(lambda: BYTEWISE, VOCAB).begin(grammar), []
    for token_id in token_ids.tolist():
        rows.append(np.unpackbits(constraint.allowed().view(np.uint8), bitorder="little", count=VOCAB) == 1)
        constraint.take(token_id)
    return np.stack(rows)


def masked_logprobs(model: PreTrainedModel, asked: GenerationRequest, result: GenerationResult) -> torch.Tensor:
    """[n, vocab], of the distribution that a grammar leaves, by transformers."""
    ids = torch.from_numpy(np.concatenate((asked.prompt_ids, result.token_ids)).astype(np.int64))
    with torch.no_grad():
        logits = model(ids[None]).logits[0, len(asked.prompt_ids) - 1 : -1].float()
    logits /= asked.sampling.temperature or 1.0
    return logits.masked_fill(~torch.from_numpy(allowed(asked.grammar, result.token_ids)), -torch.inf).log_softmax(-1)


def text_of(result: GenerationResult) -> str:
    assert result.token_ids[-1] == EOS
    return BYTEWISE.decode(result.token_ids[:-1])


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("temperature", [1.0, 0.6, 0.0])
def test_log_probs_are_of_the_distribution_that_the_grammar_leaves(temperature: float, compiled: bool) -> None:
    model = tiny_model()
    grammars = [DIGITS, SCHEMA, DIGITS, SCHEMA, DIGITS, SCHEMA]
    asked = [
        replace(request(name=str(i), length=2 + i, grammar=one, seed=i, temperature=temperature), top_logprobs=3)
        for i, one in enumerate(grammars)
    ]
    for one, result in zip(asked, engine_of(model, compiled=compiled).generate(asked), strict=True):
        assert result.finish_reason is FinishReason.STOP, result.error
        expected = masked_logprobs(model, one, result)
        own = expected.gather(1, torch.from_numpy(result.token_ids.astype(np.int64))[:, None])[:, 0]
        np.testing.assert_allclose(result.logprobs, own.numpy(), atol=1e-4)
        np.testing.assert_allclose(result.top_logprobs.logprobs, expected.topk(3).values.numpy(), atol=1e-4)
        if temperature == 0:
            assert expected.argmax(-1).tolist() == result.token_ids.tolist()


def test_every_text_is_of_its_grammar_and_not_each_is_the_same() -> None:
    import json
    import re

    asked = [request(name=str(i), grammar=SCHEMA if i % 2 else DIGITS, seed=i) for i in range(24)]
    results = engine_of(tiny_model(), slots=5).generate(asked)
    texts = [text_of(result) for result in results]
    for one, text in zip(asked, texts, strict=True):
        if one.grammar is DIGITS:
            assert re.fullmatch(DIGITS.text, text)
        else:
            assert set(json.loads(text)) <= {"a", "bc"}
    assert len(set(texts)) > 6


@pytest.mark.parametrize("compiled", [True, False])
def test_others_in_the_batch_are_sampled_as_if_there_were_no_grammar(compiled: bool) -> None:
    model = tiny_model()
    free = [request(name=f"free-{i}", length=4 + i, new=12 + i, seed=i) for i in range(4)]
    bound = [request(name=f"bound-{i}", length=9, grammar=DIGITS, seed=i) for i in range(4)]
    mixed = [one for pair in zip(free, bound, strict=True) for one in pair]
    together = engine_of(model, compiled=compiled).generate(mixed)
    alone = engine_of(model, compiled=compiled, grammars=None).generate(free)
    for one, other in zip(together[::2], alone, strict=True):
        np.testing.assert_array_equal(one.token_ids, other.token_ids)
        np.testing.assert_array_equal(one.logprobs, other.logprobs)
    for one, result in zip(bound, together[1::2], strict=True):
        (other,) = engine_of(model, compiled=compiled).generate([one])
        np.testing.assert_array_equal(result.token_ids, other.token_ids)
        np.testing.assert_array_equal(result.logprobs, other.logprobs)


@pytest.mark.parametrize("version", [Version(0, 0), Version(0, 5)], ids=str)
def test_a_request_that_came_with_tokens_goes_on_in_its_grammar(version: Version) -> None:
    model, asked = tiny_model(), request(grammar=SCHEMA, seed=11)
    (whole,) = engine_of(model).generate([asked])
    known = len(whole.token_ids) // 2
    so_far = PartialTokens("r", 0, whole.token_ids[:known], whole.logprobs[:known], (VersionSpan(0, version),))
    (rest,) = engine_of(model).generate([replace(asked, so_far=so_far)])
    np.testing.assert_array_equal(rest.token_ids, whole.token_ids)


def test_a_text_that_is_cut_off_ends_by_its_length() -> None:
    (result,) = engine_of(tiny_model()).generate([request(grammar=DIGITS, new=2)])
    assert (result.finish_reason, len(result.token_ids)) == (FinishReason.LENGTH, 2)


@pytest.mark.parametrize(
    ("grammar", "told"),
    [
        (Grammar(GrammarKind.REGEX, "(1"), "grammar: "),
        (Grammar(GrammarKind.LARK, "start: nothing"), 'unknown name: "nothing"'),
    ],
)
def test_what_is_no_grammar_is_an_error_of_its_request_alone(grammar: Grammar, told: str) -> None:
    engine = engine_of(tiny_model())
    bad, good = engine.generate([request(name="bad", grammar=grammar), request(name="good", grammar=DIGITS)])
    assert bad.finish_reason is FinishReason.ERROR
    assert told in bad.error
    assert good.finish_reason is FinishReason.STOP
    assert not engine._constrained


def test_tokens_that_are_not_of_the_grammar_are_refused_with_their_request() -> None:
    span = (VersionSpan(0, Version(0, 0)),)
    so_far = PartialTokens("r", 0, BYTEWISE.encode("1x"), np.zeros(2, np.float32), span)
    (result,) = engine_of(tiny_model()).generate([replace(request(grammar=DIGITS), so_far=so_far)])
    assert result.finish_reason is FinishReason.ERROR
    assert result.error.startswith("grammar: ")


def test_an_engine_without_grammars_refuses_them() -> None:
    (result,) = engine_of(tiny_model(), grammars=None).generate([request(grammar=DIGITS)])
    assert (result.finish_reason, result.error) == (FinishReason.ERROR, "this engine follows no grammar")


def test_requests_that_are_aborted_leave_nothing_behind() -> None:
    engine = engine_of(tiny_model(), slots=1)
    engine.submit([request(name="runs", grammar=DIGITS), request(name="waits", grammar=DIGITS)])
    engine.step()
    engine.abort(["runs", "waits"])
    assert {result.finish_reason for result in engine.step()} == {FinishReason.ABORT}
    assert not engine._constrained


class Failing:
    """Allows everything, and fails with its second token or behind it."""

    def __init__(self, *, takes: bool) -> None:
        self.taken, self._takes = 0, takes

    def allowed(self) -> np.ndarray:
        if self.taken == 2:
            raise ValueError("it has grown too large")
        return np.full(9, 2**32 - 1, np.uint32)

    def take(self, token_id: int) -> None:
        self.taken += 1
        if self.taken == 2 and not self._takes:
            raise ValueError("it has grown too large")

    def begin(self, grammar: Grammar) -> "Failing":
        return self


@pytest.mark.parametrize("takes", [True, False])
def test_a_grammar_that_fails_on_the_way_ends_its_request_and_says_why(takes: bool) -> None:
    engine = engine_of(tiny_model(), grammars=Failing(takes=takes))
    bad, good = engine.generate([request(name="bad", grammar=DIGITS), request(name="good", length=4, new=9)])
    assert (bad.finish_reason, bad.error) == (FinishReason.ERROR, "grammar: it has grown too large")
    assert len(bad.token_ids) == 2
    assert good.error == ""
