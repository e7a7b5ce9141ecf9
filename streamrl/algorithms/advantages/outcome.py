"""Advantages: how much better a rollout did than its group, or than its batch.

Each function of ADVANTAGES has the signature `(rewards_N, valid_N, group_N) -> advantages_N`, and each of
BATCH_ADVANTAGES (`batch_advantages`) takes the rows' tokens as well, and which rows are trained; all are pure.
Guarantees, whatever the estimator: a row whose score failed (`valid` False) has no part in any baseline and gets
exactly 0. Where the baseline is the group's: a group whose valid rewards are all equal gets exactly 0, also for values
such as seven times 0.1, whose mean is not exactly 0.1; so does a group with one valid row, which has nothing to be
compared with (`alone = "score"` gives it its score, as verl's GRPO and RLOO do; TRL gives 0). Knows nothing of tokens,
of order inside a group, or of group size: groups may be of any size, and of different ones.
"""

from collections.abc import Callable

import numpy as np

from streamrl.algorithms.advantages.batch import BATCH_ADVANTAGES
from streamrl.algorithms.advantages.groups import Alone, BoolArray, DoubleArray, groups_of
from streamrl.errors import ConfigError
from streamrl.types import LongArray

GRPO_EPS = 1e-6
"""verl's value; TRL adds 1e-4."""


def dr_grpo(rewards_N: DoubleArray, valid_N: BoolArray, group_N: LongArray, *, alone: Alone = "zero") -> DoubleArray:
    """`r - mean(group)`. Source: Liu et al. 2025, Understanding R1-Zero-like training (no division by the
    std).

    rewards_N: float64 [N], ignored where not valid. valid_N: bool [N]. group_N: int64 [N]. Returns float64
    [N]. Raises NonFiniteError for a valid reward that is not finite.
    """
    return groups_of(rewards_N, valid_N, group_N, alone).centred()


def grpo(
    rewards_N: DoubleArray, valid_N: BoolArray, group_N: LongArray, *, eps: float = GRPO_EPS, alone: Alone = "zero"
) -> DoubleArray:
    """`(r - mean(group)) / (std(group) + eps)`, std unbiased (n - 1). Source: Shao et al. 2024,
    DeepSeekMath; std as in verl 0.9 and TRL, eps of verl (TRL: 1e-4). A row alone has a std of 1 (verl). Arguments,
    result and errors as `dr_grpo`."""
    groups = groups_of(rewards_N, valid_N, group_N, alone)
    centred_N = groups.centred()
    std_G = np.sqrt(groups.sum_G(centred_N**2) / np.maximum(groups.count_G - 1.0, 1.0))
    std_G = np.where(groups.count_G == 1.0, 1.0, std_G)
    return centred_N / (std_G[groups.place_N] + eps)


def rloo(rewards_N: DoubleArray, valid_N: BoolArray, group_N: LongArray, *, alone: Alone = "zero") -> DoubleArray:
    """`r - mean(the other rows of the group)`, which is `n / (n - 1) * (r - mean(group))`. Source: Ahmadian
    et al. 2024, Back to basics. Arguments, result and errors as `dr_grpo`. (verl's vectorised form gives 0 to a row
    alone, its other one the score.)"""
    groups = groups_of(rewards_N, valid_N, group_N, alone)
    scale_G = groups.count_G / np.maximum(groups.count_G - 1.0, 1.0)
    return groups.centred() * scale_G[groups.place_N]


def maxrl(rewards_N: DoubleArray, valid_N: BoolArray, group_N: LongArray) -> DoubleArray:
    """`(r - mean(group)) / mean(group)`: the gradient of the log of the success rate, to the order of the group's size.
    Source: Tajwar et al. 2026, Maximum likelihood reinforcement learning (arXiv:2602.02710); as in prime-rl.

    Arguments, result and errors as `dr_grpo`. Raises ConfigError for a negative reward, under which the sign of the
    advantage would depend on the others'; prime-rl gives 0 to a group whose mean is not above 0, and takes the rest.
    """
    groups = groups_of(rewards_N, valid_N, group_N)
    below_N = groups.rewards_N < 0.0
    if below_N.any():
        row = int(np.flatnonzero(below_N)[0])
        raise ConfigError(
            f'the reward of row {row} (group {int(group_N[row])}) is {rewards_N[row]}, and "maxrl" divides by the '
            'mean of rewards that are at least 0; shift the rewards, or set learner.algorithm.advantage = "grpo"'
        )
    return groups.centred() / np.where(groups.varied_G, groups.mean_G, 1.0)[groups.place_N]


def prime(rewards_N: DoubleArray, valid_N: BoolArray, group_N: LongArray) -> DoubleArray:
    """`rloo`, of rewards that are outcomes: the part of PRIME's advantages that all tokens of a row share. What each
    token adds is `streamrl.algorithms.advantages.prime`'s. Arguments, result and errors as `dr_grpo`. Raises
    ConfigError for a reward that is not from 0 to 1, which no implicit reward model can learn."""
    wrong_N = valid_N & ((rewards_N < 0.0) | (rewards_N > 1.0)) & np.isfinite(rewards_N)
    if wrong_N.any():
        row = int(np.flatnonzero(wrong_N)[0])
        raise ConfigError(
            f'the reward of row {row} (group {int(group_N[row])}) is {rewards_N[row]}, and "prime" learns rewards from '
            "0 to 1, as the probability that a row is right; scale the rewards, or set learner.algorithm.advantage = "
            '"rloo"'
        )
    return rloo(rewards_N, valid_N, group_N)


def by_token(rewards_N: DoubleArray, valid_N: BoolArray, group_N: LongArray) -> DoubleArray:
    """0 for every row, since each of its tokens gets an advantage of its own (`gae`). Arguments and errors as
    `dr_grpo`."""
    return np.zeros_like(groups_of(rewards_N, valid_N, group_N).rewards_N)


ADVANTAGES: dict[str, Callable[[DoubleArray, BoolArray, LongArray], DoubleArray]] = {
    "grpo": grpo,
    "dr_grpo": dr_grpo,
    "rloo": rloo,
    "maxrl": maxrl,
    "gae": by_token,
    "prime": prime,
}


def advantage_of(
    name: str,
    rewards_N: DoubleArray,
    valid_N: BoolArray,
    group_N: LongArray,
    tokens_N: LongArray,
    counted_N: BoolArray | None = None,
) -> DoubleArray:
    """float64 [N], by the estimator of that name. tokens_N: int64 [N], sampled tokens of each row. counted_N: bool [N],
    the rows that are trained; None for all that are valid."""
    if name in BATCH_ADVANTAGES:
        return BATCH_ADVANTAGES[name](rewards_N, valid_N, group_N, tokens_N, counted_N)
    return ADVANTAGES[name](rewards_N, valid_N, group_N)
