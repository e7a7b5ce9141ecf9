"""The critic of PPO: it values each token, and learns what the rows came to.

Guarantees what a `Judge` does. The result does not depend on the cut into packs and ranks, and bits agree on two
shares. Advantages are whitened over the batch, so `judge` takes all mini-batches of a step at once.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import torch

from streamrl.clock import Clock
from streamrl.config.learner_tables import CriticConfig
from streamrl.learner.estimates import ScoredPack, with_estimates
from streamrl.learner.fsdp import FsdpBackend
from streamrl.learner.judge import Judge
from streamrl.learner.judged import Judged, Part, by_mini_batch, by_share
from streamrl.learner.mini_batches import MiniBatch
from streamrl.learner.packing import PackedBatch
from streamrl.learner.value_model import ShardedCritic
from streamrl.learner.values import value_loss


class Critic(Judge):
    """One rank's part. `step_batch` gives `critic/loss`, `critic/clip_fraction`, `critic/grad_norm` and `critic/lr`."""

    name = "critic"
    called = "critic"
    advantage = "gae"
    judgement = "a value of the critic"

    def __init__(
        self, model: ShardedCritic, config: CriticConfig, total_steps: int, clock: Clock | None = None
    ) -> None:
        """total_steps: where the decay of the critic's rate ends."""
        self._model = model
        self._config = config
        objective = partial(value_loss, clip=config.value_clip)
        super().__init__(FsdpBackend(model, objective, config.optimizer, total_steps, clock=clock))

    def judge(
        self, mini_batches: Sequence[MiniBatch], parts: Sequence[Sequence[Part]]
    ) -> tuple[list[MiniBatch], dict[str, float]]:
        """As `Judge.judge`: advantages, values and returns; `critic/value_mean` and `critic/explained_variance`."""
        valued = [
            [self._valued(packs, part) for packs, part in zip(mini_batch.shares, own, strict=True)]
            for mini_batch, own in zip(mini_batches, parts, strict=True)
        ]
        shares = by_share(valued)
        self._require_finite(one for share in shares for one in share)
        scored = [
            [ScoredPack(replace(pack, values=values), part.rows.rewards) for pack, values, part in share]
            for share in shares
        ]
        judged, facts = with_estimates(scored, self._config, self._over_ranks)
        return by_mini_batch(judged, mini_batches), facts

    @torch.no_grad()
    def values(self, packs: Sequence[PackedBatch]) -> list[torch.Tensor]:
        """Collective. float32 [K] for each pack, on the CPU."""
        device = self._group.device
        found = [self._model.module(pack.to(device)).cpu() for pack in self._backend.padded(packs)]
        return found[: len(packs)]

    def _valued(self, packs: Sequence[PackedBatch], part: Part) -> list[Judged]:
        return [Judged(pack, values, part) for pack, values in zip(packs, self.values(packs), strict=True)]
