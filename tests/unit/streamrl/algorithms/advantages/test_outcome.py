"""Advantages against plain Python over lists, and the cases where they must be exactly 0."""

import math
import statistics

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamrl.algorithms.advantages.outcome import ADVANTAGES
from streamrl.errors import NonFiniteError


def slow_advantage(name: str, rewards: list[float], valid: list[bool], groups: list[int]) -> list[float]:
    """One row at a time, by the formula of the paper."""
    advantages = []
    for row, group in enumerate(groups):
        mates = [rewards[i] for i in range(len(rewards)) if groups[i] == group and valid[i]]
        if not valid[row] or len(set(mates)) < 2:
            advantages.append(0.0)
            continue
        mean = statistics.fmean(mates)
        if name == "rloo":
            others = (math.fsum(mates) - rewards[row]) / (len(mates) - 1)
            advantages.append(rewards[row] - others)
        elif name == "grpo":
            advantages.append((rewards[row] - mean) / (statistics.stdev(mates) + 1e-6))
        else:
            advantages.append(rewards[row] - mean)
    return advantages


ROWS = st.lists(
    st.tuples(st.integers(-100, 100).map(lambda n: n / 8), st.booleans(), st.integers(0, 4)),
    min_size=1,
    max_size=24,
)


@pytest.mark.parametrize("name", ["dr_grpo", "grpo", "rloo"])
@settings(deadline=None, max_examples=60)
@given(rows=ROWS)
def test_advantages_match_the_formula_in_unequal_groups_with_failures(
    name: str, rows: list[tuple[float, bool, int]]
) -> None:
    rewards, valid, groups = (list(column) for column in zip(*rows, strict=True))
    given_rewards = [reward if ok else math.nan for reward, ok in zip(rewards, valid, strict=True)]
    got = ADVANTAGES[name](np.array(given_rewards), np.array(valid), np.array(groups))
    assert got.dtype == np.float64
    np.testing.assert_allclose(got, slow_advantage(name, rewards, valid, groups), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", sorted(ADVANTAGES))
@pytest.mark.parametrize(("count", "value"), [(7, 0.1), (6, 0.7), (8, 1.0), (3, 1e-3)])
def test_a_group_of_equal_rewards_gets_exactly_zero(name: str, count: int, value: float) -> None:
    got = ADVANTAGES[name](np.full(count, value), np.ones(count, bool), np.zeros(count, np.int64))
    assert (got == 0.0).all()


@pytest.mark.parametrize("name", sorted(ADVANTAGES))
def test_a_single_row_has_nothing_to_be_compared_with(name: str) -> None:
    got = ADVANTAGES[name](np.array([0.5, 1.0]), np.array([True, False]), np.zeros(2, np.int64))
    assert (got == 0.0).all()


@pytest.mark.parametrize("name", sorted(ADVANTAGES))
def test_a_failed_row_changes_no_other_rows_advantage(name: str) -> None:
    groups = np.zeros(4, np.int64)
    with_failure = ADVANTAGES[name](np.array([1.0, 0.0, math.nan, 0.0]), np.array([True, True, False, True]), groups)
    without = ADVANTAGES[name](np.array([1.0, 0.0, 0.0]), np.ones(3, bool), groups[:3])
    assert with_failure[2] == 0.0
    np.testing.assert_array_equal(with_failure[[0, 1, 3]], without)


def test_invariant_08_a_reward_that_is_not_finite_is_refused_unless_it_failed() -> None:
    with pytest.raises(NonFiniteError, match=r"row 1 \(group 7\)"):
        ADVANTAGES["grpo"](np.array([1.0, math.inf]), np.ones(2, bool), np.array([7, 7]))


def test_no_rows_give_no_advantages() -> None:
    assert len(ADVANTAGES["grpo"](np.zeros(0), np.zeros(0, bool), np.zeros(0, np.int64))) == 0
