"""Rollouts as groups: what the estimators of advantages have in common. Pure numpy.

A row that failed (`valid` False) is in no count, sum or bound of its group.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from streamrl.errors import NonFiniteError
from streamrl.types import LongArray

DoubleArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]

Alone = Literal["zero", "score"]
"""What a row gets that is the only valid one of its group: nothing, or its score."""


@dataclass(frozen=True, slots=True)
class Groups:
    """Per row: the place of its group; per group: valid count and mean, whether its rewards differ."""

    place_N: npt.NDArray[np.intp]
    valid_N: BoolArray
    rewards_N: DoubleArray
    count_G: DoubleArray
    mean_G: DoubleArray
    varied_G: BoolArray

    def sum_G(self, values_N: DoubleArray) -> DoubleArray:
        """float64 [G], the sum of each group's values."""
        return np.bincount(self.place_N, weights=values_N, minlength=len(self.count_G)).astype(np.float64, copy=False)

    def less(self, baseline_G: DoubleArray) -> DoubleArray:
        """float64 [N], reward minus the group's baseline; exactly 0 where there is nothing to learn."""
        learns_N = self.valid_N & self.varied_G[self.place_N]
        return np.where(learns_N, self.rewards_N - baseline_G[self.place_N], 0.0)

    def centred(self) -> DoubleArray:
        """float64 [N], reward minus group mean; exactly 0 where there is nothing to learn."""
        return self.less(self.mean_G)


def groups_of(rewards_N: DoubleArray, valid_N: BoolArray, group_N: LongArray, alone: Alone = "zero") -> Groups:
    """The groups of a batch. Raises NonFiniteError for a valid reward that is not finite."""
    bad_N = valid_N & ~np.isfinite(rewards_N)
    if bad_N.any():
        row = int(np.flatnonzero(bad_N)[0])
        raise NonFiniteError(
            f"the reward of row {row} (group {int(group_N[row])}) is {rewards_N[row]}, though its score "
            "did not fail; a reward that has no finite number must be a failed score"
        )
    names, place_N = np.unique(group_N, return_inverse=True)
    rewards_N = np.where(valid_N, rewards_N, 0.0)
    count_G = np.bincount(place_N, weights=valid_N.astype(np.float64), minlength=len(names)).astype(
        np.float64, copy=False
    )
    total_G = np.bincount(place_N, weights=rewards_N, minlength=len(names))
    low_G, high_G = np.full(len(names), np.inf), np.full(len(names), -np.inf)
    np.minimum.at(low_G, place_N[valid_N], rewards_N[valid_N])
    np.maximum.at(high_G, place_N[valid_N], rewards_N[valid_N])
    varied_G, mean_G = high_G > low_G, total_G / np.maximum(count_G, 1.0)
    if alone == "score":
        mean_G = np.where(count_G == 1.0, 0.0, mean_G)
        varied_G |= count_G == 1.0
    return Groups(place_N, valid_N, rewards_N, count_G, mean_G, varied_G)
