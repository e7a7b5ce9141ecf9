"""The engine on the runner of a GPU: the tokens of the CPU's own way, through updates, aborts and a full cache.

Kernels run by Triton's interpreter where there is no GPU, and graphs are direct calls there.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch
from support.engines.graph_engine import DEVICE, EXACT_ROWS, GraphEngine
from transformers import Qwen2Config, Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM

from streamrl.engines.torch import TorchEngine
from streamrl.engines.torch.cuda.pages import PAGE
from streamrl.errors import ConfigError
from streamrl.types import (
    Adjustments,
    FinishReason,
    GenerationRequest,
    GenerationResult,
    Grammar,
    GrammarKind,
    SamplingParams,
    UpdateMode,
    Version,
)

pytest.importorskip("triton", reason="make test-kernels")

# The interpreter computes by numpy, which warns of hashes that wrap around and of infinities.
pytestmark = pytest.mark.filterwarnings("ignore:.*encountered:RuntimeWarning")

VOCAB = 61
SIZES = {
    "vocab_size": VOCAB,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "initializer_range": 0.2,
}


@pytest.fixture(autouse=True)
def _short_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A graph is run when it is captured, and the interpreter is slow. So long prompts are read in chunks, too."""
    for module in ("prompts", "runner"):
        monkeypatch.setattr(f"streamrl.engines.torch.cuda.{module}.SIZES", (16, 48))


def tiny_model(*, seed: int = 0, bias: bool = False, **sizes: int) -> Qwen3ForCausalLM | Qwen2ForCausalLM:
    """Qwen3 with norms over its heads; with `bias` a Qwen2."""
    torch.manual_seed(seed)
    if bias:
        return Qwen2ForCausalLM(Qwen2Config(**SIZES | sizes)).eval()
    return Qwen3ForCausalLM(Qwen3Config(**{"head_dim": 16} | SIZES | sizes)).eval()


def engine_of(model: torch.nn.Module, kind: type[TorchEngine] = GraphEngine, **options) -> TorchEngine:
    settings = {"slots": 4, "max_length": 120, "kv_bytes": 2**24, "deterministic": False, "compiled": False}
    device = DEVICE if kind is GraphEngine else "cpu"
    return kind(model, Version(0, 0), device=device, **settings | options)


def requests_of(lengths: list[int], *, new: int = 8, **sampling: float) -> list[GenerationRequest]:
    random = np.random.default_rng(0)
    params = SamplingParams(max_new_tokens=new, **sampling)
    return [
        GenerationRequest(str(i), random.integers(0, VOCAB, length, dtype=np.int32), i, params, ())
        for i, length in enumerate(lengths)
    ]


def assert_same(results: list[GenerationResult], expected: list[GenerationResult]) -> None:
    for one, other in zip(results, expected, strict=True):
        assert one.token_ids.tolist() == other.token_ids.tolist()
        assert one.finish_reason is other.finish_reason
        np.testing.assert_allclose(one.logprobs, other.logprobs, atol=2e-5)


MODELS = {"qwen3": {}, "qwen2": {"bias": True}, "odd": {"num_attention_heads": 6, "head_dim": 24}}


@pytest.mark.parametrize("shape", MODELS)
def test_the_tokens_are_those_of_the_eager_runner(shape: str) -> None:
    model = tiny_model(**MODELS[shape])
    requests = requests_of([1, 31, 33, 64, 2])
    assert_same(engine_of(model).generate(requests), engine_of(model, TorchEngine).generate(requests))


@pytest.mark.parametrize("sampling", [{"temperature": 0.0}, {"top_p": 0.8, "top_k": 9, "min_p": 0.01}], ids=str)
def test_every_way_to_sample_gives_the_same_tokens(sampling: dict[str, float]) -> None:
    model, requests = tiny_model(), requests_of([3, 40, 8], **sampling)
    assert_same(engine_of(model).generate(requests), engine_of(model, TorchEngine).generate(requests))


def test_a_group_shares_the_pages_of_its_prompt() -> None:
    model, prompt = tiny_model(), np.arange(2 * PAGE + 6, dtype=np.int32) % VOCAB
    requests = [GenerationRequest(str(i), prompt, i, SamplingParams(max_new_tokens=8), ()) for i in range(4)]
    engine = engine_of(model)
    engine.submit(requests)
    results = engine.step()
    # 76 tokens take 3 pages; the first two are everyone's.
    page_bytes = PAGE * 2 * 2 * 2 * 16 * 4
    assert engine.stats().kv_bytes_used == (2 + 4) * page_bytes
    while engine.has_work:
        results += engine.step()
    assert engine.stats().kv_bytes_used == 0
    results.sort(key=lambda result: int(result.request_id))
    assert_same(results, engine_of(model, TorchEngine).generate(requests))


def test_a_prompt_longer_than_a_pass_is_read_in_chunks() -> None:
    model, requests = tiny_model(), requests_of([110, 96, 97, 3], new=3)
    assert_same(engine_of(model).generate(requests), engine_of(model, TorchEngine).generate(requests))


@pytest.mark.parametrize("mode", [UpdateMode.KEEP, UpdateMode.RECOMPUTE])
def test_tokens_have_the_log_prob_of_the_version_that_their_span_names(mode: UpdateMode) -> None:
    """Against the eager runner, which is held to transformers elsewhere, updated at the token that the span says."""
    models, requests = [tiny_model(seed=seed) for seed in range(2)], requests_of([9, 30, 12], new=10)
    engine = engine_of(models[0])
    engine.submit(requests)
    results = [result for _ in range(5) for result in engine.step()]
    engine.load_weights(models[1].state_dict(), Version(0, 1), mode)
    while engine.has_work:
        results += engine.step()
    (switch,) = {result.version_spans[1].start for result in results}
    assert switch in (5, 6), "a pass that is in flight is of the version that it was started under"
    eager = engine_of(models[0], TorchEngine)
    eager.submit(requests)
    expected = [result for _ in range(switch) for result in eager.step()]
    eager.load_weights(models[1].state_dict(), Version(0, 1), mode)
    while eager.has_work:
        expected += eager.step()
    results, expected = (sorted(each, key=lambda result: result.request_id) for each in (results, expected))
    assert_same(results, expected)
    assert [result.version_spans for result in results] == [result.version_spans for result in expected]


def test_a_drained_update_waits_for_what_runs() -> None:
    models, requests = [tiny_model(seed=seed) for seed in range(2)], requests_of([9, 30])
    engine = engine_of(models[0])
    engine.submit(requests)
    results = engine.step()
    engine.load_weights(models[1].state_dict(), Version(0, 1), UpdateMode.DRAIN)
    while engine.has_work:
        results += engine.step()
    assert engine.version == Version(0, 1)
    assert {span.version for result in results for span in result.version_spans} == {Version(0, 0)}
    (after,) = engine.generate(requests[:1])
    assert_same([after], engine_of(models[1], TorchEngine).generate(requests[:1]))


def test_an_aborted_row_gives_its_tokens_and_leaves_the_others_alone() -> None:
    model, requests = tiny_model(), requests_of([9, 30, 12])
    engine = engine_of(model)
    engine.submit(requests)
    results = [result for _ in range(4) for result in engine.step()]
    engine.abort(["1"])
    while engine.has_work:
        results += engine.step()
    results.sort(key=lambda result: result.request_id)
    expected = engine_of(model, TorchEngine).generate(requests)
    assert results[1].finish_reason is FinishReason.ABORT
    cut = len(results[1].token_ids)
    assert 4 <= cut < 8
    assert results[1].token_ids.tolist() == expected[1].token_ids[:cut].tolist()
    assert_same([results[0], results[2]], [expected[0], expected[2]])


def test_a_partial_goes_on_behind_its_tokens_in_another_engine() -> None:
    model, requests = tiny_model(), requests_of([9, 30, 12])
    engine = engine_of(model)
    engine.submit(requests)
    for _ in range(5):
        engine.step()
    partials = {partial.request_id: partial for partial in engine.partials(1)}
    engine.close()
    goes_on = [
        GenerationRequest(r.request_id, r.prompt_ids, r.seed, r.sampling, (), partials[r.request_id]) for r in requests
    ]
    assert_same(engine_of(model).generate(goes_on), engine_of(model, TorchEngine).generate(requests))


def test_a_cache_that_holds_few_requests_runs_them_one_after_the_other() -> None:
    model, requests = tiny_model(), requests_of([50, 60, 70, 90])
    page_bytes = PAGE * 2 * 2 * 2 * 16 * 4
    engine = engine_of(model, kv_bytes=8 * page_bytes, slots=9)
    engine.submit(requests)
    results, most = [], 0
    while engine.has_work:
        results += engine.step()
        most = max(most, engine.stats().running)
        assert engine.stats().kv_bytes_used <= engine.stats().kv_bytes_total
    assert most == 2, "seven pages hold two requests of two to four pages"
    results.sort(key=lambda result: result.request_id)
    assert_same(results, engine_of(model, TorchEngine).generate(requests))


def test_kv_bytes_that_hold_no_request_are_refused_with_the_number_that_does() -> None:
    with pytest.raises(ConfigError, match=r"set rollout\.kv_bytes to at least (\d+)") as caught:
        engine_of(tiny_model(), kv_bytes=1000)
    least = int(str(caught.value).split("at least ")[1].split(",")[0])
    engine_of(tiny_model(), kv_bytes=least)
    with pytest.raises(ConfigError, match="at least"):
        engine_of(tiny_model(), kv_bytes=least - 1)


@EXACT_ROWS
def test_deterministic_results_do_not_depend_on_the_batch() -> None:
    model, requests = tiny_model(), requests_of([9, 30, 2])
    together = engine_of(model, deterministic=True).generate(requests)
    alone = engine_of(model, deterministic=True)
    for request, expected in zip(requests, together, strict=True):
        (result,) = alone.generate([request])
        assert result.token_ids.tolist() == expected.token_ids.tolist()
        assert result.logprobs.tobytes() == expected.logprobs.tobytes()


# ---- turns of a conversation


def turn_of(conversation: str, prompt: list[int], opening: int, *, new: int = 6) -> GenerationRequest:
    params = SamplingParams(max_new_tokens=new)
    ids, seed = np.array(prompt, np.int32), 7 * len(prompt)
    return GenerationRequest(f"{conversation}/{len(prompt)}", ids, seed, params, (), None, conversation, opening)


def test_a_turn_reads_what_its_conversation_has_not_left_in_the_pages() -> None:
    model = tiny_model()
    engine = engine_of(model, deterministic=False)
    prompt, opening, kept = [(3 * number) % VOCAB for number in range(PAGE + 5)], 0, 0
    for told in (1, 40, 2, PAGE):
        request = turn_of("a", prompt, opening)
        (result,) = engine.generate([request])
        assert_same([result], engine_of(model, TorchEngine).generate([request]))
        assert engine.stats().kept_tokens == kept
        kept += len(prompt) + len(result.token_ids) - 1
        opening = opening or len(prompt)
        prompt += [*result.token_ids.tolist(), *(number % VOCAB for number in range(told))]
    assert engine.stats().kv_bytes_used > 0
    engine.load_weights(model.state_dict(), Version(0, 1), UpdateMode.KEEP)
    assert engine.stats().kv_bytes_used == 0


@EXACT_ROWS
def test_exact_results_never_use_what_was_kept() -> None:
    model = tiny_model()
    engine = engine_of(model, deterministic=True)
    (first,) = engine.generate([turn_of("a", [1, 2, 3], 0)])
    request = turn_of("a", [1, 2, 3, *first.token_ids.tolist(), 4], 3)
    (second,) = engine.generate([request])
    assert engine.stats().kept_tokens == 0
    (alone,) = engine_of(model, deterministic=True).generate([request])
    assert second.logprobs.tobytes() == alone.logprobs.tobytes()


def test_what_is_kept_gives_way_to_requests_that_have_no_pages() -> None:
    model = tiny_model()
    page_bytes = PAGE * 2 * 2 * 2 * 16 * 4
    engine = engine_of(model, deterministic=False, slots=4, kv_bytes=6 * page_bytes)
    for name in "abcd":
        engine.generate([turn_of(name, list(range(PAGE)), 0)])
    longer = requests_of([3 * PAGE, 3 * PAGE])
    assert_same(engine.generate(longer), engine_of(model, TorchEngine).generate(longer))
    engine.load_weights(model.state_dict(), Version(0, 1), UpdateMode.KEEP)
    assert engine.stats().kv_bytes_used == 0


def test_many_conversations_in_few_slots_and_pages_are_answered_as_by_themselves() -> None:
    seed = int(np.random.SeedSequence().entropy) % 2**32
    print("seed", seed)
    chance, model = np.random.default_rng(seed), tiny_model()
    page_bytes = PAGE * 2 * 2 * 2 * 16 * 4
    engine = engine_of(model, deterministic=False, slots=4, kv_bytes=13 * page_bytes)
    eager = engine_of(model, TorchEngine)
    talks: dict[str, tuple[list[int], int]] = {}
    asked: dict[str, GenerationRequest] = {}
    finished = 0
    # By chance nothing may have been kept in the first 24.
    while finished < 24 or (finished < 240 and not engine.stats().kept_tokens):
        name = str(chance.integers(6))
        if not any(request.conversation == name for request in asked.values()):
            prompt, opening = talks.get(name, ([], 0))
            prompt = [*prompt, *chance.integers(0, VOCAB, chance.integers(1, 20)).tolist()]
            if len(prompt) > 80:
                prompt, opening = prompt[:7], 0
            request = turn_of(name, prompt, opening, new=int(chance.integers(1, 9)))
            asked[request.request_id] = request
            engine.submit([request])
        for result in engine.step():
            request = asked.pop(result.request_id)
            assert_same([result], eager.generate([replace(request, conversation="")]))
            said = [*request.prompt_ids.tolist(), *result.token_ids.tolist()]
            talks[request.conversation] = said, request.opening or len(request.prompt_ids)
            finished += 1
    assert engine.stats().kept_tokens > 0


@pytest.mark.parametrize("deterministic", [True, False])
def test_what_is_told_beside_the_tokens_is_what_the_eager_runner_tells(deterministic: bool) -> None:
    model = tiny_model()
    asked = [
        replace(one, top_logprobs=(i % 3) * 4, prompt_logprobs=i % 2 == 0)
        for i, one in enumerate(requests_of([70, 1, 33, 20, 9, 49, 5], temperature=0.8, top_k=9))
    ]
    asked += [
        replace(asked[0], request_id="shared", seed=9),
        replace(asked[0], request_id="silent", prompt_logprobs=False),
    ]
    engine = engine_of(model, deterministic=deterministic)
    results, expected = engine.generate(asked), engine_of(model, TorchEngine).generate(asked)
    assert_same(results, expected)
    for one, other in zip(results, expected, strict=True):
        assert (one.top_logprobs is None) == (other.top_logprobs is None)
        assert (one.prompt is None) == (other.prompt is None)
        if one.top_logprobs is not None:
            np.testing.assert_array_equal(one.top_logprobs.token_ids, other.top_logprobs.token_ids)
            np.testing.assert_allclose(one.top_logprobs.logprobs, other.top_logprobs.logprobs, atol=2e-5)
        if one.prompt is not None:
            np.testing.assert_allclose(one.prompt.logprobs, other.prompt.logprobs, atol=2e-5)
        if one.prompt is not None and one.prompt.top_logprobs is not None:
            np.testing.assert_array_equal(one.prompt.top_logprobs.token_ids, other.prompt.top_logprobs.token_ids)


EVERYTHING = Adjustments(
    logit_bias=((3, 4.0), (5, -100.0)),
    repetition_penalty=1.3,
    frequency_penalty=0.7,
    presence_penalty=-0.4,
    min_tokens=6,
)


class Stripes:
    """Allows every third token or its neighbour, by turns: without a tokenizer."""

    def __init__(self, turn: int = 0) -> None:
        self._turn = turn

    def begin(self, grammar: Grammar) -> "Stripes":
        return Stripes(int(grammar.text))

    def allowed(self) -> np.ndarray:
        bits = np.zeros(64, np.uint8)
        bits[self._turn % 3 : VOCAB : 3] = 1
        return np.packbits(bits, bitorder="little").view(np.uint32)

    def take(self, token_id: int) -> None:
        assert token_id % 3 == self._turn % 3, "a token that is not allowed"
        self._turn += 1


@pytest.mark.parametrize("changes", [None, Adjustments(frequency_penalty=0.7), EVERYTHING], ids=["none", "some", "all"])
def test_what_a_grammar_forbids_and_a_request_changes_is_drawn_and_told_as_by_the_eager_runner(
    changes: Adjustments | None,
) -> None:
    model = tiny_model()
    asked = requests_of([5, 33, 9, 20, 7], temperature=0.8, top_k=9) + requests_of([6, 12], temperature=0.0)
    asked = [
        replace(
            one,
            request_id=f"{place}",
            top_logprobs=place % 3,
            grammar=Grammar(GrammarKind.REGEX, str(place)) if place % 2 else None,
            adjustments=changes if place % 3 else None,
            stop_token_ids=(place,),
        )
        for place, one in enumerate(asked)
    ]
    options = {"grammars": Stripes(), "slots": 3}
    results = engine_of(model, **options).generate(asked)
    expected = engine_of(model, TorchEngine, **options).generate(asked)
    assert_same(results, expected)
    for place, (one, other) in enumerate(zip(results, expected, strict=True)):
        if place % 2:
            assert ((one.token_ids - np.arange(place, place + len(one.token_ids))) % 3 == 0).all()
        if one.top_logprobs is not None:
            np.testing.assert_array_equal(one.top_logprobs.token_ids, other.top_logprobs.token_ids)
            np.testing.assert_allclose(one.top_logprobs.logprobs, other.top_logprobs.logprobs, atol=2e-5)
