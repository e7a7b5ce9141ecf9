"""The estimator of advantages that a configuration names, over all that any of them may look at. Pure.

One place for the stream, the reference loop and the queries, so that they cannot differ.
"""

from dataclasses import dataclass, fields

import numpy as np

from streamrl.algorithms.advantages.gdpo import gdpo
from streamrl.algorithms.advantages.groups import BoolArray, DoubleArray
from streamrl.algorithms.advantages.outcome import advantage_of
from streamrl.algorithms.advantages.overlong import overlong_penalty
from streamrl.algorithms.advantages.remax import greedy_rows, remax
from streamrl.config import Config
from streamrl.config.rules.learner.algorithm import TEACHER_LOSSES
from streamrl.types import LongArray


@dataclass(frozen=True, slots=True)
class RewardedRows:
    """The rows of a whole batch. rewards_N: float64 [N], as they were given. valid_N: bool [N], whether there is a
    score. group_N, sample_index_N: int64 [N]. tokens_N: int64 [N], sampled tokens. components_NC: float64 [N, C], in
    the order of `learner.algorithm.components`; C is 0 where it names none. truncated_N: bool [N], whether it was cut
    off for its length. What is not valid is ignored in all of them."""

    rewards_N: DoubleArray
    valid_N: BoolArray
    group_N: LongArray
    sample_index_N: LongArray
    tokens_N: LongArray
    components_NC: DoubleArray
    truncated_N: BoolArray

    def at(self, places: LongArray) -> "RewardedRows":
        """The rows at `places`, int64."""
        return RewardedRows(*(getattr(self, field.name)[places] for field in fields(self)))


def advantages_of(rows: RewardedRows, config: Config) -> DoubleArray:
    """float64 [N], by `learner.algorithm.advantage`, of the rewards as `learner.overlong` shapes them. Errors are those
    of the estimator."""
    algorithm, counted_N = config.learner.algorithm, counted_rows(rows, config)
    if algorithm.advantage == "gdpo":
        weights_C = np.array(algorithm.component_weights, np.float64)
        return gdpo(rows.components_NC, rows.valid_N, rows.group_N, rows.tokens_N, weights_C, counted_N)
    rewards_N = shaped_rewards(rows, config)
    if algorithm.advantage == "remax":
        return remax(rewards_N, rows.valid_N, rows.group_N, baseline_rows(rows.sample_index_N, config))
    return advantage_of(algorithm.advantage, rewards_N, rows.valid_N, rows.group_N, rows.tokens_N, counted_N)


def shaped_rewards(rows: RewardedRows, config: Config) -> DoubleArray:
    """float64 [N], the rewards that advantages are made of."""
    return rows.rewards_N + length_penalties(rows.tokens_N, config)


def length_penalties(tokens_N: LongArray, config: Config) -> DoubleArray:
    """float64 [N], what `learner.overlong` adds to a reward. tokens_N: int64 [N], sampled tokens."""
    overlong, budget = config.learner.overlong, config.rollout.sampling.max_new_tokens
    if not overlong.buffer:
        return np.zeros(len(tokens_N))
    return overlong_penalty(tokens_N, budget, overlong.buffer, overlong.penalty)


def counted_rows(rows: RewardedRows, config: Config) -> BoolArray:
    """bool [N], rows that are trained: in the loss, its denominators and what is whitened. Of the others, those that
    have no score are in nothing; those that are only compared with (`remax`), and those that were cut off where
    `learner.overlong.mask_truncated` leaves them out, are in the baselines."""
    counted_N = rows.valid_N & ~baseline_rows(rows.sample_index_N, config)
    return counted_N & ~rows.truncated_N if config.learner.overlong.mask_truncated else counted_N


def advantages_from_rows_alone(config: Config) -> bool:
    """Whether `advantages_of` is what rows are trained with: no second model judges their tokens, no divergence is
    paid of their rewards, and no teacher takes the place of advantages."""
    algorithm = config.learner.algorithm
    return not (algorithm.has_auxiliary_model or algorithm.kl_in_reward or algorithm.loss in TEACHER_LOSSES)


def baseline_rows(sample_index_N: LongArray, config: Config) -> BoolArray:
    """bool [N], rows that others are judged by and that are not trained themselves: the greedy ones of `remax`."""
    if not config.learner.algorithm.has_greedy_sample:
        return np.zeros(len(sample_index_N), np.bool_)
    return greedy_rows(sample_index_N, config.rollout.group_size)
