"""ReMax: a rollout is judged against what the policy answers when it takes the likeliest token each time. Pure.

Of each group one sample is generated greedily, the last one, and is the others' baseline. It was not drawn from the
policy that is trained, so it is not trained itself: its advantage is 0, and whoever counts rows and tokens for a
denominator leaves it out.
"""

import numpy as np

from streamrl.algorithms.advantages.groups import BoolArray, DoubleArray, groups_of
from streamrl.types import LongArray


def greedy_rows(sample_index_N: LongArray, group_size: int) -> BoolArray:
    """bool [N], the rows of the samples that are generated greedily: the last of `group_size`."""
    greedy_N: BoolArray = sample_index_N == group_size - 1
    return greedy_N


def remax(rewards_N: DoubleArray, valid_N: BoolArray, group_N: LongArray, greedy_N: BoolArray) -> DoubleArray:
    """`r - r(greedy rollout of the same prompt)`. Source: Li et al. 2023, ReMax (arXiv:2310.10505); as in verl, where
    the greedy rollout comes beside the group and not out of it.

    rewards_N: float64 [N], ignored where not valid. valid_N, greedy_N: bool [N]. group_N: int64 [N]. Returns float64
    [N]; 0 for greedy rows, and for all rows of a group whose greedy rollout has no valid score: without a baseline
    there is nothing to compare with. Where a greedy rollout has several rows (branches), the baseline is the mean of
    those that are valid. Raises NonFiniteError for a valid reward that is not finite.
    """
    baseline = groups_of(rewards_N, valid_N & greedy_N, group_N)
    judged_N = valid_N & ~greedy_N & (baseline.count_G > 0.0)[baseline.place_N]
    own_N = groups_of(rewards_N, valid_N, group_N).rewards_N
    return np.where(judged_N, own_N - baseline.mean_G[baseline.place_N], 0.0)
