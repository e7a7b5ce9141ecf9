"""The critic of PPO: it values each token, and learns what the rows came to.

Guarantees what an `AuxiliaryModel` does. The result does not depend on the cut into packs and ranks, and bits agree
on two shares. Advantages are whitened over the batch, so `add_advantages` takes all mini-batches of a step at once.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from streamrl.algorithms.advantages.groups import DoubleArray
from streamrl.config.schema.learner import CriticConfig
from streamrl.learner.auxiliary.auxiliary import AuxiliaryModel, AuxiliaryObjective, AuxiliaryParts
from streamrl.learner.auxiliary.gae_batch import ScoredPack, with_estimates
from streamrl.learner.auxiliary.kl_penalty import TokenDivergences
from streamrl.learner.auxiliary.value_loss import ValueSums, value_loss
from streamrl.learner.batch.mini_batches import MiniBatch
from streamrl.learner.batch.packing import PackedBatch
from streamrl.learner.batch.scored_batch import Part, ScoredTokens, by_mini_batch, by_share


def critic_objective(config: CriticConfig) -> AuxiliaryObjective:
    return AuxiliaryObjective(partial(value_loss, clip=config.value_clip), ValueSums, of_values=True)


class Critic(AuxiliaryModel):
    """One rank's part. `step_batch` gives `critic/loss`, `critic/clip_fraction`, `critic/grad_norm` and `critic/lr`."""

    name = "critic"
    called = "critic"
    advantage = "gae"
    score = "a value of the critic"

    def __init__(
        self, parts: AuxiliaryParts, config: CriticConfig, divergences: TokenDivergences | None = None
    ) -> None:
        """parts: for `critic_objective`. divergences: what is taken off the rewards of tokens; None for nothing."""
        super().__init__(parts)
        self._config = config
        self._divergences = divergences

    def add_advantages(
        self, mini_batches: Sequence[MiniBatch], parts: Sequence[Sequence[Part]]
    ) -> tuple[list[MiniBatch], dict[str, float]]:
        """As `AuxiliaryModel.add_advantages`: advantages, values and returns; `critic/value_mean` and
        `critic/explained_variance`, and `reward/kl` where divergences are paid."""
        valued = [
            [self._valued(packs, part) for packs, part in zip(mini_batch.shares, own, strict=True)]
            for mini_batch, own in zip(mini_batches, parts, strict=True)
        ]
        shares = by_share(valued)
        self._require_finite(one for share in shares for one in share)
        distances = self._distances(shares)
        scored = [
            [self._scored(*one) for one in zip(share, distances_of, strict=True)]
            for share, distances_of in zip(shares, distances, strict=True)
        ]
        judged, facts = with_estimates(scored, self._config, self._over_ranks)
        return by_mini_batch(judged, mini_batches), facts | self._mean_distance(distances)

    def _valued(self, packs: Sequence[PackedBatch], part: Part) -> list[ScoredTokens]:
        return [ScoredTokens(pack, values, part) for pack, values in zip(packs, self._scores(packs), strict=True)]

    def _distances(self, shares: Sequence[Sequence[ScoredTokens]]) -> Sequence[Sequence[DoubleArray | None]]:
        """Collective. Of each pack, how far its targets are from the reference; None where nothing is paid for it."""
        if self._divergences is None:
            return [[None] * len(share) for share in shares]
        return self._divergences(shares, self._backend.steps_done + 1)

    def _scored(self, one: ScoredTokens, distance_K: DoubleArray | None) -> ScoredPack:
        paid_K = None if self._divergences is None or distance_K is None else self._divergences.coef * distance_K
        return ScoredPack(replace(one.pack, values=one.given), one.part.rows.rewards, paid_K)

    def _mean_distance(self, distances: Sequence[Sequence[DoubleArray | None]]) -> dict[str, float]:
        """Collective. `reward/kl`, the mean over the batch's targets; nothing where nothing is paid."""
        if self._divergences is None:
            return {}
        found = [distance_K for share in distances for distance_K in share if distance_K is not None]
        count, total = self._over_ranks(np.array([sum(map(len, found)), sum(one.sum() for one in found)], np.float64))
        return {"reward/kl": float(total / max(count, 1.0))}
