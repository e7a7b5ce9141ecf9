"""Whose rows a step trains on: the distance between engine and learner and what the correction makes of it, apart for
each that sampled.

All ranks number the sources of a step alike, since they have the same plan; so sums by number add up over ranks. Knows
a source by its name, and not what it is.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np
import torch

from streamrl.learner.batch.packing import PackedBatch
from streamrl.learner.batch.token_facts import TokenFacts
from streamrl.types import LongArray

SOURCES: Final = 64
"""Sources of one step that are counted apart; those beyond are in the sums over all alone."""
PER_SOURCE: Final = 5
"""Sums of each: targets, KL, weights, those truncated, those rejected."""
_NUMBERED: Final = re.compile(r"(mismatch|correction)/source_(\d+)/")
"""How the metrics of `Sums` name what is of one source."""


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
        """Metrics with `mismatch/<name>/kl`, `correction/<name>/truncated` for what `Sums` has under a number."""
        return {self._name(key): value for key, value in metrics.items()}

    def _name(self, key: str) -> str:
        return _NUMBERED.sub(lambda found: f"{found[1]}/{self._names[int(found[2])]}/", key)


def by_source(sources_K: torch.Tensor, distance_K: torch.Tensor, facts: TokenFacts | None = None) -> torch.Tensor:
    """float64 [64 * 5], of each source the count of targets, the sum of `distance_K`, float32 [K], and those of
    weights, truncated and rejected, 0 without `facts`. As a product, since a scatter on a GPU has no order."""
    numbers = torch.arange(SOURCES, device=sources_K.device)
    member_KS = (sources_K[:, None] == numbers).double()
    ones_K, zeros_K = torch.ones_like(distance_K), torch.zeros_like(distance_K)
    corrected = (zeros_K,) * 3 if facts is None else (facts.weights, facts.truncated, facts.rejected)
    columns_KC = torch.stack([column.double() for column in (ones_K, distance_K, *corrected)], 1)
    return (member_KS.T @ columns_KC).reshape(-1)


def source_means(added: torch.Tensor, *, corrected: bool) -> dict[str, float]:
    """Of sums as `by_source` makes them: the means of each source that has targets, with those of weights where
    `corrected`."""
    means = {}
    for number, sums in enumerate(added.reshape(SOURCES, PER_SOURCE).tolist()):
        count, distance, weights, truncated, rejected = sums
        if not count:
            continue
        means[f"mismatch/source_{number}/kl"] = distance / count
        if corrected:
            means[f"correction/source_{number}/weight_mean"] = weights / count
            means[f"correction/source_{number}/truncated"] = truncated / count
            means[f"correction/source_{number}/rejected"] = rejected / count
    return means
