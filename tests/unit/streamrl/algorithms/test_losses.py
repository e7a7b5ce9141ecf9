"""Losses, corrections and aggregations against plain Python floats, gradients included."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from streamrl.algorithms.aggregation import AGGREGATIONS, Denominators
from streamrl.algorithms.corrections import CORRECTIONS, importance
from streamrl.algorithms.losses import LOSSES
from streamrl.algorithms.proximal import PROXIMALS

LOGPROB = st.floats(-30.0, 0.0, width=32)
TOKENS = st.lists(
    st.tuples(LOGPROB, LOGPROB, st.floats(-3.0, 3.0, width=32), st.floats(0.0, 2.0, width=32)),
    min_size=1,
    max_size=12,
)


def slow_ppo(
    logprob: float, proximal: float, advantage: float, weight: float, low: float, high: float
) -> tuple[float, float]:
    """(loss, its derivative by the log-prob) of one token."""
    ratio = math.exp(min(max(logprob - proximal, -20.0), 20.0))
    bounded = min(max(ratio, 1.0 - low), 1.0 + high)
    if -advantage * bounded > -advantage * ratio:
        return -weight * advantage * bounded, 0.0
    slope = -weight * advantage * ratio if abs(logprob - proximal) <= 20.0 else 0.0
    return -weight * advantage * ratio, slope


@settings(deadline=None, max_examples=60)
@given(tokens=TOKENS)
def test_ppo_matches_one_token_at_a_time_in_value_and_gradient(
    tokens: list[tuple[float, float, float, float]],
) -> None:
    columns = [torch.tensor(column, dtype=torch.float64) for column in zip(*tokens, strict=True)]
    logprobs, proximal, advantages, weights = columns
    logprobs.requires_grad_()
    loss, clipped = LOSSES["ppo"](logprobs, proximal, advantages, weights, 0.2, 0.28)
    loss.sum().backward()
    expected = [slow_ppo(*token, 0.2, 0.28) for token in tokens]
    torch.testing.assert_close(loss.detach(), torch.tensor([value for value, _ in expected]).double())
    torch.testing.assert_close(logprobs.grad, torch.tensor([slope for _, slope in expected]).double())
    assert not clipped.requires_grad


def test_the_two_clip_bounds_are_separate() -> None:
    logprobs = torch.log(torch.tensor([1.25, 1.25, 0.85, 0.75]))
    advantages = torch.tensor([1.0, 1.0, -1.0, -1.0])
    ones = torch.ones(4)
    _, clipped = LOSSES["ppo"](logprobs, torch.zeros(4), advantages, ones, 0.2, 0.28)
    assert clipped.tolist() == [False, False, False, True]
    _, clipped = LOSSES["ppo"](logprobs, torch.zeros(4), advantages, ones, 0.1, 0.2)
    assert clipped.tolist() == [True, True, True, True]


def test_a_token_without_advantage_has_exactly_no_gradient() -> None:
    logprobs = torch.tensor([-1.0, -2.0, -0.5], requires_grad=True)
    loss, _ = LOSSES["ppo"](logprobs, torch.tensor([-1.0, -9.0, -0.9]), torch.zeros(3), torch.ones(3), 0.2, 0.28)
    loss.sum().backward()
    assert (logprobs.grad == 0.0).all()


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(LOGPROB, LOGPROB), min_size=1, max_size=12), st.floats(0.5, 4.0))
def test_tis_weighs_by_the_truncated_ratio_to_the_sampling_policy(pairs: list[tuple[float, float]], cap: float) -> None:
    proximal = torch.tensor([a for a, _ in pairs], dtype=torch.float64, requires_grad=True)
    rollout = torch.tensor([b for _, b in pairs], dtype=torch.float64)
    weights, truncated = CORRECTIONS["tis"](importance(proximal, rollout), cap, 0.0)
    ratios = [math.exp(min(max(a - b, -20.0), 20.0)) for a, b in pairs]
    assert weights.tolist() == pytest.approx([min(ratio, cap) for ratio in ratios])
    assert truncated.tolist() == [ratio > cap for ratio in ratios]
    assert not weights.requires_grad


def test_without_correction_every_token_weighs_the_same() -> None:
    weights, truncated = CORRECTIONS["none"](
        importance(torch.tensor([-3.0, -0.5]), torch.tensor([-1.0, -2.0])), 2.0, 0.0
    )
    assert weights.tolist() == [1.0, 1.0]
    assert not truncated.any()


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(LOGPROB, LOGPROB, st.integers(0, 9)), min_size=1, max_size=12))
def test_the_ratio_is_against_the_policy_that_is_named(tokens: list[tuple[float, float, int]]) -> None:
    current = torch.tensor([a for a, _, _ in tokens], dtype=torch.float64, requires_grad=True)
    rollout = torch.tensor([b for _, b, _ in tokens], dtype=torch.float64)
    lags = torch.tensor([float(lag) for _, _, lag in tokens], dtype=torch.float64)
    expected = {
        "recompute": [a for a, _, _ in tokens],
        "rollout": [b for _, b, _ in tokens],
        "interpolate": [a + (b - a) / lag if lag else a for a, b, lag in tokens],
    }
    assert set(expected) == set(PROXIMALS)
    for name, values in expected.items():
        proximal = PROXIMALS[name](current, rollout, lags)
        assert proximal.tolist() == pytest.approx(values)
        assert not proximal.requires_grad


def test_rows_of_the_present_version_have_a_ratio_of_exactly_1_and_those_of_the_one_before_are_not_changed() -> None:
    current, rollout = torch.tensor([-1.7, -0.3]), torch.tensor([-1.1, -2.9])
    assert torch.equal(PROXIMALS["interpolate"](current, rollout, torch.zeros(2)), current)
    assert torch.equal(PROXIMALS["interpolate"](current, rollout, torch.ones(2)), rollout)


@settings(deadline=None, max_examples=60)
@given(row_tokens=st.lists(st.integers(1, 9), min_size=1, max_size=8), extra=st.integers(0, 5))
def test_aggregation_weights_are_those_of_the_means_they_are_named_after(row_tokens: list[int], extra: int) -> None:
    per_token = torch.tensor([float(n) for n in row_tokens for _ in range(n)])
    total = Denominators(sum(row_tokens) + extra, len(row_tokens) + extra)
    expected = {
        "token_mean": [1.0 / total.tokens for n in row_tokens for _ in range(n)],
        "seq_mean_token_mean": [1.0 / n / total.rows for n in row_tokens for _ in range(n)],
        "seq_mean_token_sum": [1.0 / total.rows for n in row_tokens for _ in range(n)],
        "seq_mean_token_sum_norm": [1.0 / total.rows / 7 for n in row_tokens for _ in range(n)],
    }
    assert set(expected) == set(AGGREGATIONS)
    for name, weights in expected.items():
        assert AGGREGATIONS[name](per_token, total, 7).tolist() == pytest.approx(weights)


@pytest.mark.parametrize("name", sorted(AGGREGATIONS))
def test_a_batch_without_a_token_has_no_nan_weights(name: str) -> None:
    assert AGGREGATIONS[name](torch.zeros(0), Denominators(0, 0)).tolist() == []


@settings(deadline=None, max_examples=40)
@given(tokens=TOKENS)
def test_reinforce_has_the_weighted_advantage_as_its_slope_and_no_clip(
    tokens: list[tuple[float, float, float, float]],
) -> None:
    columns = [torch.tensor(column, dtype=torch.float64) for column in zip(*tokens, strict=True)]
    logprobs, proximal, advantages, weights = columns
    logprobs.requires_grad_()
    loss, clipped = LOSSES["reinforce"](logprobs, proximal, advantages, weights)
    loss.sum().backward()
    torch.testing.assert_close(logprobs.grad, -weights * advantages)
    torch.testing.assert_close(loss.detach(), -weights * advantages * logprobs.detach())
    assert not clipped.any()
