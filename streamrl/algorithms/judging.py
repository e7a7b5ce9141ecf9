"""The estimator of advantages that a configuration names, over all that any of them may look at. Pure.

One place for the stream, the reference loop and the queries, so that they cannot differ.
"""

from dataclasses import dataclass, fields

import numpy as np

from streamrl.algorithms.advantages import advantage_of
from streamrl.algorithms.gdpo import gdpo
from streamrl.algorithms.groups import BoolArray, DoubleArray
from streamrl.algorithms.remax import greedy_rows, remax
from streamrl.config import Config
from streamrl.types import LongArray


@dataclass(frozen=True, slots=True)
class JudgedRows:
    """The rows of a whole batch. rewards_N: float64 [N], as shaped. valid_N: bool [N], whether there is a score.
    group_N, sample_index_N: int64 [N]. tokens_N: int64 [N], sampled tokens. components_NC: float64 [N, C], in the order
    of `learner.algorithm.components`; C is 0 where it names none. What is not valid is ignored in all of them."""

    rewards_N: DoubleArray
    valid_N: BoolArray
    group_N: LongArray
    sample_index_N: LongArray
    tokens_N: LongArray
    components_NC: DoubleArray

    def at(self, places: LongArray) -> "JudgedRows":
        """The rows at `places`, int64."""
        return JudgedRows(*(getattr(self, field.name)[places] for field in fields(self)))


def advantages_of(rows: JudgedRows, config: Config) -> DoubleArray:
    """float64 [N], by `learner.algorithm.advantage`. Errors are those of the estimator."""
    algorithm = config.learner.algorithm
    if algorithm.advantage == "gdpo":
        weights_C = np.array(algorithm.component_weights, np.float64)
        return gdpo(rows.components_NC, rows.valid_N, rows.group_N, rows.tokens_N, weights_C)
    if algorithm.advantage == "remax":
        return remax(rows.rewards_N, rows.valid_N, rows.group_N, baseline_rows(rows.sample_index_N, config))
    return advantage_of(algorithm.advantage, rows.rewards_N, rows.valid_N, rows.group_N, rows.tokens_N)


def baseline_rows(sample_index_N: LongArray, config: Config) -> BoolArray:
    """bool [N], rows that others are judged by and that are not trained themselves: the greedy ones of `remax`."""
    if not config.learner.algorithm.has_greedy_sample:
        return np.zeros(len(sample_index_N), np.bool_)
    return greedy_rows(sample_index_N, config.rollout.group_size)
