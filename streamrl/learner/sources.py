"""Whose rows a step trains on: the distance between engine and learner, apart for each that sampled.

All ranks number the sources of a step alike, since they have the same plan; so sums by number add up over ranks. Knows
a source by its name, and not what it is.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np
import torch

from streamrl.learner.packing import PackedBatch
from streamrl.types import LongArray

SOURCES: Final = 64
"""Sources of one step that are counted apart; those beyond are in the sums over all alone."""
BY_NUMBER: Final = "mismatch/source_"
"""Before the number of a source, in the metrics of `Sums`."""


class Sources:
    """Those of one step. of_frames: the name of each frame's."""

    def __init__(self, of_frames: Sequence[str]) -> None:
        self._names, numbers = np.unique(np.array(of_frames, np.str_), return_inverse=True)
        self._number_of_frame = numbers.astype(np.int64)

    def mark(self, packs: Sequence[PackedBatch], frame_N: LongArray) -> list[PackedBatch]:
        """The packs, each target with the number of its source. frame_N: int64 [N], the frame of each row that was
        packed."""
        number_N = torch.from_numpy(self._number_of_frame[frame_N])
        return [replace(pack, sources=number_N[pack.rows]) for pack in packs]

    def named(self, metrics: Mapping[str, float]) -> dict[str, float]:
        """Metrics with `mismatch/<name>/kl` in place of what `Sums` has under a number."""
        return {self._name(key): value for key, value in metrics.items()}

    def _name(self, key: str) -> str:
        number, _, rest = key.removeprefix(BY_NUMBER).partition("/")
        return f"mismatch/{self._names[int(number)]}/{rest}" if key.startswith(BY_NUMBER) else key


def by_source(sources_K: torch.Tensor, distance_K: torch.Tensor) -> torch.Tensor:
    """float64 [2 * 64], of each source the count of targets and the sum of `distance_K`, float32 [K]. As a product,
    since a scatter on a GPU has no order."""
    numbers = torch.arange(SOURCES, device=sources_K.device)
    member_KS = (sources_K[:, None] == numbers).double()
    return (member_KS.T @ torch.stack((torch.ones_like(distance_K), distance_K), 1).double()).reshape(-1)


def source_means(added: torch.Tensor) -> dict[str, float]:
    """Of sums as `by_source` makes them: the mean of each source that has targets."""
    pairs = enumerate(added.reshape(SOURCES, 2).tolist())
    return {f"{BY_NUMBER}{number}/kl": total / count for number, (count, total) in pairs if count}
