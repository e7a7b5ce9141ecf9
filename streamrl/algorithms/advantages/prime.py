"""PRIME: rewards of tokens that nobody labelled, and the advantages that they make with the outcomes of rows.

Source: Cui et al. 2025, Process reinforcement through implicit rewards (arXiv:2502.01456); Yuan et al. 2024, Free
process rewards without process labels. Pure functions; flat rows lie one after the other, and groups may be of any
size, and of different ones.
"""

from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F

from streamrl.algorithms.advantages.gae import gae
from streamrl.algorithms.advantages.groups import BoolArray, DoubleArray, groups_of
from streamrl.types import LongArray


class Baselines(NamedTuple):
    """means_N: float64 [N], the mean over the other rows of the group. compared_N: bool [N], whether there are others;
    where not, the mean is 0."""

    means_N: DoubleArray
    compared_N: BoolArray


def outcome_loss(log_ratios_R: torch.Tensor, outcomes_R: torch.Tensor, beta: float) -> torch.Tensor:
    """`-(o log sigmoid(h) + (1 - o) log sigmoid(-h))` with `h = beta * log_ratio`: float32 [R], the cross-entropy of a
    row's implicit reward against its outcome; differentiable.

    log_ratios_R: float32 [R], log-probs under the implicit reward model less those under the reference, summed over the
    tokens of a row. outcomes_R: float32 [R], from 0 to 1. (verl takes the log of a sigmoid, which is infinite where
    that is 0 in float32; here it is a log-sigmoid. It also has a form against the other answers of the group.)
    """
    return F.binary_cross_entropy_with_logits(beta * log_ratios_R, outcomes_R, reduction="none")


def leave_one_out(values_N: DoubleArray, counted_N: BoolArray, group_N: LongArray) -> Baselines:
    """The mean of the others of the group, for each row. values_N: float64 [N], ignored where not `counted_N`, bool
    [N]. group_N: int64 [N]. Raises NonFiniteError for a counted value that is not finite."""
    groups = groups_of(values_N, counted_N, group_N)
    others_N = groups.count_G[groups.place_N] - 1.0
    sums_N = groups.sum_G(groups.rewards_N)[groups.place_N] - groups.rewards_N
    compared_N = counted_N & (others_N > 0.0)
    return Baselines(np.where(compared_N, sums_N / np.maximum(others_N, 1.0), 0.0), compared_N)


def process_advantages(rewards_K: DoubleArray, offsets: LongArray, baselines: Baselines, gamma: float) -> DoubleArray:
    """`sum over s >= t of gamma^(s - t) (r_s - b)` within each row, b being the row's baseline: the mean over the other
    rows of the group of the mean reward of their tokens. 0 for a row without others. float64 [K].

    rewards_K: float64 [K], of trained tokens. offsets: int64 [R + 1], row i owns offsets[i]:offsets[i + 1]. baselines:
    of these rows. Source: equation 5 of Cui et al. (The authors' code in verl takes `n / (n - 1)` times the reward less
    the sum of all n means over n - 1: for a token whose reward is its row's mean that is the same; every other one
    counts by `n / (n - 1)` of how far it is from it.)
    """
    lengths_R = np.diff(offsets)
    centred_K = rewards_K - np.repeat(baselines.means_N, lengths_R)
    ones_R = np.ones(len(lengths_R))
    found = gae(
        np.where(np.repeat(baselines.compared_N, lengths_R), centred_K, 0.0),
        np.zeros(len(rewards_K)),
        np.ones(len(rewards_K), np.bool_),
        offsets,
        gamma=gamma,
        policy_lambda_N=ones_R,
        value_lambda_N=ones_R,
    )
    return found.advantages_T
