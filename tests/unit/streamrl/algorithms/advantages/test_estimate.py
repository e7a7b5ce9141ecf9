"""The estimators that look at more than rewards, as a configuration chooses them: against loops over single rows."""

import math
import statistics

import numpy as np
import pytest

from streamrl.algorithms.advantages.estimate import RewardedRows, advantages_of, baseline_rows, counted_rows
from streamrl.algorithms.advantages.outcome import GRPO_EPS, advantage_of
from streamrl.algorithms.advantages.remax import greedy_rows, remax
from streamrl.config import Config
from streamrl.config.schema.algorithm import AlgorithmConfig
from streamrl.config.schema.learner import LearnerConfig, OverlongConfig
from streamrl.config.schema.rollout import RolloutConfig
from streamrl.errors import NonFiniteError

SEEDS = range(20)
WEIGHTS = {"correct": 1.0, "format": 0.2, "style": -3.0}


def configured(advantage: str, group_size: int = 4, *, masked: bool = False) -> Config:
    components = WEIGHTS if advantage == "gdpo" else None
    algorithm = AlgorithmConfig(advantage=advantage, components=components)
    learner = LearnerConfig(algorithm=algorithm, overlong=OverlongConfig(mask_truncated=masked))
    return Config(rollout=RolloutConfig(group_size=group_size), learner=learner)


def ragged(seed: int, group_size: int = 4) -> RewardedRows:
    """Groups of any number of samples, some of several branches, some without a greedy one; failures, rows without a
    token, rows that were cut off; rewards and components of few values, so that some are equal."""
    print(f"seed {seed}")
    random = np.random.default_rng(seed)
    rows = int(random.integers(1, 40))
    group, sample = random.integers(0, 7, rows) * 3, random.integers(0, group_size, rows)
    order = np.lexsort((sample, group))
    valid = random.random(rows) > 0.2
    rewards = np.where(valid, np.round(random.uniform(-1.0, 2.0, rows), 1), math.nan)
    components = np.round(random.uniform(-1, 1, (rows, len(WEIGHTS))) * [1, 10, 100])
    components[~valid] = math.nan
    tokens, truncated = random.integers(0, 9, rows), random.random(rows) < 0.3
    return RewardedRows(rewards, valid, group[order], sample[order], tokens, components, truncated)


def mates_of(rows: RewardedRows, row: int) -> list[int]:
    return [i for i in range(len(rows.group_N)) if rows.group_N[i] == rows.group_N[row] and rows.valid_N[i]]


@pytest.mark.parametrize("seed", SEEDS)
def test_remax_subtracts_the_reward_of_the_last_sample_and_gives_that_one_nothing(seed: int) -> None:
    rows, expected = ragged(seed), []
    for row in range(len(rows.rewards_N)):
        greedy = [float(rows.rewards_N[i]) for i in mates_of(rows, row) if rows.sample_index_N[i] == 3]
        learns = rows.valid_N[row] and rows.sample_index_N[row] != 3 and greedy
        expected.append(float(rows.rewards_N[row]) - statistics.fmean(greedy) if learns else 0.0)
    np.testing.assert_allclose(advantages_of(rows, configured("remax")), expected, rtol=1e-12, atol=1e-12)


def slow_whiten(values: list[float], rows: RewardedRows, *, masked: bool) -> list[float]:
    """Over a list with one entry for each token that is trained."""
    trained = [
        bool(rows.valid_N[row] and rows.tokens_N[row] and not (masked and rows.truncated_N[row]))
        for row in range(len(values))
    ]
    flat = [values[row] for row in range(len(values)) if trained[row] for _ in range(rows.tokens_N[row])]
    if len(set(flat)) < 2:
        return [0.0] * len(values)
    mean, deviation = statistics.fmean(flat), math.sqrt(statistics.variance(flat) + 1e-8)
    return [(value - mean) / deviation if counts else 0.0 for value, counts in zip(values, trained, strict=True)]


def slow_gdpo(rows: RewardedRows, *, masked: bool) -> list[float]:
    """Component by component, then whitened."""
    summed = []
    for row in range(len(rows.rewards_N)):
        total = 0.0
        for column, weight in enumerate(WEIGHTS.values()):
            mates = [float(rows.components_NC[i, column]) for i in mates_of(rows, row)]
            if rows.valid_N[row] and len(set(mates)) > 1:
                scale = statistics.stdev(mates) + GRPO_EPS
                total += weight * (float(rows.components_NC[row, column]) - statistics.fmean(mates)) / scale
        summed.append(total)
    return slow_whiten(summed, rows, masked=masked)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("seed", SEEDS)
def test_gdpo_weighs_the_normalised_components_in_the_order_of_the_configuration(seed: int, masked: bool) -> None:
    rows = ragged(seed)
    found = advantages_of(rows, configured("gdpo", masked=masked))
    np.testing.assert_allclose(found, slow_gdpo(rows, masked=masked), rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("advantage", ["reinforce_pp", "reinforce_pp_baseline"])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("seed", SEEDS)
def test_a_row_that_is_not_trained_is_in_the_baseline_and_not_in_the_whitening(
    seed: int, masked: bool, advantage: str
) -> None:
    rows, values = ragged(seed), []
    for row in range(len(rows.rewards_N)):
        mates = [float(rows.rewards_N[i]) for i in mates_of(rows, row)] if rows.valid_N[row] else []
        if advantage == "reinforce_pp":
            values.append(float(np.nan_to_num(rows.rewards_N[row])))
        else:
            values.append(float(rows.rewards_N[row]) - statistics.fmean(mates) if len(set(mates)) > 1 else 0.0)
    found = advantages_of(rows, configured(advantage, masked=masked))
    np.testing.assert_allclose(found, slow_whiten(values, rows, masked=masked), rtol=1e-8, atol=1e-8)


def test_the_baseline_by_length_has_the_rows_that_are_not_trained() -> None:
    rows = ragged(3)
    assert (rows.truncated_N & rows.valid_N & (rows.tokens_N > 0)).any()
    plain, masked = (advantages_of(rows, configured("opo", masked=masked)) for masked in (False, True))
    np.testing.assert_array_equal(plain, masked)


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
    rewards, components = np.array([1.0, math.inf]), np.full((2, 3), math.inf)
    rows = RewardedRows(rewards, np.ones(2, bool), 0 * two, two + 2, two, components, np.zeros(2, bool))
    with pytest.raises(NonFiniteError, match="row "):
        advantages_of(rows, configured(advantage))


@pytest.mark.parametrize("advantage", ["grpo", "opo", "reinforce_pp"])
def test_all_others_are_given_rewards_and_lengths_and_train_every_row(advantage: str) -> None:
    rows, config = ragged(5), configured(advantage)
    expected = advantage_of(advantage, rows.rewards_N, rows.valid_N, rows.group_N, rows.tokens_N)
    np.testing.assert_array_equal(advantages_of(rows, config), expected)
    assert not baseline_rows(rows.sample_index_N, config).any()
    np.testing.assert_array_equal(counted_rows(rows, config), rows.valid_N)


def test_the_last_sample_of_each_group_is_the_greedy_one() -> None:
    sample = np.array([0, 1, 2, 2, 0])
    assert baseline_rows(sample, configured("remax", group_size=3)).tolist() == [False, False, True, True, False]
