"""The estimators that look at more than rewards, as a configuration chooses them: against loops over single rows."""

import math
import statistics

import numpy as np
import pytest

from streamrl.algorithms.advantages import GRPO_EPS, advantage_of
from streamrl.algorithms.judging import JudgedRows, advantages_of, baseline_rows
from streamrl.algorithms.remax import greedy_rows, remax
from streamrl.config import Config
from streamrl.config.learner_tables import AlgorithmConfig, LearnerConfig
from streamrl.config.rollout_tables import RolloutConfig
from streamrl.errors import NonFiniteError

SEEDS = range(20)
WEIGHTS = {"correct": 1.0, "format": 0.2, "style": -3.0}


def configured(advantage: str, group_size: int = 4) -> Config:
    components = WEIGHTS if advantage == "gdpo" else None
    learner = LearnerConfig(algorithm=AlgorithmConfig(advantage=advantage, components=components))
    return Config(rollout=RolloutConfig(group_size=group_size), learner=learner)


def ragged(seed: int, group_size: int = 4) -> JudgedRows:
    """Groups of any number of samples, some of several branches, some without a greedy one; failures, rows without a
    token; rewards and components of few values, so that some are equal."""
    print(f"seed {seed}")
    random = np.random.default_rng(seed)
    rows = int(random.integers(1, 40))
    group, sample = random.integers(0, 7, rows) * 3, random.integers(0, group_size, rows)
    order = np.lexsort((sample, group))
    valid = random.random(rows) > 0.2
    rewards = np.where(valid, np.round(random.uniform(-1.0, 2.0, rows), 1), math.nan)
    components = np.round(random.uniform(-1, 1, (rows, len(WEIGHTS))) * [1, 10, 100])
    components[~valid] = math.nan
    return JudgedRows(rewards, valid, group[order], sample[order], random.integers(0, 9, rows), components)


def mates_of(rows: JudgedRows, row: int) -> list[int]:
    return [i for i in range(len(rows.group_N)) if rows.group_N[i] == rows.group_N[row] and rows.valid_N[i]]


@pytest.mark.parametrize("seed", SEEDS)
def test_remax_subtracts_the_reward_of_the_last_sample_and_gives_that_one_nothing(seed: int) -> None:
    rows, expected = ragged(seed), []
    for row in range(len(rows.rewards_N)):
        greedy = [float(rows.rewards_N[i]) for i in mates_of(rows, row) if rows.sample_index_N[i] == 3]
        learns = rows.valid_N[row] and rows.sample_index_N[row] != 3 and greedy
        expected.append(float(rows.rewards_N[row]) - statistics.fmean(greedy) if learns else 0.0)
    np.testing.assert_allclose(advantages_of(rows, configured("remax")), expected, rtol=1e-12, atol=1e-12)


def slow_gdpo(rows: JudgedRows) -> list[float]:
    """Component by component, then whitened over a list with one entry for each token."""
    summed = []
    for row in range(len(rows.rewards_N)):
        total = 0.0
        for column, weight in enumerate(WEIGHTS.values()):
            mates = [float(rows.components_NC[i, column]) for i in mates_of(rows, row)]
            if rows.valid_N[row] and len(set(mates)) > 1:
                scale = statistics.stdev(mates) + GRPO_EPS
                total += weight * (float(rows.components_NC[row, column]) - statistics.fmean(mates)) / scale
        summed.append(total)
    counted = list(zip(summed, rows.valid_N, rows.tokens_N, strict=True))
    flat = [value for value, valid, tokens in counted if valid for _ in range(tokens)]
    if len(set(flat)) < 2:
        return [0.0] * len(summed)
    mean, deviation = statistics.fmean(flat), math.sqrt(statistics.variance(flat) + 1e-8)
    return [(value - mean) / deviation if valid and tokens else 0.0 for value, valid, tokens in counted]


@pytest.mark.parametrize("seed", SEEDS)
def test_gdpo_weighs_the_normalised_components_in_the_order_of_the_configuration(seed: int) -> None:
    rows = ragged(seed)
    np.testing.assert_allclose(advantages_of(rows, configured("gdpo")), slow_gdpo(rows), rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("advantage", ["gdpo", "remax"])
def test_a_failed_row_gets_zero_and_changes_no_other(advantage: str, seed: int) -> None:
    rows, config = ragged(seed), configured(advantage)
    kept, got = np.flatnonzero(rows.valid_N), advantages_of(rows, config)
    assert (got[~rows.valid_N] == 0.0).all()
    np.testing.assert_allclose(got[kept], advantages_of(rows.at(kept), config), rtol=1e-9, atol=1e-12)


def test_a_group_whose_greedy_rollout_failed_has_no_baseline_and_learns_nothing() -> None:
    rewards, valid = np.array([1.0, 0.0, math.nan, 1.0, 0.0, 0.5]), np.array([True, True, False, True, True, True])
    group, greedy = np.repeat([0, 1], 3), greedy_rows(np.tile([0, 1, 2], 2), 3)
    assert remax(rewards, valid, group, greedy).tolist() == [0.0, 0.0, 0.0, 0.5, -0.5, 0.0]


def test_the_baseline_of_a_greedy_rollout_with_several_branches_is_the_mean_of_its_valid_ones() -> None:
    rewards, valid = np.array([2.0, 0.0, 1.0, math.nan]), np.array([True, True, True, False])
    assert remax(rewards, valid, np.zeros(4, np.int64), np.arange(4) > 0).tolist() == [1.5, 0.0, 0.0, 0.0]


@pytest.mark.parametrize("advantage", ["gdpo", "remax"])
def test_a_valid_number_that_is_not_finite_is_refused(advantage: str) -> None:
    two = np.arange(2)
    rows = JudgedRows(np.array([1.0, math.inf]), np.ones(2, bool), 0 * two, two + 2, two, np.full((2, 3), math.inf))
    with pytest.raises(NonFiniteError, match="row "):
        advantages_of(rows, configured(advantage))


@pytest.mark.parametrize("advantage", ["grpo", "opo", "reinforce_pp"])
def test_all_others_are_given_rewards_and_lengths_and_train_every_row(advantage: str) -> None:
    rows, config = ragged(5), configured(advantage)
    expected = advantage_of(advantage, rows.rewards_N, rows.valid_N, rows.group_N, rows.tokens_N)
    np.testing.assert_array_equal(advantages_of(rows, config), expected)
    assert not baseline_rows(rows.sample_index_N, config).any()


def test_the_last_sample_of_each_group_is_the_greedy_one() -> None:
    sample = np.array([0, 1, 2, 2, 0])
    assert baseline_rows(sample, configured("remax", group_size=3)).tolist() == [False, False, True, True, False]
