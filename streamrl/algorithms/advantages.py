"""Advantages: how much better a rollout did than its group.

Each function has the signature `(rewards_N, valid_N, group_N) -> advantages_N` and is pure. Guarantees,
whatever the estimator: a row whose score failed (`valid` False) has no part in any baseline and gets
exactly 0; a group whose valid rewards are all equal gets exactly 0, also for values such as seven times
0.1, whose mean is not exactly 0.1; so does a group with one valid row, which has nothing to be compared
with (verl's GRPO gives the score itself there, TRL gives 0). Knows nothing of tokens, of order inside a
group, or of group size: groups may be of any size.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from streamrl.errors import NonFiniteError
from streamrl.types import LongArray

DoubleArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]

GRPO_EPS = 1e-6
"""verl's value; TRL adds 1e-4."""


@dataclass(frozen=True, slots=True)
class _Groups:
    """Per row: the place of its group; per group: valid count and mean, whether its rewards differ."""

    place_N: npt.NDArray[np.intp]
    valid_N: BoolArray
    rewards_N: DoubleArray
    count_G: DoubleArray
    mean_G: DoubleArray
    varied_G: BoolArray

    def centred(self) -> DoubleArray:
        """float64 [N], reward minus group mean; exactly 0 where there is nothing to learn."""
        learns_N = self.valid_N & self.varied_G[self.place_N]
        return np.where(learns_N, self.rewards_N - self.mean_G[self.place_N], 0.0)


def _groups(rewards_N: DoubleArray, valid_N: BoolArray, group_N: LongArray) -> _Groups:
    bad_N = valid_N & ~np.isfinite(rewards_N)
    if bad_N.any():
        row = int(np.flatnonzero(bad_N)[0])
        raise NonFiniteError(
            f"the reward of row {row} (group {int(group_N[row])}) is {rewards_N[row]}, though its score "
            "did not fail; a reward that has no finite number must be a failed score"
        )
    names, place_N = np.unique(group_N, return_inverse=True)
    rewards_N = np.where(valid_N, rewards_N, 0.0)
    count_G = np.bincount(place_N, weights=valid_N.astype(np.float64), minlength=len(names))
    total_G = np.bincount(place_N, weights=rewards_N, minlength=len(names))
    low_G, high_G = np.full(len(names), np.inf), np.full(len(names), -np.inf)
    np.minimum.at(low_G, place_N[valid_N], rewards_N[valid_N])
    np.maximum.at(high_G, place_N[valid_N], rewards_N[valid_N])
    return _Groups(place_N, valid_N, rewards_N, count_G, total_G / np.maximum(count_G, 1.0), varied_G=high_G > low_G)


def dr_grpo(rewards_N: DoubleArray, valid_N: BoolArray, group_N: LongArray) -> DoubleArray:
    """`r - mean(group)`. Source: Liu et al. 2025, Understanding R1-Zero-like training (no division by the
    std).

    rewards_N: float64 [N], ignored where not valid. valid_N: bool [N]. group_N: int64 [N]. Returns float64
    [N]. Raises NonFiniteError for a valid reward that is not finite.
    """
    return _groups(rewards_N, valid_N, group_N).centred()


def grpo(rewards_N: DoubleArray, valid_N: BoolArray, group_N: LongArray) -> DoubleArray:
    """`(r - mean(group)) / (std(group) + 1e-6)`, std unbiased (n - 1). Source: Shao et al. 2024,
    DeepSeekMath; std and eps as in verl 0.9. Arguments, result and errors as `dr_grpo`."""
    groups = _groups(rewards_N, valid_N, group_N)
    centred_N = groups.centred()
    squares_G = np.bincount(groups.place_N, weights=centred_N**2, minlength=len(groups.count_G))
    std_G = np.sqrt(squares_G / np.maximum(groups.count_G - 1.0, 1.0))
    return centred_N / (std_G[groups.place_N] + GRPO_EPS)


def rloo(rewards_N: DoubleArray, valid_N: BoolArray, group_N: LongArray) -> DoubleArray:
    """`r - mean(the other rows of the group)`, which is `n / (n - 1) * (r - mean(group))`. Source: Ahmadian
    et al. 2024, Back to basics. Arguments, result and errors as `dr_grpo`."""
    groups = _groups(rewards_N, valid_N, group_N)
    scale_G = groups.count_G / np.maximum(groups.count_G - 1.0, 1.0)
    return groups.centred() * scale_G[groups.place_N]


ADVANTAGES: dict[str, Callable[[DoubleArray, BoolArray, LongArray], DoubleArray]] = {
    "grpo": grpo,
    "dr_grpo": dr_grpo,
    "rloo": rloo,
}
