"""Requests that come with tokens, on both engines: they go on as if never interrupted; no token loses its version."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from support.kernels import NEEDS_KERNELS
from transformers import PreTrainedModel, Qwen3Config, Qwen3ForCausalLM

from streamrl.config.schema.rollout import ScriptedConfig
from streamrl.engines.base import Engine
from streamrl.engines.script import ScriptedAnswers
from streamrl.engines.scripted import ScriptedEngine
from streamrl.engines.torch import TorchEngine
from streamrl.scheduling.partial_rollouts import PartialChains, join
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

VOCAB, STOP = 31, 1
OLD, NEW, NEWER = Version(0, 0), Version(0, 1), Version(0, 2)
Make = Callable[..., Engine]


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def tiny_model(*, seed: int = 0) -> PreTrainedModel:
    torch.manual_seed(seed)
    sizes = {"vocab_size": VOCAB, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8}
    return Qwen3ForCausalLM(Qwen3Config(**sizes, **heads, initializer_range=0.3)).eval()


def torch_engine(*, slots: int = 6, version: Version = OLD, seed: int = 0, **options: bool) -> TorchEngine:
    model = tiny_model(seed=seed)
    return TorchEngine(model, version, slots=slots, max_length=160, kv_bytes=2**26, **options)


def scripted_engine(*, slots: int = 6, version: Version = OLD, **_: object) -> ScriptedEngine:
    script = ScriptedConfig(latency_steps=30, heavy_tail=0.7)
    answers = ScriptedAnswers(lambda prompt: [2] * (20 + int(prompt[0])), start=0.2, end=0.9, steps=2)
    return ScriptedEngine(
        script, slots=slots, vocab_size=VOCAB, eos_token_id=STOP, version=version, answers=answers, context_length=160
    )


@pytest.fixture(params=[torch_engine, scripted_engine], ids=["torch", "scripted"])
def make(request: pytest.FixtureRequest) -> Make:
    return request.param


def weights_of(seed: int) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().clone() for name, tensor in tiny_model(seed=seed).state_dict().items()}


def requests_of(*, number: int = 6, new: int = 40, stops: tuple[int, ...] = (STOP,)) -> list[GenerationRequest]:
    """Some with equal prompts, as the samples of a group have."""
    random = np.random.default_rng(number)
    prompts = [random.integers(2, VOCAB, 1 + 5 * (i // 2), dtype=np.int32) for i in range(number)]
    sampling = SamplingParams(max_new_tokens=new)
    return [GenerationRequest(f"r{i}", ids, 7 + i, sampling, stops) for i, ids in enumerate(prompts)]


def finish(engine: Engine, *, steps: int = 10_000) -> dict[str, GenerationResult]:
    results: dict[str, GenerationResult] = {}
    while engine.has_work and steps:
        results |= {result.request_id: result for result in engine.step()}
        steps -= 1
    return results


def played(engine: Engine, requests: Sequence[GenerationRequest]) -> dict[str, GenerationResult]:
    engine.submit(requests)
    return finish(engine)


def behind(requests: Sequence[GenerationRequest], pieces: Sequence[PartialTokens]) -> list[GenerationRequest]:
    """The requests with what `pieces` has of them."""
    chains = PartialChains()
    for piece in pieces:
        chains.add(0, piece)
    return [replace(one, so_far=chains.newest(one.request_id, 1)) for one in requests]


def so_far(ids: Sequence[int], *, request_id: str = "r0", version: Version = OLD) -> PartialTokens:
    logprobs = np.linspace(-2.0, -1.0, len(ids), dtype=np.float32)
    return PartialTokens(request_id, 0, np.array(ids, np.int32), logprobs, (VersionSpan(0, version),))


def assert_equal(ours: dict[str, GenerationResult], expected: dict[str, GenerationResult]) -> None:
    assert ours.keys() == expected.keys()
    for name, result in ours.items():
        other = expected[name]
        assert result.token_ids.tolist() == other.token_ids.tolist(), name
        assert result.logprobs.tobytes() == other.logprobs.tobytes(), name
        assert result.version_spans == other.version_spans, name
        assert (result.finish_reason, result.error) == (other.finish_reason, other.error), name


@pytest.mark.parametrize("steps", [1, 2, 11, 25, 39])
def test_invariant_4_a_request_interrupted_anywhere_ends_as_if_it_had_not_been(make: Make, steps: int) -> None:
    requests = requests_of()
    whole = played(make(), requests)
    first = make()
    first.submit(requests)
    ended = finish(first, steps=steps)
    rest = [one for one in behind(requests, first.partials(1)) if one.request_id not in ended]
    assert all(one.so_far is not None and one.so_far.end == steps for one in rest)
    # In other company than before: fewer at once.
    assert_equal(ended | played(make(slots=4), rest), whole)


def test_invariant_4_it_may_be_interrupted_again_and_again_also_while_it_reads(make: Make) -> None:
    requests = requests_of(stops=())
    whole = played(make(), requests)
    waiting, ended = requests, {}
    for steps in (9, 4, 30, 3, 2):
        engine = make()
        engine.submit(waiting)
        ended |= finish(engine, steps=steps)
        known = {one.request_id: one.so_far for one in waiting}
        for piece in engine.partials(1):
            before = known[piece.request_id]
            known[piece.request_id] = piece if before is None else join(before, piece)
        waiting = [replace(one, so_far=known[one.request_id]) for one in requests if one.request_id not in ended]
    assert_equal(ended | played(make(), waiting), whole)


def test_what_came_with_a_request_is_not_sampled_again_and_not_counted(make: Make) -> None:
    requests = requests_of(new=30, stops=())
    first, second = make(), make()
    first.submit(requests)
    ended = finish(first, steps=12)
    rest = [one for one in behind(requests, first.partials(1)) if one.request_id not in ended]
    results = played(second, rest)
    total = sum(len(result.token_ids) for result in results.values())
    generated = second.stats().generated_tokens
    assert generated == total - 12 * len(rest)
    assert type(generated) is int, "it travels as JSON"


@pytest.mark.parametrize("steps", [1, 20])
def test_under_another_version_old_tokens_keep_theirs_and_new_ones_get_the_new(make: Make, steps: int) -> None:
    requests = requests_of(stops=())
    first = make()
    first.submit(requests)
    ended = finish(first, steps=steps)
    waiting = [one for one in behind(requests, first.partials(1)) if one.request_id not in ended]
    results = played(make(version=NEW, seed=1), waiting)
    for one in waiting:
        result = results[one.request_id]
        assert one.so_far is not None
        assert result.token_ids[:steps].tolist() == one.so_far.token_ids.tolist()
        assert result.logprobs[:steps].tobytes() == one.so_far.logprobs.tobytes()
        assert result.version_spans == (VersionSpan(0, OLD), VersionSpan(steps, NEW))
        assert len(result.token_ids) > steps


@pytest.mark.parametrize("deterministic", [True, False])
def test_the_new_version_reads_what_the_old_one_sampled(deterministic: bool) -> None:
    """Greedy, so that it goes on as a request does whose prompt ends with these tokens."""
    sampling = SamplingParams(max_new_tokens=30, temperature=0.0)
    requests = [replace(one, sampling=sampling) for one in requests_of(stops=())]
    first = torch_engine(deterministic=deterministic)
    first.submit(requests)
    finish(first, steps=10)
    waiting = behind(requests, first.partials(1))
    new = replace(requests[0], sampling=SamplingParams(max_new_tokens=20, temperature=0.0))
    longer = [
        replace(new, request_id=one.request_id, prompt_ids=np.concatenate((one.prompt_ids, one.so_far.token_ids)))
        for one in waiting
    ]
    ours = played(torch_engine(version=NEW, seed=1, deterministic=deterministic), waiting)
    theirs = played(torch_engine(version=NEW, seed=1, deterministic=deterministic), longer)
    for name, result in ours.items():
        assert result.token_ids[10:].tolist() == theirs[name].token_ids.tolist()
        assert result.logprobs[10:].tobytes() == theirs[name].logprobs.tobytes()


def test_what_it_came_with_is_read_and_not_what_would_have_been_drawn_in_its_place() -> None:
    """Tokens as another machine might have drawn them, read one by one."""
    given = so_far([9, 3, 14, 30, 2, 7])
    request = replace(requests_of(number=1, stops=())[0], sampling=SamplingParams(max_new_tokens=26, temperature=0.0))
    prompt = np.concatenate((request.prompt_ids, given.token_ids))
    longer = replace(request, prompt_ids=prompt, sampling=SamplingParams(max_new_tokens=20, temperature=0.0))
    ours = played(torch_engine(), [replace(request, so_far=given)])["r0"]
    theirs = played(torch_engine(), [longer])["r0"]
    assert ours.token_ids.tolist() == [*given.token_ids.tolist(), *theirs.token_ids.tolist()]
    np.testing.assert_allclose(ours.logprobs[6:], theirs.logprobs, atol=1e-5)
    assert ours.logprobs[:6].tobytes() == given.logprobs.tobytes()


def test_the_scripted_engine_goes_on_with_the_script_of_the_version_that_began_it() -> None:
    requests = requests_of(number=40)
    whole = played(scripted_engine(slots=40), requests)
    first = scripted_engine(slots=40)
    first.submit(requests)
    ended = finish(first, steps=3)
    rest = [one for one in behind(requests, first.partials(1)) if one.request_id not in ended]
    for name, result in played(scripted_engine(slots=40, version=NEWER), rest).items():
        assert result.token_ids.tolist() == whole[name].token_ids.tolist()


def test_without_the_deterministic_mode_it_reads_them_at_once_and_differs_by_rounding_only() -> None:
    requests = requests_of(stops=())
    whole = played(torch_engine(deterministic=False), requests)
    first, second = torch_engine(deterministic=False), torch_engine(deterministic=False)
    first.submit(requests)
    finish(first, steps=20)
    second.submit(behind(requests, first.partials(1)))
    results = finish(second, steps=20)
    assert results.keys() == whole.keys(), "it took more steps than there were tokens to sample"
    for name, result in results.items():
        np.testing.assert_allclose(result.logprobs, whole[name].logprobs, atol=1e-5)
        assert result.version_spans == (VersionSpan(0, OLD),)


@pytest.mark.parametrize(
    ("compiled", "spans"),
    [
        (False, (VersionSpan(0, OLD), VersionSpan(20, NEWER))),
        pytest.param(True, (VersionSpan(0, OLD), VersionSpan(25, NEW), VersionSpan(30, NEWER)), marks=NEEDS_KERNELS),
    ],
    ids=["a pass for each", "all in one pass"],
)
def test_a_version_that_comes_while_known_tokens_are_read_begins_behind_them(
    compiled: bool, spans: tuple[VersionSpan, ...]
) -> None:
    requests = requests_of(stops=())
    first, second = torch_engine(compiled=compiled), torch_engine(compiled=compiled)
    first.submit(requests)
    finish(first, steps=20)
    waiting = behind(requests, first.partials(1))
    second.submit(waiting)
    finish(second, steps=5)
    second.load_weights(weights_of(1), NEW, UpdateMode.KEEP)
    finish(second, steps=5)
    second.load_weights(weights_of(2), NEWER, UpdateMode.RECOMPUTE)
    for one in waiting:
        assert one.so_far is not None
    results = finish(second)
    for one in waiting:
        result = results[one.request_id]
        assert result.version_spans == spans
        assert result.logprobs[:20].tobytes() == one.so_far.logprobs.tobytes()


def test_versions_before_and_behind_an_interruption_are_each_at_their_token(make: Make) -> None:
    requests = requests_of(stops=(), number=4)
    first = make()
    first.submit(requests)
    finish(first, steps=3)
    first.load_weights(weights_of(1), NEW, UpdateMode.KEEP)
    ended = finish(first, steps=4)
    second = make(version=NEW, seed=1)
    second.submit(behind([one for one in requests if one.request_id not in ended], first.partials(1)))
    finish(second, steps=2)
    second.load_weights(weights_of(2), NEWER, UpdateMode.KEEP)
    spans = {result.version_spans for result in finish(second).values() if len(result.token_ids) > 9}
    assert spans == {(VersionSpan(0, OLD), VersionSpan(3, NEW), VersionSpan(9, NEWER))}


def test_the_limit_counts_the_tokens_that_came_with_a_request(make: Make) -> None:
    request = requests_of(number=1, new=10, stops=())[0]
    engine = make()
    results = played(engine, [replace(request, so_far=so_far([5] * 9))])
    assert len(results["r0"].token_ids) == 10
    assert engine.stats().generated_tokens == 1


@pytest.mark.parametrize(("ids", "reason"), [([5] * 10, FinishReason.LENGTH), ([5, 6, STOP], FinishReason.STOP)])
def test_one_that_had_ended_comes_back_at_once_as_it_was(make: Make, ids: list[int], reason: FinishReason) -> None:
    engine = make()
    given = so_far(ids)
    engine.submit([replace(requests_of(number=1, new=10)[0], so_far=given)])
    (result,) = engine.step()
    assert (result.token_ids.tolist(), result.finish_reason) == (ids, reason)
    assert result.logprobs.tobytes() == given.logprobs.tobytes()
    assert result.version_spans == given.version_spans
    assert (engine.stats().generated_tokens, engine.has_work) == (0, False)


@pytest.mark.parametrize(
    ("given", "error"),
    [
        (replace(so_far([5, 6]), start=1), "from token 1"),
        (replace(so_far([5, 6]), logprobs=np.zeros(1, np.float32)), "with 1 log-probs"),
        (replace(so_far([5, 6]), logprobs=np.array([-1, np.nan], np.float32)), "not finite"),
        (so_far([5, VOCAB]), "outside the vocabulary"),
        (so_far([5, -1]), "outside the vocabulary"),
        (so_far([5, STOP, 6]), "go on behind its end"),
        (so_far([5] * 11), "go on behind its end"),
        (replace(so_far([5, 6]), version_spans=()), "do not cover them"),
        (replace(so_far([5, 6]), version_spans=(VersionSpan(1, OLD),)), "do not cover them"),
        (replace(so_far([5, 6]), version_spans=(VersionSpan(0, OLD), VersionSpan(2, NEW))), "do not cover them"),
        (replace(so_far([5, 6]), version_spans=(VersionSpan(0, NEW), VersionSpan(1, OLD))), "do not cover them"),
    ],
)
def test_tokens_that_cannot_be_its_own_end_a_request_as_an_error(make: Make, given: PartialTokens, error: str) -> None:
    engine = make()
    good = requests_of(number=2, new=10)
    engine.submit([replace(good[0], so_far=given), good[1]])
    results = finish(engine)
    assert results["r0"].finish_reason is FinishReason.ERROR
    assert error in results["r0"].error
    assert len(results["r0"].token_ids) == 0
    assert results["r1"].finish_reason is not FinishReason.ERROR


def test_each_token_is_told_once_and_only_when_there_are_enough(make: Make) -> None:
    engine = make()
    engine.submit(requests_of(stops=(), new=60))
    finish(engine, steps=5)
    assert engine.partials(6) == []
    finish(engine, steps=1)
    first = engine.partials(6)
    assert {(piece.start, piece.end) for piece in first} == {(0, 6)}
    assert engine.partials(1) == []
    finish(engine, steps=3)
    assert {(piece.start, piece.end, piece.version_spans) for piece in engine.partials(1)} == {
        (6, 9, (VersionSpan(6, OLD),))
    }


def test_some_requests_are_told_of_apart_and_all_others_keep_what_is_untold(make: Make) -> None:
    engine = make(slots=4)
    requests = requests_of(number=6, stops=(), new=60)
    engine.submit(requests)
    assert engine.partials(1, {"r0"}) == []  # nothing runs yet
    finish(engine, steps=3)
    assert engine.partials(1, {"nobody"}) == []
    waiting = {"r4", "r5"}  # there is no slot for them
    assert engine.partials(1, waiting) == []
    assert [(piece.request_id, piece.start, piece.end) for piece in engine.partials(1, {"r1", *waiting})] == [
        ("r1", 0, 3)
    ]
    finish(engine, steps=2)
    assert {(piece.request_id, piece.start, piece.end) for piece in engine.partials(1)} == {
        ("r0", 0, 5),
        ("r1", 3, 5),
        ("r2", 0, 5),
        ("r3", 0, 5),
    }


def test_the_first_piece_of_one_that_goes_on_has_what_it_came_with(make: Make) -> None:
    engine = make(version=NEW)
    given = so_far([5, 6, 7])
    engine.submit([replace(requests_of(number=1)[0], so_far=given)])
    finish(engine, steps=2)
    (piece,) = engine.partials(1)
    assert (piece.start, piece.end) == (0, 5)
    assert piece.token_ids[:3].tolist() == [5, 6, 7]
    assert piece.version_spans == (VersionSpan(0, OLD), VersionSpan(3, NEW))


def test_aborted_before_or_while_it_is_read_it_still_has_what_it_came_with(make: Make) -> None:
    given = so_far([5, 6, 7, 8, 9])
    for steps in (0, 2):
        engine = make()
        engine.submit([replace(requests_of(number=1)[0], so_far=given)])
        finish(engine, steps=steps)
        engine.abort(["r0"])
        (result,) = engine.step()
        assert result.finish_reason is FinishReason.ABORT
        assert result.token_ids[:5].tolist() == [5, 6, 7, 8, 9]
        assert result.version_spans == (VersionSpan(0, OLD),)


def test_a_broken_number_met_while_known_tokens_are_read_ends_the_request() -> None:
    engine = torch_engine()
    engine.submit([replace(requests_of(number=1)[0], so_far=so_far([5, 6, 7, 8, 9]))])
    finish(engine, steps=2)
    broken = weights_of(0)
    broken["model.norm.weight"].fill_(float("nan"))
    engine.load_weights(broken, NEW, UpdateMode.KEEP)
    (result,) = finish(engine).values()
    assert result.finish_reason is FinishReason.ERROR
    assert np.isfinite(result.logprobs).all()
