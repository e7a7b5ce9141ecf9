"""Generalised advantage estimation over ragged rows: what a critic's values make of rewards.

Pure functions. Rows are flat, one after the other; tokens that were not sampled (a prompt, an environment's answer) are
passed over: the token after them is the next one of the token before them, and neither gamma nor lambda counts them.
"""

from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from streamrl.algorithms.advantages.groups import BoolArray, DoubleArray
from streamrl.types import LongArray

LENGTH_ALPHA = 0.05
"""VAPO's: lambda is 1 - 1 / (0.05 * tokens)."""


class Estimate(NamedTuple):
    """advantages_T: float64 [T], 0 where not trained. returns_T: float64 [T], what the critic learns; 0 there too."""

    advantages_T: DoubleArray
    returns_T: DoubleArray


def length_adaptive_lambda(tokens_N: LongArray, alpha: float = LENGTH_ALPHA) -> DoubleArray:
    """`max(0, 1 - 1 / (alpha * tokens))`: the sum of the weights of all TD errors grows with the row. float64 [N].

    Source: Yue et al. 2025, VAPO. The bound at 0 is for rows of fewer than `1 / alpha` tokens, where the paper's
    formula is negative.
    """
    return np.maximum(0.0, 1.0 - 1.0 / (alpha * np.maximum(tokens_N, 1)))


def gae(
    rewards_T: DoubleArray,
    values_T: DoubleArray,
    trained_T: BoolArray,
    offsets: LongArray,
    *,
    gamma: float = 1.0,
    policy_lambda_N: DoubleArray,
    value_lambda_N: DoubleArray,
) -> Estimate:
    """`A_t = d_t + gamma * lambda * A_t'` with `d_t = r_t + gamma * V_t' - V_t`, t' the next trained token of the row,
    V and A being 0 behind the last. Returns are `A + V` under the lambda of the values (decoupled GAE, VAPO: 1 for the
    values); equal lambdas are Schulman et al. 2016. Nothing is whitened.

    rewards_T, values_T: float64 [T]. trained_T: bool [T]. offsets: int64 [N + 1], row i owns offsets[i]:offsets[i + 1].
    *_lambda_N: float64 [N]. A reward at a token that is not trained counts at the last trained one before it, so that
    a score at the end of an environment's answer is not lost (verl's recursion drops it).
    """
    place = np.flatnonzero(trained_T)
    row_T = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
    rewards_K = _credited(rewards_T, row_T, place)
    row_K = row_T[place]
    count_N = np.bincount(row_K, minlength=len(offsets) - 1)
    left_K = np.repeat(np.cumsum(count_N), count_N) - 1 - np.arange(len(place))
    values_K = values_T[place]
    next_K = np.where(left_K > 0, np.roll(values_K, -1), 0.0)
    errors_K = rewards_K + gamma * next_K - values_K
    advantages_T, returns_T = np.zeros((2, len(rewards_T)))
    advantages_T[place] = _discounted(errors_K, gamma * policy_lambda_N[row_K], left_K)
    returns_T[place] = _discounted(errors_K, gamma * value_lambda_N[row_K], left_K) + values_K
    return Estimate(advantages_T, returns_T)


def _credited(rewards_T: DoubleArray, row_T: LongArray, place: npt.NDArray[np.intp]) -> DoubleArray:
    """float64 [K], the rewards of each trained token and of what stands between it and the next one of its row."""
    before_T = np.searchsorted(place, np.arange(len(rewards_T)), side="right") - 1
    owned_T = before_T >= 0
    owned_T[owned_T] = row_T[place[before_T[owned_T]]] == row_T[owned_T]
    sums_K = np.bincount(before_T[owned_T], weights=rewards_T[owned_T], minlength=len(place))
    return sums_K.astype(np.float64, copy=False)


def _discounted(errors_K: DoubleArray, factor_K: DoubleArray, left_K: LongArray) -> DoubleArray:
    """float64 [K], `x_k + factor * result_(k + 1)` within each row, from its end; left_K: tokens behind k in the row.
    One pass for each place counted from the end, over all rows at once."""
    result_K = errors_K.copy()
    order = np.argsort(left_K, kind="stable")
    ends = np.cumsum(np.bincount(left_K)) if len(left_K) else np.zeros(0, np.int64)
    for start, end in pairwise(ends):
        now = order[start:end]
        result_K[now] += factor_K[now] * result_K[now + 1]
    return result_K
