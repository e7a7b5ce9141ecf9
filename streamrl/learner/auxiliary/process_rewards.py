"""From token rewards to advantages, over packs: each row beside the others of its group, wherever they lie.

Pure but for the sum over ranks that is given. What the rows of a batch are compared by is one number for each of them,
in its place of the batch; a row is on one rank alone, so the sum over ranks is exact, and baselines do not depend on
where a group's rows lie. Only rows with a trained token count: one whose score failed, or that was cut off where such
are not trained, is in no baseline of token rewards.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import chain
from typing import NamedTuple

import numpy as np
import torch

from streamrl.algorithms.advantages.groups import DoubleArray
from streamrl.algorithms.advantages.prime import Baselines, leave_one_out, process_advantages
from streamrl.config.schema.learner import PrimeConfig
from streamrl.learner.auxiliary.gae_batch import Total, whitened_packs
from streamrl.learner.batch.packing import PackedBatch
from streamrl.learner.batch.scored_batch import ScoredTokens
from streamrl.types import LongArray

SCALE_EPS = 1e-6
"""Added to the largest return that rewards are divided by, as in verl."""


class RowTable(NamedTuple):
    """Of each row of a batch, float64 [N]: its group's number, its trained tokens, the sum of their rewards, the
    largest |sum from a token to the row's end|, and whether the sum agrees with the outcome: 1, or 0, or a half where
    either says nothing (a sum of 0, an outcome of one half). All 0 for a row that is not trained."""

    group: DoubleArray
    tokens: DoubleArray
    reward: DoubleArray
    peak: DoubleArray
    agrees: DoubleArray

    def facts(self) -> dict[str, float]:
        """`prime/accuracy`, over rows, and `prime/reward_mean`, over tokens; nothing where no row is trained."""
        rows = np.count_nonzero(self.tokens)
        if not rows:
            return {}
        mean = self.reward.sum() / self.tokens.sum()
        return {"prime/accuracy": float(self.agrees.sum() / rows), "prime/reward_mean": float(mean)}

    def baselines(self, scale: float) -> Baselines:
        """Of each row, in rewards times `scale`."""
        means_N = scale * self.reward / np.maximum(self.tokens, 1.0)
        return leave_one_out(means_N, self.tokens > 0.0, self.group.astype(np.int64))


def with_process_advantages(
    shares: Sequence[Sequence[ScoredTokens]], config: PrimeConfig, total: Total, num_rows: int
) -> tuple[list[list[PackedBatch]], dict[str, float]]:
    """Collective where `total` is. The packs of a whole batch with `process_coef` times the advantages of their token
    rewards and `outcome_coef` times those that they came with, and what there is to say of the rewards.

    shares: of each share of this rank its packs, with `outcomes`, and the rewards of their targets. num_rows: of the
    batch.
    """
    table = RowTable(*total(row_table(chain(*shares), num_rows)))
    scale = 1.0 / (table.peak.max() + SCALE_EPS) if config.normalise else 1.0
    baselines = table.baselines(scale)
    advantages = [[_advantages(judged, scale, baselines, config) for judged in share] for share in shares]
    if config.whiten:
        advantages = whitened_packs(advantages, total)
    packs = [
        [_with_advantages(judged.pack, found_K) for judged, found_K in zip(share, found, strict=True)]
        for share, found in zip(shares, advantages, strict=True)
    ]
    return packs, table.facts()


def row_table(judged: Iterable[ScoredTokens], num_rows: int) -> DoubleArray:
    """float64 [5, N], the columns of `RowTable`, of the rows in these packs."""
    table_5N = np.zeros((len(RowTable._fields), num_rows))
    for pack, given, part in judged:
        offsets, rewards_K = pack.row_offsets(), given.double().numpy()
        if not len(rewards_K):
            continue
        starts, row_R = offsets[:-1], _rows(pack, offsets)
        nothing = Baselines(np.zeros(len(starts)), np.ones(len(starts), np.bool_))
        to_end_K = process_advantages(rewards_K, offsets, nothing, gamma=1.0)
        sums_R = to_end_K[starts]
        sides_R = np.sign(sums_R) * np.sign(part.rows.rewards[row_R] - 0.5)
        table_5N[:, part.places[row_R]] = (
            part.rows.group[row_R],
            np.diff(offsets),
            sums_R,
            np.maximum.reduceat(np.abs(to_end_K), starts),
            (1.0 + sides_R) / 2.0,
        )
    return table_5N


def _advantages(judged: ScoredTokens, scale: float, baselines: Baselines, config: PrimeConfig) -> DoubleArray:
    """float64 [K]."""
    pack, given, part = judged
    offsets = pack.row_offsets()
    place_R = part.places[_rows(pack, offsets)]
    own = Baselines(*(column_N[place_R] for column_N in baselines))
    process_K = process_advantages(scale * given.double().numpy(), offsets, own, config.gamma)
    return config.process_coef * process_K + config.outcome_coef * pack.advantages.double().numpy()


def _rows(pack: PackedBatch, offsets: LongArray) -> LongArray:
    """int64 [R], the rows in a pack, as numbered in the rows that were packed."""
    return pack.rows.numpy()[offsets[:-1]]


def _with_advantages(pack: PackedBatch, advantages_K: DoubleArray) -> PackedBatch:
    return replace(pack, advantages=torch.from_numpy(advantages_K.astype(np.float32)))
