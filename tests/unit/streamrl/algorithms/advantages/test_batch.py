"""Estimators that look at lengths, at components, or at values: against plain loops over lists, one row at a time."""

import itertools
import math
import statistics

import numpy as np
import pytest

from streamrl.algorithms.advantages.batch import BATCH_ADVANTAGES, opo, reinforce_pp, reinforce_pp_baseline, whiten
from streamrl.algorithms.advantages.gae import gae, length_adaptive_lambda
from streamrl.algorithms.advantages.gdpo import gdpo
from streamrl.algorithms.advantages.outcome import ADVANTAGES, GRPO_EPS, advantage_of, dr_grpo, grpo, maxrl, rloo
from streamrl.config.schema.fields import leaves, literals
from streamrl.errors import ConfigError, NonFiniteError

SEEDS = range(12)


class Batch:
    """Ragged groups with failures, rows without a token, groups of one; rewards from a few values, so that some are
    equal."""

    def __init__(self, seed: int, *, least: float = -1.0) -> None:
        print(f"seed {seed}")
        random = np.random.default_rng(seed)
        rows = int(random.integers(1, 30))
        self.rewards = np.round(random.uniform(least, 2.0, rows), 1)
        self.valid = random.random(rows) > 0.2
        self.groups = random.integers(0, 6, rows) * 11
        self.tokens = random.integers(0, 9, rows)
        self.rewards[~self.valid] = math.nan

    def mates(self, row: int) -> list[int]:
        return [i for i, group in enumerate(self.groups) if group == self.groups[row] and self.valid[i]]

    def mate_rewards(self, row: int) -> list[float]:
        return [float(self.rewards[i]) for i in self.mates(row)]

    def centred(self, row: int) -> float:
        mates = self.mate_rewards(row)
        if not self.valid[row] or len(set(mates)) < 2:
            return 0.0
        return float(self.rewards[row]) - statistics.fmean(mates)

    def arrays(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        return self.rewards, self.valid, self.groups, self.tokens


def slow_whiten(values: list[float], valid: np.ndarray, tokens: np.ndarray, *, recentre: bool = True) -> list[float]:
    """Over a list with one entry for each token."""
    flat = [value for value, ok, n in zip(values, valid, tokens, strict=True) if ok for _ in range(n)]
    if len(set(flat)) < 2:
        return [0.0] * len(values)
    mean = statistics.fmean(flat)
    scale = 1.0 / math.sqrt(statistics.variance(flat, mean) + 1e-8)
    shift = mean if recentre else 0.0
    return [(v - shift) * scale if ok and n else 0.0 for v, ok, n in zip(values, valid, tokens, strict=True)]


@pytest.mark.parametrize("seed", SEEDS)
def test_opo_subtracts_the_mean_weighted_by_length(seed: int) -> None:
    batch = Batch(seed)
    expected = []
    for row in range(len(batch.rewards)):
        mates = batch.mates(row)
        if not batch.valid[row] or len(set(batch.mate_rewards(row))) < 2:
            expected.append(0.0)
            continue
        weight = sum(int(batch.tokens[i]) for i in mates)
        baseline = math.fsum(batch.tokens[i] * batch.rewards[i] for i in mates) / max(weight, 1)
        expected.append(batch.rewards[row] - baseline)
    np.testing.assert_allclose(opo(*batch.arrays()), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("seed", SEEDS)
def test_reinforce_pp_whitens_rewards_over_the_tokens_of_the_batch(seed: int) -> None:
    batch = Batch(seed)
    expected = slow_whiten(np.nan_to_num(batch.rewards).tolist(), batch.valid, batch.tokens)
    np.testing.assert_allclose(reinforce_pp(*batch.arrays()), expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("recentre", [True, False])
@pytest.mark.parametrize("seed", SEEDS)
def test_its_baseline_form_whitens_what_is_left_after_the_group_mean(seed: int, recentre: bool) -> None:
    batch = Batch(seed)
    centred = [batch.centred(row) for row in range(len(batch.rewards))]
    expected = slow_whiten(centred, batch.valid, batch.tokens, recentre=recentre)
    got = reinforce_pp_baseline(*batch.arrays(), recentre=recentre)
    np.testing.assert_allclose(got, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("seed", SEEDS)
def test_maxrl_divides_by_the_group_mean(seed: int) -> None:
    batch = Batch(seed, least=0.0)
    expected = []
    for row in range(len(batch.rewards)):
        centred = batch.centred(row)
        expected.append(centred / statistics.fmean(batch.mate_rewards(row)) if centred else 0.0)
    np.testing.assert_allclose(maxrl(*batch.arrays()[:3]), expected, rtol=1e-9, atol=1e-12)


def test_maxrl_refuses_a_reward_below_zero_with_the_way_out() -> None:
    with pytest.raises(ConfigError, match=r'row 1 \(group 7\) is -0\.5.*"grpo"'):
        maxrl(np.array([1.0, -0.5]), np.ones(2, bool), np.array([7, 7]))


def test_maxrl_weighs_a_rare_success_by_one_over_its_rate_and_a_group_without_one_by_nothing() -> None:
    rewards, groups = np.array([1.0, 0, 0, 0, 0, 0, 0, 0]), np.repeat([0, 1], 4)
    assert maxrl(rewards, np.ones(8, bool), groups).tolist() == [3.0, -1.0, -1.0, -1.0, 0, 0, 0, 0]


@pytest.mark.parametrize("seed", SEEDS)
def test_gdpo_normalises_each_component_by_itself_and_then_whitens(seed: int) -> None:
    batch, random = Batch(seed), np.random.default_rng(seed + 1000)
    components = np.round(random.uniform(-1, 1, (len(batch.rewards), 3)) * [1, 10, 100], 1)
    weights, summed = np.array([0.5, 2.0, 0.0]), []
    for row in range(len(components)):
        total = 0.0
        for column, weight in enumerate(weights):
            mates = [float(components[i, column]) for i in batch.mates(row)]
            if batch.valid[row] and len(set(mates)) > 1:
                scale = statistics.stdev(mates) + GRPO_EPS
                total += weight * (components[row, column] - statistics.fmean(mates)) / scale
        summed.append(total)
    arguments = components, batch.valid, batch.groups, batch.tokens, weights
    np.testing.assert_allclose(gdpo(*arguments, whitened=False), summed, rtol=1e-9, atol=1e-12)
    expected = slow_whiten(summed, batch.valid, batch.tokens)
    np.testing.assert_allclose(gdpo(*arguments), expected, rtol=1e-8, atol=1e-8)


def test_a_large_component_does_not_drown_a_small_one() -> None:
    components = np.array([[0.0, 1000.0], [1.0, 0.0], [0.0, 1000.0], [1.0, 0.0]])
    ones = np.ones(4, np.int64)
    got = gdpo(components, np.ones(4, bool), 0 * ones, ones, np.ones(2), whitened=False)
    np.testing.assert_allclose(got, 0.0, atol=1e-5)


@pytest.mark.parametrize("name", sorted(BATCH_ADVANTAGES))
@pytest.mark.parametrize(("count", "value"), [(7, 0.1), (6, 0.7), (8, 1.0)])
def test_a_batch_of_equal_rewards_gets_exactly_zero(name: str, count: int, value: float) -> None:
    ones = np.ones(count, np.int64)
    got = advantage_of(name, np.full(count, value), np.ones(count, bool), 0 * ones, np.arange(count) + 1)
    assert (got == 0.0).all()


@pytest.mark.parametrize("name", sorted({**ADVANTAGES, **BATCH_ADVANTAGES}))
def test_a_failed_row_gets_zero_and_changes_no_other(name: str) -> None:
    rewards, tokens = np.array([1.0, 0.25, math.nan, 0.5]), np.array([3, 1, 5, 2])
    valid, groups = np.array([True, True, False, True]), np.zeros(4, np.int64)
    got = advantage_of(name, rewards, valid, groups, tokens)
    kept = np.flatnonzero(valid)
    assert got[2] == 0.0
    np.testing.assert_array_equal(got[kept], advantage_of(name, rewards[kept], valid[kept], groups[kept], tokens[kept]))


@pytest.mark.parametrize("name", sorted({**ADVANTAGES, **BATCH_ADVANTAGES}))
def test_no_rows_and_no_valid_row_give_zeros(name: str) -> None:
    nothing = np.zeros(0, np.int64)
    assert len(advantage_of(name, np.zeros(0), np.zeros(0, bool), nothing, nothing)) == 0
    two = np.arange(2)
    assert advantage_of(name, np.full(2, math.nan), np.zeros(2, bool), two, two).tolist() == [0.0, 0.0]


@pytest.mark.parametrize("name", sorted({**ADVANTAGES, **BATCH_ADVANTAGES}))
def test_a_valid_reward_that_is_not_finite_is_refused(name: str) -> None:
    ones = np.ones(2, np.int64)
    with pytest.raises(NonFiniteError, match="row 1"):
        advantage_of(name, np.array([1.0, math.inf]), np.ones(2, bool), ones, ones)


def test_every_estimator_of_the_tables_can_be_configured_and_no_other() -> None:
    (leaf,) = (leaf for leaf in leaves() if leaf.name == "learner.algorithm.advantage")
    # The two of `judging` look at more than rewards and lengths.
    assert sorted(literals(leaf.type)) == sorted({**ADVANTAGES, **BATCH_ADVANTAGES, "gdpo": None, "remax": None})


def test_a_group_of_equal_rewards_learns_a_little_from_the_others_where_the_batch_is_recentred() -> None:
    """The form that verl and OpenRLHF have, and the one that leaves such a group alone."""
    rewards, groups = np.array([0.1] * 7 + [1.0, 0.0]), np.array([0] * 7 + [1, 1])
    tokens = np.array([2] * 7 + [5, 1])
    arguments = rewards, np.ones(9, bool), groups, tokens
    assert (np.abs(reinforce_pp_baseline(*arguments)[:7]) > 1e-3).all()
    assert (reinforce_pp_baseline(*arguments, recentre=False)[:7] == 0.0).all()


def test_whitening_a_part_of_the_batch_is_another_thing_than_whitening_the_batch() -> None:
    values, valid, tokens = np.array([0.0, 1.0, 5.0, 9.0]), np.ones(4, bool), np.array([1, 2, 3, 4])
    parts = [whiten(values[part], valid[part], tokens[part]) for part in (slice(0, 2), slice(2, 4))]
    assert not np.allclose(np.concatenate(parts), whiten(values, valid, tokens))


@pytest.mark.parametrize(("estimator", "score"), [(grpo, 5.0 / (1.0 + GRPO_EPS)), (dr_grpo, 5.0), (rloo, 5.0)])
def test_a_row_alone_gets_nothing_or_its_score(estimator, score: float) -> None:
    rewards, valid, groups = np.array([5.0, math.nan, 1.0, 2.0]), np.array([True, False, True, True]), [0, 0, 1, 1]
    zero = estimator(rewards, valid, np.array(groups))
    given = estimator(rewards, valid, np.array(groups), alone="score")
    assert (zero[0], given[0]) == (0.0, pytest.approx(score))
    np.testing.assert_array_equal(zero[1:], given[1:])


def test_the_eps_of_the_two_peers() -> None:
    rewards, ones = np.array([1.0, 0.0]), np.ones(2, bool)
    std = math.sqrt(0.5)
    for eps in (1e-6, 1e-4):
        assert grpo(rewards, ones, np.zeros(2, np.int64), eps=eps)[0] == pytest.approx(0.5 / (std + eps), rel=1e-12)


def slow_gae(
    rewards: list[float], values: list[float], trained: list[bool], gamma: float, policy: float, value: float
) -> tuple[list[float], list[float]]:
    """One row, from its end; a reward at a skipped token waits for the trained one before it."""
    advantages, returns = [0.0] * len(rewards), [0.0] * len(rewards)
    behind, next_value, for_policy, for_value = 0.0, 0.0, 0.0, 0.0
    for t in reversed(range(len(rewards))):
        behind += rewards[t]
        if not trained[t]:
            continue
        error = behind + gamma * next_value - values[t]
        for_policy, for_value = error + gamma * policy * for_policy, error + gamma * value * for_value
        advantages[t], returns[t] = for_policy, for_value + values[t]
        behind, next_value = 0.0, values[t]
    return advantages, returns


@pytest.mark.parametrize("seed", SEEDS)
def test_gae_matches_the_recursion_over_ragged_rows_with_turns_of_an_environment(seed: int) -> None:
    print(f"seed {seed}")
    random = np.random.default_rng(seed)
    lengths = random.integers(0, 9, int(random.integers(1, 8)))
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    count = int(offsets[-1])
    rewards, values, trained = random.normal(size=count), random.normal(size=count), random.random(count) > 0.4
    gamma, policy, value = 0.9, random.random(len(lengths)), random.random(len(lengths))
    got = gae(rewards, values, trained, offsets, gamma=gamma, policy_lambda_N=policy, value_lambda_N=value)
    for row, (start, end) in enumerate(itertools.pairwise(offsets)):
        part = slice(start, end)
        parts = rewards[part].tolist(), values[part].tolist(), trained[part].tolist()
        advantages, returns = slow_gae(*parts, gamma, policy[row], value[row])
        np.testing.assert_allclose(got.advantages_T[part], advantages, rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(got.returns_T[part], returns, rtol=1e-12, atol=1e-12)


def test_with_lambda_and_gamma_of_1_the_return_is_the_reward_to_come() -> None:
    rewards, ones = np.array([0.0, 0.0, 1.0]), np.ones(1)
    got = gae(
        rewards,
        np.array([0.3, 0.5, 0.2]),
        np.ones(3, bool),
        np.array([0, 3]),
        policy_lambda_N=ones,
        value_lambda_N=ones,
    )
    np.testing.assert_allclose(got.returns_T, 1.0)
    np.testing.assert_allclose(got.advantages_T, [0.7, 0.5, 0.8])


def test_the_lambdas_of_policy_and_values_are_apart() -> None:
    arguments = np.array([0.0, 1.0]), np.array([0.5, 0.25]), np.ones(2, bool), np.array([0, 2])
    got = gae(*arguments, policy_lambda_N=np.zeros(1), value_lambda_N=np.ones(1))
    np.testing.assert_allclose(got.advantages_T, [-0.25, 0.75])
    np.testing.assert_allclose(got.returns_T, [1.0, 1.0])


def test_lambda_grows_with_the_row_and_is_never_negative() -> None:
    got = length_adaptive_lambda(np.array([0, 1, 20, 40, 2000]))
    np.testing.assert_allclose(got, [0.0, 0.0, 0.0, 0.5, 0.99])
