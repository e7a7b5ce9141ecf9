"""Rollouts that come to the end of their budget: the soft punishment, and rows that are cut off."""

import msgspec
import numpy as np
import pytest
from support.learner.small_lease import lease
from support.queue.small_index import LENGTH, STOP, Order, accept, queue_settings, score

from streamrl.algorithms.advantages.outcome import advantage_of
from streamrl.algorithms.advantages.overlong import overlong_penalty
from streamrl.buffers.index.replay_index import ReplayIndex
from streamrl.clock import VirtualClock
from streamrl.config import Config
from streamrl.config.schema.algorithm import AlgorithmConfig
from streamrl.config.schema.learner import FilterConfig, LearnerConfig, OverlongConfig
from streamrl.config.schema.rollout import RolloutConfig, SamplingConfig
from streamrl.errors import ComponentError
from streamrl.services.learner.step_plan import make_plan, penalised, shares_of


def configured(**overlong) -> Config:
    rollout = RolloutConfig(sampling=SamplingConfig(max_new_tokens=16))
    return Config(rollout=rollout, learner=LearnerConfig(overlong=OverlongConfig(**overlong)))


def test_the_punishment_is_that_of_a_loop_over_the_papers_three_cases():
    seed = int(np.random.SeedSequence().entropy % 2**32)
    print(f"seed {seed}")
    random = np.random.default_rng(seed)
    for _ in range(50):
        budget = int(random.integers(1, 200))
        buffer, penalty = int(random.integers(1, budget + 1)), float(random.uniform(0.1, 3.0))
        tokens = random.integers(0, budget + 20, 30)
        expected = []
        for length in tokens.tolist():
            if length <= budget - buffer:
                expected.append(0.0)
            elif length <= budget:
                expected.append(penalty * ((budget - buffer) - length) / buffer)
            else:
                expected.append(-penalty)
        np.testing.assert_allclose(overlong_penalty(tokens, budget, buffer, penalty), expected, atol=1e-12)


def test_advantages_are_of_the_punished_rewards_which_the_plan_has():
    given, config = lease(rows=24, seed=3), configured(buffer=8, penalty=0.5)
    plan = make_plan(given, config, hidden_size=64)
    punished = given.rewards + overlong_penalty(given.sampled_tokens, 16, 8, 0.5)
    expected = advantage_of("grpo", punished, given.valid, given.group, given.sampled_tokens)
    np.testing.assert_array_equal(np.frombuffer(plan.advantages), expected)
    np.testing.assert_array_equal(np.frombuffer(plan.rewards), punished)
    plain = make_plan(given, configured(), hidden_size=64)
    assert plan.advantages != plain.advantages
    assert (plan.total_tokens, plan.total_rows) == (plain.total_tokens, plain.total_rows)


def test_a_row_that_was_cut_off_is_in_no_denominator_and_is_not_trained_but_in_the_baseline():
    given = lease(rows=24, seed=3)
    plan = make_plan(given, configured(mask_truncated=True), hidden_size=64)
    plain = make_plan(given, configured(), hidden_size=64)
    kept = given.valid & ~given.truncated
    assert (given.valid & given.truncated).any()
    assert plan.total_tokens == [given.sampled_tokens[kept].sum()] < plain.total_tokens
    assert plan.total_rows == [(kept & (given.sampled_tokens > 0)).sum()] < plain.total_rows
    ((share,),) = shares_of(plan, 0, configured())
    np.testing.assert_array_equal(share.valid, kept)
    assert plan.advantages == plain.advantages


@pytest.mark.parametrize("advantage", ["reinforce_pp", "reinforce_pp_baseline"])
def test_a_row_that_was_cut_off_is_not_in_the_whitening_whatever_the_rewards_pay(advantage):
    given, plain = lease(rows=24, seed=3), configured(mask_truncated=True)
    learner = msgspec.structs.replace(plain.learner, algorithm=AlgorithmConfig(advantage=advantage))
    plan = make_plan(given, msgspec.structs.replace(plain, learner=learner), hidden_size=64)
    tokens, kept = given.sampled_tokens, given.valid & ~given.truncated
    advantages = np.frombuffer(plan.advantages)
    assert (advantages[given.truncated] == 0.0).all()
    assert (tokens * advantages)[kept].sum() == pytest.approx(0.0, abs=1e-9)
    assert (tokens * advantages**2)[kept].sum() == pytest.approx(tokens[kept].sum() - 1, rel=1e-6)
    # Of rewards that pay nothing they are the same: the divergence is taken off where the plan has been made.
    assert penalised(plan, np.zeros(24), advantage).advantages == plan.advantages


def make_index(**settings) -> ReplayIndex:
    return ReplayIndex(msgspec.structs.replace(queue_settings(groups_per_step=1), **settings), Order(), VirtualClock())


def test_the_lease_says_which_rows_were_cut_off():
    index = make_index()
    index.issue("r", 0, 1)
    accept(index, [(0, 1)], finish=LENGTH)
    accept(index, [(0, 0)], finish=STOP)
    score(index, [(0, 0), (0, 1)])
    assert index.lease(0).truncated.tolist() == [False, True]


@pytest.mark.parametrize("masked", [False, True])
def test_a_group_that_was_cut_off_as_a_whole_is_dropped_only_where_such_rows_are_not_trained(masked):
    index = make_index(mask_truncated=masked, filter=FilterConfig(limit=1))
    index.issue("r", 0, 1)
    accept(index, [(0, 0), (0, 1)], finish=LENGTH)
    score(index, [(0, 0), (0, 1)])
    assert index.counts().groups_dropped == ({"truncated": 1} if masked else {})
    if masked:
        with pytest.raises(ComponentError, match=r"truncated, .* raise rollout.sampling.max_new_tokens"):
            index.lease(0)
