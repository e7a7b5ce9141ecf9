"""Deterministic mode: a request's ids and log-probs are equal to the bit, whatever shares its batch."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.kernels import NEEDS_KERNELS
from transformers import (
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

from streamrl.engines.torch import TorchEngine
from streamrl.engines.torch.admission import Rest, Segment, Targets
from streamrl.engines.torch.arrangement import CLASS_TOKENS, arrange, key_ranges
from streamrl.engines.torch.batch_invariance import KEY_BLOCK, prove_batch_invariance
from streamrl.engines.torch.eager.attention import attend, causal_attention, length_mask, round_up
from streamrl.engines.torch.eager.own_products import OwnProducts
from streamrl.engines.torch.eager.plan import plan_pass
from streamrl.engines.torch.products import TILE, PlainProducts, TiledProducts
from streamrl.engines.torch.slots import SlotTable
from streamrl.errors import BatchDependenceError, ComponentError
from streamrl.types import FinishReason, GenerationRequest, GenerationResult, SamplingParams, Version

VOCAB = 211


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module", params=["qwen3-2-queries-a-key", "qwen2-7-queries-a-key", "experts"])
def model(request: pytest.FixtureRequest):
    sizes = {"vocab_size": VOCAB, "num_hidden_layers": 2, "intermediate_size": 96, "initializer_range": 0.15}
    torch.manual_seed(3)
    if request.param == "experts":
        heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16}
        experts = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 48}
        return Qwen3MoeForCausalLM(Qwen3MoeConfig(hidden_size=64, **heads, **experts, **sizes)).eval()
    if request.param.startswith("qwen3"):
        config = Qwen3Config(hidden_size=64, num_attention_heads=4, num_key_value_heads=2, head_dim=32, **sizes)
        return Qwen3ForCausalLM(config).eval()
    config = Qwen2Config(hidden_size=112, num_attention_heads=7, num_key_value_heads=1, **sizes)
    return Qwen2ForCausalLM(config).eval()


def engine_of(model, *, slots: int = 24, max_length: int = 640, **more: object) -> TorchEngine:
    return TorchEngine(model, Version(0, 0), slots=slots, max_length=max_length, kv_bytes=2**28, **more)


RUNGS: dict[str, dict[str, object]] = {
    "the fastest": {},
    "tiles": {"products": [TiledProducts()]},
    "large tiles": {"products": [TiledProducts((64, TILE))]},
    "own": {"products": [OwnProducts()]},
}
"""Ways to multiply rows; a large tile gives the bits of a small one on each processor that was seen."""


def random_requests(*, number: int, seed: int) -> list[GenerationRequest]:
    random = np.random.default_rng(seed)
    prompts = [
        random.integers(0, VOCAB, int(size), dtype=np.int32)
        for size in np.clip(random.lognormal(3.2, 1.3, number), 1, 560)
    ]
    requests = []
    for index in range(number):
        # Some prompts come more than once, as the samples of a group do.
        prompt = prompts[int(random.integers(0, index + 1))] if random.random() < 0.4 else prompts[index]
        kind = ({}, {"temperature": 0.8}, {"top_p": 0.9}, {"temperature": 0.0}, {"top_k": 20})[index % 5]
        sampling = SamplingParams(max_new_tokens=int(random.integers(1, 70)), **kind)
        requests.append(GenerationRequest(str(index), prompt, int(random.integers(2**62)), sampling, (3,)))
    return requests


def run_scattered(
    engine: TorchEngine, requests: Sequence[GenerationRequest], *, seed: int
) -> dict[str, GenerationResult]:
    """Submit in a random order, a few at a time, with steps in between."""
    random = np.random.default_rng(seed)
    order = random.permutation(len(requests)).tolist()
    results: dict[str, GenerationResult] = {}
    while order or engine.has_work:
        count = int(random.integers(0, 6))
        engine.submit([requests[place] for place in order[:count]])
        del order[:count]
        for _ in range(int(random.integers(1, 5))):
            results |= {result.request_id: result for result in engine.step()}
    return results


@pytest.mark.parametrize(
    ("seed", "compiled", "rung"),
    [
        *(pytest.param(0, True, rung, marks=NEEDS_KERNELS if rung == "own" else ()) for rung in RUNGS),
        (1, True, "the fastest"),
        (0, False, "the fastest"),
        (1, False, "tiles"),
    ],
)
def test_invariant_4_results_are_bit_equal_alone_and_in_any_crowd(model, seed: int, compiled: bool, rung: str):
    print(f"random seed of the requests and arrivals: {seed}")
    requests = random_requests(number=30, seed=seed)
    kind = {"compiled": compiled, **RUNGS[rung]}
    lonely = engine_of(model, slots=1, **kind)
    alone = {request.request_id: lonely.generate([request])[0] for request in requests}
    crowd_of_40 = engine_of(model, slots=40, **kind)
    crowds = {
        "at once": {result.request_id: result for result in crowd_of_40.generate(requests)},
        "scattered": run_scattered(engine_of(model, slots=7, **kind), requests, seed=seed),
    }
    for name, crowd in crowds.items():
        for request_id, expected in alone.items():
            result = crowd[request_id]
            assert result.token_ids.tolist() == expected.token_ids.tolist(), f"{name}: {request_id}"
            assert result.logprobs.tobytes() == expected.logprobs.tobytes(), f"{name}: {request_id}"
            assert result.finish_reason is expected.finish_reason


def test_the_self_test_passes_here_and_leaves_no_trace(model):
    engine = engine_of(model)
    before = engine.stats()
    engine.self_test()
    assert engine.stats() == before
    assert not engine.has_work


def test_the_self_test_runs_on_an_engine_of_few_slots_and_short_requests(model):
    engine_of(model, slots=2, max_length=8).self_test()


class CompanyProducts(PlainProducts):
    """A library whose numbers depend on how many rows there are: the first and the last kernel differ."""

    def linear(
        self, x_RI: torch.Tensor, weight_IO: torch.Tensor, bias_O: torch.Tensor | None, out: torch.Tensor | None = None
    ) -> torch.Tensor:
        return super().linear(x_RI, weight_IO, bias_O, out=out).mul_(1.0 if len(x_RI) < 7 else 1.0 + 2.0**-20)


@NEEDS_KERNELS
def test_a_way_to_multiply_that_the_proof_shows_to_depend_is_left_for_the_next(model):
    engine = engine_of(model, products=[CompanyProducts(), OwnProducts()])
    engine.self_test()
    arithmetic = engine.stats().arithmetic
    assert arithmetic is not None
    assert arithmetic.rung == "own"


def test_without_a_way_that_holds_the_promise_is_refused_or_given_up(model):
    refusing = engine_of(model, products=[CompanyProducts()])
    with pytest.raises(
        BatchDependenceError, match=r"also by the last way .*, plain .*, on .* by 1 thread; set rollout"
    ):
        refusing.self_test()
    engine = engine_of(model, products=[CompanyProducts()])
    engine.self_test(required=False)
    arithmetic = engine.stats().arithmetic
    assert arithmetic is not None
    assert arithmetic.rung == "none"
    assert "depends on its batch" in arithmetic.why
    (request,) = random_requests(number=1, seed=0)
    assert engine.generate([request])[0].finish_reason is not FinishReason.ERROR


def test_the_self_test_refuses_a_busy_engine(model):
    engine = engine_of(model)
    engine.submit(random_requests(number=1, seed=0))
    with pytest.raises(ComponentError, match="requests are running"):
        engine.self_test()


class CompanyEngine:
    """An engine whose numbers depend on how many requests run: the fault that the self-test looks for."""

    def __init__(self, *, ids: bool) -> None:
        self._ids = ids
        self._requests: list[GenerationRequest] = []

    @property
    def has_work(self) -> bool:
        return bool(self._requests)

    def submit(self, requests: Sequence[GenerationRequest]) -> None:
        self._requests += requests

    def step(self) -> list[GenerationResult]:
        many = len(self._requests) > 1
        ids = np.array([int(many and self._ids), 2], dtype=np.int32)
        logprobs = np.array([-1.0, -2.0 - 1e-6 * many], dtype=np.float32)
        requests, self._requests = self._requests, []
        return [GenerationResult(request.request_id, ids, logprobs, (), FinishReason.LENGTH) for request in requests]


@pytest.mark.parametrize(("ids", "message"), [(True, "token ids"), (False, "log-prob of token 1")])
def test_the_self_test_names_what_depends_on_the_batch(ids: bool, message: str):
    with pytest.raises(BatchDependenceError, match=f"the {message} of a request with a prompt of 1 tokens depends"):
        prove_batch_invariance(CompanyEngine(ids=ids), vocab_size=10, max_length=64)


@pytest.mark.parametrize("queries", [1, 2, 4, 7])
def test_attention_does_not_feel_how_far_the_keys_are_padded(queries: int):
    """Among them lengths at which one product over all keys was seen to differ: 129, 250, 700."""
    generator = torch.Generator().manual_seed(queries)
    key, value = (torch.randn(6, 1024, 64, generator=generator) for _ in range(2))
    query = torch.randn(6, queries, 64, generator=generator)
    places = torch.arange(1024).float()
    for visible in (1, 31, 32, 33, KEY_BLOCK, KEY_BLOCK + 1, 250, 300, 500):
        last = torch.full((6,), visible - 1.0)
        results = []
        for length in sorted({round_up(visible) + extra for extra in (0, 32, 64, 96, 128, 512)}):
            mask = length_mask(last, places[:length], torch.float32)
            results.append(attend(query, key[:, :length], value[:, :length], mask))
        exact = torch.softmax(query @ key[:, :visible].transpose(1, 2) / 8, -1) @ value[:, :visible]
        assert torch.allclose(results[0], exact, atol=1e-5)
        assert all(torch.equal(results[0], other) for other in results[1:]), visible


@pytest.mark.parametrize("size", [1, 31, 32, 100, 128, 129, 300])
def test_prompt_attention_is_causal_attention_whatever_the_padding(size: int):
    heads = torch.randn(1, size, 4 + 2 * 2, 16, generator=torch.Generator().manual_seed(size))
    query, key, value = heads.transpose(1, 2).split((4, 2, 2), dim=1)
    expected = torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
    results = []
    for padded in (round_up(size), round_up(size) + 32, round_up(size) + 288):
        full = torch.nn.functional.pad(heads, (0, 0, 0, 0, 0, padded - size), value=3.0)
        results.append(causal_attention(full, 4, 2)[:, :size])
    assert torch.allclose(results[0], expected.transpose(1, 2).flatten(2), atol=1e-5)
    assert all(torch.equal(results[0], other) for other in results[1:])


def test_a_plan_computes_a_shared_prompt_once_and_writes_it_to_every_slot():
    ids, positions = np.array([10, 11, 12, 11]), np.array([5, 2, 0, 2])
    segments = [Segment(np.array([7, 8]), (1, 3))]
    plan = plan_pass(ids, positions, segments, (), min_rows=4)
    assert plan.token_ids.tolist() == [10, 11, 12, 7, 8]
    assert plan.positions.tolist() == [5, 2, 0, 0, 1]
    assert plan.slot_of_row.tolist() == [0, 1, 2]
    assert plan.row_of_slot.tolist() == [0, 1, 2, 1]
    written = set(zip(plan.slots.tolist(), plan.places.tolist(), plan.source.tolist(), strict=True))
    assert written == {(0, 5, 0), (1, 2, 1), (2, 0, 2), (3, 2, 1), (1, 0, 3), (1, 1, 4), (3, 0, 3), (3, 1, 4)}


def test_a_plan_reads_short_prompts_as_rests_and_tells_of_all_in_their_order():
    ids, positions = np.array([10, 11, 12]), np.array([3, 1, 2])
    long, short = np.array([4, 5, 6]), np.array([7])
    targets = [Targets(part, 0) for part in (long, short)]
    segments = [Segment(long, (0,), targets[0]), Segment(short, (1,), targets[1])]
    plan = plan_pass(ids, positions, segments, [Rest(np.array([8, 9]), 0, 2)], min_rows=1, short=2)
    assert plan.token_ids.tolist() == [10, 11, 12, 8, 9, 7, 4, 5, 6]
    assert plan.positions.tolist() == [3, 1, 2, 0, 1, 0, 0, 1, 2]
    assert plan.rest_slots.tolist() == [2, 2, 1]
    assert [group.packed.tolist() for group in plan.groups] == [[6, 7, 8]]
    assert plan.scored is not None
    assert plan.scored.tolist() == [6, 7, 8, 5]
    written = set(zip(plan.slots.tolist(), plan.places.tolist(), plan.source.tolist(), strict=True))
    assert written >= {(2, 0, 3), (2, 1, 4), (1, 0, 5), (0, 0, 6), (0, 1, 7), (0, 2, 8)}


def test_a_plan_pads_to_the_least_rows_and_stores_no_padding():
    plan = plan_pass(np.array([10]), np.array([5]), [], (), min_rows=4)
    assert plan.token_ids.shape == plan.positions.shape == (4,)
    assert plan.source.tolist() == [0]
    assert (plan.slots.tolist(), plan.places.tolist()) == ([0], [5])


def test_a_move_carries_all_of_a_rows_state():
    table = SlotTable(slots=6, max_length=8)
    sampling = SamplingParams(max_new_tokens=4)
    requests = [GenerationRequest(str(i), np.array([i, i], dtype=np.int32), i, sampling, (i,)) for i in range(6)]
    table.assign(np.arange(6), requests, np.full(6, 2), Version(0, 0))
    table.take([0, 4, 2], [FinishReason.ABORT] * 3, [""] * 3)
    assert table.taken().tolist() == [False, True, False, True, False, True]
    table.move(np.array([3, 5]), np.array([0, 2]))
    assert table.num_rows == table.running == 3
    # Row 0 holds request 3 now, row 1 request 1 still, row 2 request 5: each ends at its own number.
    ended = table.append(np.array([9, 1, 5]), np.zeros(3, dtype=np.float32))
    assert [result.request_id for result in ended] == ["1", "5"]
    assert table.token_ids[0, :3].tolist() == [3, 3, 9]


@given(
    rows=st.lists(st.tuples(st.integers(1, 500), st.booleans()), max_size=40),
    new=st.lists(st.integers(1, 500), max_size=20),
)
@settings(max_examples=300, deadline=None)
def test_an_arrangement_fills_the_first_slots_in_order_of_length_with_the_fewest_moves(rows, new):
    lengths = np.array([length for length, _ in rows], dtype=np.int64)
    taken = np.array([kept for _, kept in rows], dtype=np.bool_)
    moved = arrange(lengths, taken, np.array(new, dtype=np.int64))
    holder = {slot: slot for slot in np.flatnonzero(taken).tolist()}
    for source in moved.sources.tolist():
        del holder[source]
    for source, target in zip(moved.sources.tolist(), moved.targets.tolist(), strict=True):
        assert target not in holder
        holder[target] = source
    after = {slot: int(lengths[row]) for slot, row in holder.items()}
    for length, slot in zip(new, moved.places.tolist(), strict=True):
        assert slot not in after
        after[slot] = length
    assert sorted(after) == list(range(len(after)))
    classes = [after[slot] // CLASS_TOKENS for slot in range(len(after))]
    assert classes == sorted(classes, reverse=True)
    for source in moved.sources.tolist():
        assert source >= len(classes) or classes[source] != lengths[source] // CLASS_TOKENS


@given(st.lists(st.integers(1, 40), min_size=1, max_size=200))
@settings(max_examples=200, deadline=None)
def test_key_ranges_cover_every_slot_and_every_key(blocks: list[int]):
    padded = np.array(blocks) * 32
    ranges = key_ranges(padded)
    assert [part.first for part in ranges] == [0, *(part.stop for part in ranges[:-1])]
    assert ranges[-1].stop == len(padded)
    for first, stop, length in ranges:
        assert length == padded[first:stop].max()


def test_key_ranges_part_long_rows_from_short_ones():
    padded = np.array([512] * 16 + [64] * 48)
    assert key_ranges(padded) == [(0, 16, 512), (16, 64, 64)]
    assert key_ranges(np.array([64] * 40 + [32] * 24)) == [(0, 64, 64)]
