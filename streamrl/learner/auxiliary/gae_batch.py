"""From a critic's values to advantages and returns, over packs: GAE where the rows are, whitening over the whole batch.

Pure but for the sum over ranks that is given. A pack has the targets of its rows one after the other, so what an
environment wrote between them is passed over. Sums are made for each share and added in the shares' order, so that one
rank and two agree to the bit on two shares.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch

from streamrl.algorithms.advantages.batch import WHITEN_EPS
from streamrl.algorithms.advantages.gae import Estimate, gae, length_adaptive_lambda
from streamrl.algorithms.advantages.groups import DoubleArray
from streamrl.config.schema.learner import CriticConfig
from streamrl.learner.batch.packing import PackedBatch

Total = Callable[[DoubleArray], DoubleArray]
"""Adds an array over the ranks."""

CONSTANT = 1e-12
"""Variance of returns, relative to their mean square, under which there is nothing to explain."""


class ScoredPack(NamedTuple):
    """scores_N: float64 [N], the rewards of the rows that were packed, which `pack.rows` counts. paid_K: float64 [K],
    what is taken off the reward of each target; None for nothing."""

    pack: PackedBatch
    scores_N: DoubleArray
    paid_K: DoubleArray | None = None


def estimate(pack: PackedBatch, scores_N: DoubleArray, paid_K: DoubleArray | None, config: CriticConfig) -> Estimate:
    """Advantages and returns of the targets of a pack, float64 [K] each, by `gae`; nothing is whitened.

    pack: on the CPU, with `values`. scores_N: float64 [N], the rewards of the rows that were packed, each of which
    counts at the last target of its row. paid_K: as in `ScoredPack`.
    """
    assert pack.values is not None
    rows_K = pack.rows.numpy()
    offsets = pack.row_offsets()
    ends = offsets[1:] - 1
    rewards_K = np.zeros(len(rows_K)) if paid_K is None else -paid_K
    rewards_K[ends] += scores_N[rows_K[ends]]
    policy_lambda_R = np.full(len(ends), config.policy_lambda)
    if config.length_alpha is not None:
        policy_lambda_R = length_adaptive_lambda(np.diff(offsets), config.length_alpha)
    return gae(
        rewards_K,
        pack.values.double().numpy(),
        np.ones(len(rows_K), np.bool_),
        offsets,
        gamma=config.gamma,
        policy_lambda_N=policy_lambda_R,
        value_lambda_N=np.full(len(ends), config.value_lambda),
    )


def with_estimates(
    shares: Sequence[Sequence[ScoredPack]], config: CriticConfig, total: Total
) -> tuple[list[list[PackedBatch]], dict[str, float]]:
    """Collective where `total` is. The packs of a whole batch, with their advantages and returns, and what there is to
    say of the values. shares: of each share of this rank its packs, with `values`.
    """
    estimates = [[estimate(*scored, config) for scored in share] for share in shares]
    advantages = [[one.advantages_T for one in share] for share in estimates]
    if config.whiten:
        advantages = whitened_packs(advantages, total)
    judged = [
        [_with_estimates(*one) for one in zip((scored.pack for scored in share), parts, found, strict=True)]
        for share, parts, found in zip(shares, advantages, estimates, strict=True)
    ]
    return judged, value_facts(judged, total)


def _with_estimates(pack: PackedBatch, advantages_K: DoubleArray, found: Estimate) -> PackedBatch:
    return replace(
        pack,
        advantages=torch.from_numpy(advantages_K.astype(np.float32)),
        returns=torch.from_numpy(found.returns_T.astype(np.float32)),
    )


def whitened_packs(shares: Sequence[Sequence[DoubleArray]], total: Total) -> list[list[DoubleArray]]:
    """`whitened`, of each share an array for each of its packs. Collective where `total` is."""
    whole = whitened([_joined(share) for share in shares], total)
    ends = [np.cumsum([len(pack_K) for pack_K in share], dtype=np.int64) for share in shares]
    return [np.split(joined, end)[:-1] for joined, end in zip(whole, ends, strict=True)]


def whitened(parts: Sequence[DoubleArray], total: Total) -> list[DoubleArray]:
    """`(x - mean) / sqrt(var + 1e-8)` over all parts of all ranks, var unbiased: verl's masked_whiten, over the whole
    batch. All 0 where there is one number in all. Collective where `total` is."""
    count, added = total(sum((np.array([len(part), part.sum()]) for part in parts), np.zeros(2)))
    mean = added / max(count, 1.0)
    (squares,) = total(sum((np.array([((part - mean) ** 2).sum()]) for part in parts), np.zeros(1)))
    scale = np.sqrt(squares / max(count - 1.0, 1.0) + WHITEN_EPS)
    return [(part - mean) / scale for part in parts]


def value_facts(shares: Sequence[Sequence[PackedBatch]], total: Total) -> dict[str, float]:
    """`critic/value_mean`, and `critic/explained_variance`, which is 1 - var(returns - values) / var(returns) and is
    left out where all returns are equal. Collective where `total` is."""
    sums = np.zeros(6)
    for packs in shares:
        values, returns = (_joined([_double(getattr(pack, name)) for pack in packs]) for name in ("values", "returns"))
        left = returns - values
        columns = (np.ones(len(values)), values, returns, returns**2, left, left**2)
        sums += [column.sum() for column in columns]
    count, *means = total(sums)
    value, returned, returned2, error, error2 = (part / max(count, 1.0) for part in means)
    facts = {"critic/value_mean": float(value)}
    variance = returned2 - returned**2
    if variance > CONSTANT * returned2:
        facts["critic/explained_variance"] = float(1.0 - (error2 - error**2) / variance)
    return facts


def _double(column_K: torch.Tensor) -> DoubleArray:
    return column_K.double().numpy()


def _joined(parts: Sequence[DoubleArray]) -> DoubleArray:
    return np.concatenate(parts) if parts else np.zeros(0)
