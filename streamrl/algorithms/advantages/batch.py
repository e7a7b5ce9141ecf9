"""Advantages that also depend on how long rows are: baselines by length, and whitening over the tokens of the batch.

Each function has the signature `(rewards_N, valid_N, group_N, tokens_N, counted_N) -> advantages_N` and is pure.
tokens_N is int64 [N], the sampled tokens of each row. counted_N is bool [N], the rows that are trained, None for all
valid ones: one that is valid and not trained has its part in the baseline of its group, and none in what is whitened.
Failed rows are as in `advantages`. The reward of a row stands at its end and nothing is discounted, so the return to go
is the row's reward at every token, and one number for each row says it all.

Whitening is over the whole batch, never over a part of it: these run where all rewards of a step are.
"""

from collections.abc import Callable

import numpy as np

from streamrl.algorithms.advantages.groups import BoolArray, DoubleArray, groups_of
from streamrl.types import LongArray

WHITEN_EPS = 1e-8
"""Added to the variance, as in verl and OpenRLHF."""


def opo(
    rewards_N: DoubleArray,
    valid_N: BoolArray,
    group_N: LongArray,
    tokens_N: LongArray,
    counted_N: BoolArray | None = None,
) -> DoubleArray:
    """`r - sum(tokens * r) / sum(tokens)` over the group: the baseline of least variance, if a row's squared gradient
    grows with its length. Source: Hao et al. 2025, On-policy RL with optimal reward baseline; as in verl.

    rewards_N: float64 [N], ignored where not valid. valid_N: bool [N]. group_N: int64 [N]. counted_N has no part, since
    nothing is whitened. Returns float64 [N]; 0 for groups of equal rewards and for single rows (verl gives a row alone
    its score). Raises NonFiniteError for a valid reward that is not finite.
    """
    groups = groups_of(rewards_N, valid_N, group_N)
    weights_N = np.where(valid_N, tokens_N, 0).astype(np.float64)
    baseline_G = groups.sum_G(weights_N * groups.rewards_N) / np.maximum(groups.sum_G(weights_N), 1.0)
    return groups.less(baseline_G)


def reinforce_pp(
    rewards_N: DoubleArray,
    valid_N: BoolArray,
    group_N: LongArray,
    tokens_N: LongArray,
    counted_N: BoolArray | None = None,
) -> DoubleArray:
    """`whiten(r)` over the tokens of the batch; the group has no part, so groups may be of one row. Source: Hu et al.
    2025, REINFORCE++; as in verl and OpenRLHF. Arguments and errors as `opo`.

    A batch of equal rewards gets exactly 0. With `kl_in = "reward"` the reward of a row is lower by the divergence of
    all its tokens; in verl and OpenRLHF each token pays its own, so the return to go has only what comes behind it.
    """
    return whiten(groups_of(rewards_N, valid_N, group_N).rewards_N, valid_N, tokens_N, counted_N)


def reinforce_pp_baseline(
    rewards_N: DoubleArray,
    valid_N: BoolArray,
    group_N: LongArray,
    tokens_N: LongArray,
    counted_N: BoolArray | None = None,
    *,
    recentre: bool = True,
) -> DoubleArray:
    """`whiten(r - mean(group))` over the tokens of the batch. Source: Hu et al. 2025, REINFORCE++ with baseline; as in
    verl and OpenRLHF. Arguments and errors as `opo`.

    The mean over tokens of what has a group mean of 0 is 0 only if all rows are as long. So a group of equal rewards
    gets a small advantage that is not 0, and so does a row alone. `recentre = False` divides only, which leaves them
    at exactly 0; no peer does.
    """
    centred_N = groups_of(rewards_N, valid_N, group_N).centred()
    return whiten(centred_N, valid_N, tokens_N, counted_N, recentre=recentre)


def whiten(
    values_N: DoubleArray,
    valid_N: BoolArray,
    tokens_N: LongArray,
    counted_N: BoolArray | None = None,
    *,
    recentre: bool = True,
) -> DoubleArray:
    """`(x - mean) / sqrt(var + 1e-8)`, each row counted once for each of its tokens, var unbiased.

    Rows that are not valid, are not trained, or have no token, count nowhere and get 0. All 0 where the rest are equal,
    or one token (verl raises there). `recentre = False` gives `x / sqrt(var + 1e-8)`.
    """
    trained_N = valid_N & (tokens_N > 0)
    if counted_N is not None:
        trained_N &= counted_N
    counted = values_N[trained_N]
    if not len(counted) or counted.min() == counted.max():
        return np.zeros(len(values_N))
    weights = tokens_N[trained_N].astype(np.float64)
    total = weights.sum()
    mean = (weights * counted).sum() / total
    variance = (weights * (counted - mean) ** 2).sum() / (total - 1.0)
    shifted_N = values_N - mean if recentre else values_N
    whitened_N: DoubleArray = np.where(trained_N, shifted_N, 0.0) / np.sqrt(variance + WHITEN_EPS)
    return whitened_N


BATCH_ADVANTAGES: dict[str, Callable[[DoubleArray, BoolArray, LongArray, LongArray, BoolArray | None], DoubleArray]] = {
    "opo": opo,
    "reinforce_pp": reinforce_pp,
    "reinforce_pp_baseline": reinforce_pp_baseline,
}
