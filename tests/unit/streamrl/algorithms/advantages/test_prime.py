"""PRIME's formulas: against loops over single tokens in ragged groups of unequal size."""

import math

import numpy as np
import pytest
import torch

from streamrl.algorithms.advantages.outcome import advantage_of, rloo
from streamrl.algorithms.advantages.prime import Baselines, leave_one_out, outcome_loss, process_advantages
from streamrl.errors import ConfigError, NonFiniteError

SEEDS = range(12)


class Batch:
    """Rows of unequal length in groups of unequal size, one of them alone; some are not counted."""

    def __init__(self, seed: int) -> None:
        print(f"seed {seed}")
        random = np.random.default_rng(seed)
        self.group = np.append(random.integers(0, 5, random.integers(1, 20)) * 7, 99)
        self.counted = random.random(len(self.group)) > 0.2
        self.counted[-1] = True
        lengths = np.where(self.counted, random.integers(1, 9, len(self.group)), 0)
        self.offsets = np.concatenate([[0], np.cumsum(lengths)])
        self.rewards = random.normal(0.0, 0.3, self.offsets[-1])
        self.gamma = float(random.choice([1.0, 0.9, 0.0]))

    def of_row(self, row: int) -> list[float]:
        return self.rewards[self.offsets[row] : self.offsets[row + 1]].tolist()

    def mean(self, row: int) -> float:
        return math.fsum(self.of_row(row)) / len(self.of_row(row))

    def mates(self, row: int) -> list[int]:
        return [i for i, group in enumerate(self.group) if group == self.group[row] and self.counted[i] and i != row]

    def means(self) -> np.ndarray:
        return np.array([self.mean(row) if self.counted[row] else math.nan for row in range(len(self.group))])

    def advantages(self) -> np.ndarray:
        baselines = leave_one_out(self.means(), self.counted, self.group)
        return process_advantages(self.rewards, self.offsets, baselines, self.gamma)


@pytest.mark.parametrize("seed", SEEDS)
def test_token_rewards_less_the_mean_of_the_others_are_summed_to_the_end_of_the_row(seed: int) -> None:
    batch, expected = Batch(seed), []
    for row in range(len(batch.group)):
        mates, own = batch.mates(row), batch.of_row(row)
        baseline = math.fsum(batch.mean(mate) for mate in mates) / len(mates) if mates else 0.0
        for place in range(len(own)):
            terms = [batch.gamma ** (later - place) * (own[later] - baseline) for later in range(place, len(own))]
            expected.append(math.fsum(terms) if mates else 0.0)
    np.testing.assert_allclose(batch.advantages(), expected, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_rows_own_rewards_have_no_part_in_what_it_is_compared_with(seed: int) -> None:
    batch = Batch(seed)
    row = int(np.flatnonzero(batch.counted)[0])
    before = leave_one_out(batch.means(), batch.counted, batch.group)
    changed = batch.means()
    changed[row] += 3.0
    after = leave_one_out(changed, batch.counted, batch.group)
    assert after.means_N[row] == pytest.approx(before.means_N[row], abs=1e-12)
    for mate in batch.mates(row):
        assert after.means_N[mate] == pytest.approx(before.means_N[mate] + 3.0 / len(batch.mates(mate)))


def test_a_row_alone_and_one_that_is_not_counted_are_compared_with_nothing() -> None:
    means, counted = np.array([5.0, math.nan, 2.0]), np.array([True, False, True])
    found = leave_one_out(means, counted, np.array([1, 1, 2]))
    assert found.means_N.tolist() == [0.0, 0.0, 0.0]
    assert found.compared_N.tolist() == [False, False, False]
    rewards = np.array([1.0, 2.0])
    assert process_advantages(rewards, np.array([0, 1, 1, 2]), found, 1.0).tolist() == [0.0, 0.0]


def test_a_mean_that_is_not_finite_is_refused() -> None:
    with pytest.raises(NonFiniteError, match="row 1"):
        leave_one_out(np.array([1.0, math.nan]), np.ones(2, bool), np.zeros(2, np.int64))


def test_the_last_token_of_a_row_is_rewarded_and_a_discount_of_0_leaves_each_its_own() -> None:
    """verl's "token" granularity leaves the last one out."""
    nothing = Baselines(np.zeros(2), np.ones(2, np.bool_))
    rewards, offsets = np.array([1.0, 2.0, 4.0, 8.0]), np.array([0, 3, 4])
    assert process_advantages(rewards, offsets, nothing, 1.0).tolist() == [7.0, 6.0, 4.0, 8.0]
    assert process_advantages(rewards, offsets, nothing, 0.0).tolist() == rewards.tolist()


def test_the_loss_is_the_cross_entropy_of_the_sigmoid_with_its_gradient() -> None:
    generator = torch.Generator().manual_seed(3)
    ratios = torch.randn(40, generator=generator).double().mul(30.0).requires_grad_()
    outcomes = torch.rand(40, generator=generator).double().round(decimals=1)
    loss = outcome_loss(ratios, outcomes, 0.05)
    loss.sum().backward()
    chance = torch.sigmoid(0.05 * ratios.detach())
    expected = -(outcomes * chance.log() + (1.0 - outcomes) * (1.0 - chance).log())
    torch.testing.assert_close(loss.detach(), expected)
    torch.testing.assert_close(ratios.grad, 0.05 * (chance - outcomes))


def test_a_row_of_a_long_way_has_a_loss_that_is_finite_and_a_gradient() -> None:
    """The sigmoid is 0 in float32, and its log infinite."""
    ratios = torch.tensor([-4000.0, 4000.0], requires_grad=True)
    loss = outcome_loss(ratios, torch.tensor([1.0, 0.0]), 0.05)
    loss.sum().backward()
    assert loss.tolist() == [200.0, 200.0]
    assert ratios.grad.tolist() == pytest.approx([-0.05, 0.05])


@pytest.mark.parametrize("wrong", [-0.1, 1.5])
def test_an_outcome_that_is_no_probability_is_refused_with_the_way_out(wrong: float) -> None:
    rewards, tokens = np.array([1.0, wrong]), np.ones(2, np.int64)
    with pytest.raises(ConfigError, match=rf'row 1 \(group 7\) is {wrong}.*scale the rewards.*"rloo"'):
        advantage_of("prime", rewards, np.ones(2, bool), np.array([7, 7]), tokens)
    valid = np.array([True, False])
    assert advantage_of("prime", rewards, valid, np.array([7, 7]), tokens).tolist() == [0.0, 0.0]


def test_outcomes_are_judged_as_by_rloo() -> None:
    rewards, group = np.array([1.0, 0.0, 0.5, 0.0, 1.0]), np.array([0, 0, 0, 1, 1])
    got = advantage_of("prime", rewards, np.ones(5, bool), group, np.ones(5, np.int64))
    assert got.tolist() == rloo(rewards, np.ones(5, bool), group).tolist()
