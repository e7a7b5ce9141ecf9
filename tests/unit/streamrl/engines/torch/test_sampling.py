"""Sampling by itself: the hash, the distribution that is drawn from, what truncation keeps."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import MinPLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from streamrl.engines.torch.sampling import SamplingRows, Truncation, choose, mix, uniforms

DRAWS = 40_000
CHI_SQUARE_999 = {1: 10.83, 2: 13.82, 3: 16.27, 4: 18.47, 5: 20.52, 9: 27.88, 11: 31.26}
"""0.999 quantiles of chi-square by degrees of freedom. The draws are fixed, so the tests are too."""

PROBABILITIES = [0.30, 0.20, 0.15, 0.10, 0.08, 0.06, 0.04, 0.03, 0.02, 0.02]


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def rows(
    *,
    temperature: list[float] | None = None,
    greedy: list[bool] | None = None,
    truncated: list[int] | None = None,
    top_k: list[int] | None = None,
    top_p: list[float] | None = None,
    min_p: list[float] | None = None,
) -> SamplingRows:
    floats = {"top_p": top_p, "min_p": min_p}
    truncation = None
    if truncated is not None:
        truncation = Truncation(
            rows=torch.tensor(truncated),
            top_k=None if top_k is None else torch.tensor(top_k),
            **{name: None if value is None else torch.tensor(value) for name, value in floats.items()},
        )
    return SamplingRows(
        temperature=None if temperature is None else torch.tensor(temperature),
        greedy=None if greedy is None else torch.tensor(greedy),
        all_greedy=greedy is not None and all(greedy),
        truncation=truncation,
    )


def draws(*, seed: int = 0) -> torch.Tensor:
    streams = mix(np.arange(seed, seed + DRAWS, dtype=np.uint64))
    return torch.from_numpy(uniforms(streams, np.full(DRAWS, 3)))


def chi_square(counts: np.ndarray, probabilities: np.ndarray) -> float:
    expected = probabilities * counts.sum()
    return float(((counts - expected) ** 2 / expected).sum())


def sample_counts(scores: torch.Tensor, sampling: SamplingRows, uniform: torch.Tensor) -> np.ndarray:
    tokens, _ = choose(scores.expand(DRAWS, -1), sampling, uniform)
    return np.bincount(tokens.numpy(), minlength=scores.shape[-1])


def test_mix_is_splitmix64():
    # First outputs of the reference generator seeded with 1234567: mix(seed + i * golden).
    golden, seed = 0x9E3779B97F4A7C15, 1234567
    states = np.array([(seed + (i + 1) * golden) % 2**64 for i in range(3)], dtype=np.uint64)
    assert mix(states).tolist() == [6457827717110365317, 3203168211198807973, 9817491932198370423]


def test_uniforms_are_uniform_over_seeds_and_over_token_indices():
    by_seed = draws().numpy()
    by_index = uniforms(np.full(DRAWS, mix(np.array([7], dtype=np.uint64))[0]), np.arange(DRAWS))
    for values in (by_seed, by_index):
        counts = np.histogram(values, bins=10, range=(0, 1))[0]
        assert chi_square(counts, np.full(10, 0.1)) < CHI_SQUARE_999[9]
        assert abs(np.corrcoef(values[:-1], values[1:])[0, 1]) < 0.02
        assert values.min() >= 0.0
        assert values.max() < 1.0


@given(st.lists(st.floats(-30, 30, width=32), min_size=2, max_size=40), st.integers(0, 2**24 - 1))
@settings(max_examples=200, deadline=None)
def test_the_extreme_uniforms_draw_tokens_of_positive_probability(scores: list[float], bits: int):
    logits = torch.tensor([scores, scores, scores])
    logits[:, 0] = float("-inf")
    uniform = torch.tensor([0.0, 1.0 - 2.0**-24, bits * 2.0**-24])
    tokens, logprobs = choose(logits, rows(), uniform)
    assert (tokens > 0).all()
    assert torch.isfinite(logprobs).all()


def test_tokens_follow_the_distribution():
    logits = torch.tensor(PROBABILITIES).log()
    counts = sample_counts(logits, rows(), draws())
    assert chi_square(counts, np.array(PROBABILITIES)) < CHI_SQUARE_999[9]


def test_tokens_follow_the_tempered_distribution():
    logits = torch.tensor(PROBABILITIES).log()
    tempered = (logits / 0.5).softmax(-1).double().numpy()
    counts = sample_counts(logits, rows(temperature=[0.5] * DRAWS), draws())
    assert chi_square(counts, tempered) < CHI_SQUARE_999[9]


@pytest.mark.parametrize(
    ("cut", "kept"),
    [
        ({"top_k": 4}, 4),
        ({"top_p": 0.76}, 5),  # 0.30 + 0.20 + 0.15 + 0.10 = 0.75 is not enough
        ({"min_p": 0.19}, 6),  # 0.06 / 0.30 = 0.2
        ({"top_k": 7, "top_p": 0.5}, 2),  # top-k first: of 0.93, 0.30 + 0.20 are 0.54
    ],
)
def test_truncation_draws_from_the_renormalised_kept_set(cut: dict, kept: int):
    logits = torch.tensor(PROBABILITIES).log()
    columns = {name: [value] * DRAWS for name, value in cut.items()}
    counts = sample_counts(logits, rows(truncated=list(range(DRAWS)), **columns), draws(seed=5))
    probabilities = np.array(PROBABILITIES[:kept])
    assert counts[kept:].sum() == 0
    assert chi_square(counts[:kept], probabilities / probabilities.sum()) < CHI_SQUARE_999[kept - 1]


@given(
    seed=st.integers(0, 2**31),
    top_k=st.integers(0, 70),
    top_p=st.floats(0.0625, 1.0, width=32),
    min_p=st.floats(0.0, 0.875, width=32),
)
@settings(max_examples=60, deadline=None)
def test_truncation_keeps_what_transformers_keeps(seed: int, top_k: int, top_p: float, min_p: float):
    logits = torch.randn(6, 50, generator=torch.Generator().manual_seed(seed)) * 3
    expected = logits
    if top_k:
        expected = TopKLogitsWarper(top_k)(None, expected)
    if top_p < 1:
        expected = TopPLogitsWarper(top_p)(None, expected)
    if min_p:
        expected = MinPLogitsWarper(min_p)(None, expected)
    sampling = rows(truncated=[1, 3, 5], top_k=[top_k] * 3, top_p=[top_p] * 3, min_p=[min_p] * 3)
    for value in (0.0, 0.4, 1 - 2.0**-24):
        tokens, logprobs = choose(logits, sampling, torch.full((6,), value))
        # Rows 0, 2 and 4 are not truncated.
        expected[::2] = logits[::2]
        wanted = expected.log_softmax(-1).gather(1, tokens[:, None])[:, 0]
        assert torch.allclose(logprobs, wanted, atol=1e-5)


def test_a_greedy_row_takes_the_best_token_and_its_plain_logprob():
    logits = torch.randn(5, 30, generator=torch.Generator().manual_seed(0))
    mixed = rows(temperature=[1.0, 0.5, 1.0, 2.0, 1.0], greedy=[True, False, True, False, True])
    tokens, logprobs = choose(logits, mixed, torch.full((5,), 0.999))
    for row in (0, 2, 4):
        assert tokens[row] == logits[row].argmax()
        assert torch.isclose(logprobs[row], logits[row].log_softmax(-1).max(), atol=1e-6)
    assert choose(logits, rows(greedy=[True] * 5), torch.zeros(5))[0].tolist() == logits.argmax(-1).tolist()


def test_a_row_of_nan_gives_a_valid_id_and_a_nan_logprob_and_spares_its_neighbours():
    logits = torch.randn(3, 20, generator=torch.Generator().manual_seed(1))
    uniform = torch.tensor([0.2, 0.5, 0.8])
    expected = choose(logits, rows(), uniform)
    poisoned = logits.clone()
    poisoned[1] = float("nan")
    tokens, logprobs = choose(poisoned, rows(), uniform)
    assert 0 <= tokens[1] < 20
    assert torch.isnan(logprobs[1])
    for row in (0, 2):
        assert (tokens[row], logprobs[row]) == (expected[0][row], expected[1][row])
