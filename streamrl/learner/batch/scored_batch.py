"""What an auxiliary model is given and what it gives: rows and their packs, of a whole step. Pure functions."""

from collections.abc import Sequence
from typing import NamedTuple, TypeVar

import numpy as np
import torch

from streamrl.learner.batch.mini_batches import MiniBatch
from streamrl.learner.batch.packing import PackedBatch
from streamrl.types import LongArray, RolloutRows

T = TypeVar("T")


class Part(NamedTuple):
    """The rows of a share of a mini-batch, as they were packed. places: int64 [N], of each in the step's batch."""

    rows: RolloutRows
    places: LongArray


class ScoredTokens(NamedTuple):
    """float32 [K], what an auxiliary model gave for the targets of a pack, which is of rows of `part`."""

    pack: PackedBatch
    given: torch.Tensor
    part: Part


def by_share(of_mini_batches: Sequence[Sequence[Sequence[T]]]) -> list[list[T]]:
    """Of each share what all mini-batches have of it, in their order: a batch is one, however many updates it makes."""
    return [[one for own in share for one in own] for share in zip(*of_mini_batches, strict=True)]


def by_mini_batch(shares: Sequence[Sequence[PackedBatch]], like: Sequence[MiniBatch]) -> list[MiniBatch]:
    """The inverse: as many packs in each share of each mini-batch as `like` has there."""
    waiting = [iter(packs) for packs in shares]
    return [
        MiniBatch(
            [[next(packs) for _ in own] for packs, own in zip(waiting, mini_batch.shares, strict=True)],
            mini_batch.total,
        )
        for mini_batch in like
    ]


def bad_score(judged: ScoredTokens) -> str:
    """The first score that is not finite, with its row, the replica and the version that sampled it; "" when there
    is none."""
    bad_K = (~torch.isfinite(judged.given)).numpy()
    if not bad_K.any():
        return ""
    rows, row = judged.part.rows, int(judged.pack.rows[np.flatnonzero(bad_K)[0]])
    return f"{judged.given[bad_K][0].item()} in {rows.described(row)}"
