"""Turns of a conversation: what one leaves in the cache serves the next, and changes no bit of it."""

import os
import random
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
import torch
from support.engines.tiny_qwen3 import VOCAB, tiny_model
from support.kernels import NEEDS_KERNELS
from transformers import PreTrainedModel

from streamrl.engines.torch import TorchEngine
from streamrl.engines.torch.kept import KeptPrefixes
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

EOS = 1
OLD, NEW = Version(0, 0), Version(0, 1)
SEED = int(os.environ.get("SEED", random.SystemRandom().randrange(2**32)))


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def engine_of(model: PreTrainedModel, *, slots: int = 6, **options) -> TorchEngine:
    return TorchEngine(model, OLD, slots=slots, max_length=400, kv_bytes=2**26, **options)


@dataclass
class Talk:
    """A conversation whose other side says random tokens."""

    name: str
    random: np.random.Generator
    ids: list[int] = field(default_factory=list)
    opening: int = 0
    turns: int = 0

    def asks(self, *, told: int = 5, new: int = 8) -> GenerationRequest:
        self.ids += self.random.integers(2, VOCAB, told).tolist()
        prompt = np.array(self.ids, np.int32)
        seed, sampling = 1000 * self.turns + int(self.name), SamplingParams(max_new_tokens=new)
        request = GenerationRequest(
            f"{self.name}/{self.turns}", prompt, seed, sampling, (EOS,), None, self.name, self.opening
        )
        self.opening = self.opening or len(prompt)
        self.turns += 1
        return request

    def hears(self, result: GenerationResult) -> None:
        assert result.finish_reason in (FinishReason.STOP, FinishReason.LENGTH), result.error
        self.ids += result.token_ids.tolist()


def talk(name: int = 0) -> Talk:
    return Talk(str(name), np.random.default_rng(name))


def assert_same_bits(one: GenerationResult, other: GenerationResult) -> None:
    assert one.token_ids.tolist() == other.token_ids.tolist()
    assert one.logprobs.tobytes() == other.logprobs.tobytes()
    assert one.finish_reason == other.finish_reason


@NEEDS_KERNELS
def test_a_turn_on_what_is_kept_has_the_bits_of_one_that_reads_everything() -> None:
    model = tiny_model()
    engine, one = engine_of(model), talk()
    kept = 0
    for turn in range(5):
        request = one.asks(told=9)
        (result,) = engine.generate([request])
        assert_same_bits(result, engine_of(model).generate([request])[0])
        one.hears(result)
        assert engine.stats().kept_tokens - kept == (len(request.prompt_ids) - 9 - 1 if turn else 0)
        kept = engine.stats().kept_tokens


def test_it_has_the_log_probs_of_the_library() -> None:
    model = tiny_model()
    engine, one = engine_of(model), talk()
    for _ in range(3):
        request = one.asks()
        (result,) = engine.generate([request])
        one.hears(result)
    ids = torch.tensor([*request.prompt_ids.tolist(), *result.token_ids.tolist()])
    with torch.no_grad():
        logits = model(ids[None]).logits[0, len(request.prompt_ids) - 1 : -1]
    expected = logits.log_softmax(-1).gather(1, ids[len(request.prompt_ids) :, None])[:, 0]
    np.testing.assert_allclose(result.logprobs, expected.numpy(), atol=1e-5)


@NEEDS_KERNELS
def test_many_conversations_beside_each_other_in_few_slots_change_no_bit() -> None:
    """Some find what was kept, some find it overwritten, and some are asked with a group that has the same prompt."""
    print("SEED", SEED)
    model, chance = tiny_model(), random.Random(SEED)
    engine = engine_of(model, slots=5)
    talks = {str(number): Talk(str(number), np.random.default_rng(SEED + number)) for number in range(8)}
    asked: dict[str, GenerationRequest] = {}
    finished = 0
    # By chance nothing may have been kept in the first 60.
    while finished < 60 or (finished < 600 and not engine.stats().kept_tokens):
        free = [one for one in talks.values() if not any(name.startswith(f"{one.name}/") for name in asked)]
        for one in chance.sample(free, min(len(free), chance.randrange(3))):
            if len(one.ids) > 250:
                talks[one.name] = one = Talk(one.name, one.random)
            request = one.asks(told=chance.randrange(1, 30), new=chance.randrange(1, 12))
            asked[request.request_id] = request
            engine.submit([request])
        for result in engine.step():
            request = asked.pop(result.request_id)
            assert_same_bits(result, engine_of(model).generate([request])[0])
            talks[request.conversation].hears(result)
            finished += 1
    assert engine.stats().kept_tokens > 0


def test_requests_with_one_prompt_and_different_turns_before_do_not_share_a_row() -> None:
    model = tiny_model()
    opening = np.arange(2, 12, dtype=np.int32)
    requests = [
        GenerationRequest(
            str(number),
            np.append(opening, np.arange(number + 1, number + 8, dtype=np.int32)),
            7,
            SamplingParams(max_new_tokens=6),
            (),
            None,
            str(number),
            len(opening),
        )
        for number in range(3)
    ]
    together = engine_of(model).generate(requests)
    for request, result in zip(requests, together, strict=True):
        assert_same_bits(result, engine_of(model).generate([request])[0])


@NEEDS_KERNELS
def test_a_first_turn_that_is_asked_again_leaves_others_of_the_same_prompt_their_own_reading() -> None:
    """As an episode that is begun anew does beside the others of its group."""
    model = tiny_model()
    engine = engine_of(model)
    first = talk().asks(told=20)
    engine.generate([first])
    others = [replace(first, request_id=f"other/{n}", conversation=f"other/{n}", seed=n) for n in range(3)]
    again = engine.generate([replace(first, request_id="again"), *others])
    assert engine.stats().kept_tokens == len(first.prompt_ids) - 1
    for request, result in zip([first, *others], again, strict=True):
        assert_same_bits(result, engine_of(model).generate([request])[0])


@pytest.mark.parametrize("mode", [UpdateMode.KEEP, UpdateMode.RECOMPUTE, UpdateMode.DRAIN])
def test_nothing_of_another_version_is_used(mode: UpdateMode) -> None:
    model, newer = tiny_model(), tiny_model(seed=1)
    engine, one = engine_of(model), talk()
    one.hears(engine.generate([one.asks()])[0])
    engine.load_weights({name: tensor.clone() for name, tensor in newer.state_dict().items()}, NEW, mode)
    request = one.asks()
    (result,) = engine.generate([request])
    assert engine.stats().kept_tokens == 0
    assert_same_bits(result, engine_of(newer).generate([request])[0])


def test_a_drained_update_forgets_what_ended_under_the_old_version() -> None:
    model, newer = tiny_model(), tiny_model(seed=1)
    engine, one = engine_of(model), talk()
    engine.submit([one.asks()])
    engine.step()
    engine.load_weights({name: tensor.clone() for name, tensor in newer.state_dict().items()}, NEW, UpdateMode.DRAIN)
    results: list[GenerationResult] = []
    while engine.has_work:
        results += engine.step()
    one.hears(results[0])
    request = one.asks()
    (result,) = engine.generate([request])
    assert result.version_spans == (VersionSpan(0, NEW),)
    assert_same_bits(result, engine_of(newer).generate([request])[0])


def test_a_turn_that_was_interrupted_goes_on_with_the_bits_of_one_that_was_not() -> None:
    model = tiny_model()
    engine, one = engine_of(model), talk()
    one.hears(engine.generate([one.asks()])[0])
    request = replace(one.asks(new=20), stop_token_ids=())
    (whole,) = engine_of(model).generate([request])
    so_far = PartialTokens(request.request_id, 0, whole.token_ids[:9], whole.logprobs[:9], (VersionSpan(0, OLD),))
    for interrupted in (engine, engine_of(model)):
        (result,) = interrupted.generate([replace(request, so_far=so_far)])
        assert_same_bits(result, whole)


def test_another_beginning_finds_nothing() -> None:
    model = tiny_model()
    engine, one = engine_of(model), talk()
    one.hears(engine.generate([one.asks()])[0])
    request = one.asks()
    changed = replace(request, prompt_ids=np.append(np.int32(30), request.prompt_ids[1:]))
    (result,) = engine.generate([changed])
    assert engine.stats().kept_tokens == 0
    assert_same_bits(result, engine_of(model).generate([changed])[0])


@NEEDS_KERNELS
def test_a_change_within_a_later_turn_uses_what_comes_before_it() -> None:
    """As a template does that leaves the thoughts of earlier turns out."""
    model = tiny_model()
    engine, one = engine_of(model), talk()
    one.hears(engine.generate([one.asks(told=20)])[0])
    request = one.asks()
    prompt = request.prompt_ids.copy()
    prompt[21] = 2 + prompt[21] % 30
    (result,) = engine.generate([replace(request, prompt_ids=prompt)])
    assert engine.stats().kept_tokens == 21
    assert_same_bits(result, engine_of(model).generate([replace(request, prompt_ids=prompt)])[0])


@NEEDS_KERNELS
def test_without_exactness_it_is_used_too_and_is_right_up_to_rounding() -> None:
    model = tiny_model()
    engine, one = engine_of(model, deterministic=False), talk()
    for _ in range(3):
        request = one.asks()
        (result,) = engine.generate([request])
        (fresh,) = engine_of(model, deterministic=False).generate([request])
        assert result.token_ids.tolist() == fresh.token_ids.tolist()
        np.testing.assert_allclose(result.logprobs, fresh.logprobs, atol=1e-5)
        one.hears(result)
    assert engine.stats().kept_tokens > 0


@pytest.mark.parametrize("options", [{"compiled": False}, {"dtype": torch.bfloat16}], ids=["library", "bfloat16"])
def test_other_ways_to_compute_read_the_whole_prompt(options: dict) -> None:
    model = tiny_model().to(options.get("dtype"))
    engine, one = engine_of(model, **options), talk()
    one.hears(engine.generate([one.asks()])[0])
    request = one.asks()
    (result,) = engine.generate([request])
    assert engine.stats().kept_tokens == 0
    assert_same_bits(result, engine_of(model, **options).generate([request])[0])


# ---- which slots


def ids(count: int) -> np.ndarray:
    return np.arange(count)


def test_what_is_kept_lies_in_the_last_slots_and_the_newest_stays() -> None:
    kept = KeptPrefixes(4)
    assert [kept.place(name, ids(9), 4, 1) for name in "abc"] == [3, 2, 1]
    assert kept.place("d", ids(9), 4, 1) == 3
    assert kept.find("a", ids(12), 4) is None
    assert [kept.find(name, ids(12), 4) for name in "dbc"] == [(3, 9), (2, 9), (1, 9)]


def test_requests_come_before_what_is_kept() -> None:
    kept = KeptPrefixes(3)
    kept.place("a", ids(9), 4, 0)
    kept.place("b", ids(9), 4, 0)
    kept.make_room(2)
    assert (kept.find("a", ids(12), 4), kept.find("b", ids(12), 4)) == ((2, 9), None)
    assert kept.place("c", ids(9), 4, 3) is None
    assert len(kept) == 0


def test_of_a_conversation_the_newest_is_kept_alone() -> None:
    kept = KeptPrefixes(4)
    kept.place("a", ids(9), 4, 0)
    kept.place("a", ids(11), 4, 0)
    assert (len(kept), kept.find("a", ids(20), 4)) == (1, (3, 11))


def test_the_last_token_is_always_left_to_read() -> None:
    kept = KeptPrefixes(4)
    kept.place("a", ids(9), 4, 0)
    assert kept.find("a", ids(9), 4) == (3, 8)


@pytest.mark.parametrize(("known", "opening"), [(ids(12)[::-1], 4), (np.append(ids(2), ids(9)), 4), (ids(12), 5)])
def test_what_has_not_the_whole_opening_in_common_is_of_no_use(known: np.ndarray, opening: int) -> None:
    kept = KeptPrefixes(4)
    kept.place("a", ids(9), 4, 0)
    assert kept.find("a", known, opening) is None
