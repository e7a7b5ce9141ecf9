"""What a critic learns: the clipped value loss, as an objective of a backend.

The loss of a pack is its part of the mini-batch's, as in `objectives`. Pure functions.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch

from streamrl.algorithms.aggregation import Denominators, token_mean
from streamrl.learner.batch.packing import PackedBatch
from streamrl.learner.model.value_model import ValueModel
from streamrl.learner.sums import Sums


@dataclass(frozen=True, slots=True)
class ValueSums(Sums):
    """added: float64 [3], sums over targets: loss, count, clipped. greatest: float64 [1], the largest value."""

    loss_name: ClassVar[str] = "critic/loss"
    num_added: ClassVar[int] = 3

    def metrics(self) -> dict[str, float]:
        loss, count, clipped = self.added.tolist()
        return {self.loss_name: loss, "critic/clip_fraction": clipped / max(count, 1.0)}


def value_loss(
    critic: ValueModel, pack: PackedBatch, total: Denominators, clip: float | None
) -> tuple[torch.Tensor, ValueSums]:
    """(loss, sums): the mean over tokens of `0.5 max((V - R)^2, (V_old + clamp(V - V_old, -clip, clip) - R)^2)`.

    pack: with `values` V_old and `returns` R. clip: None bounds nothing. Source: Schulman et al., the code of PPO
    (OpenAI baselines); as in verl, TRL and OpenRLHF. A token is counted as clipped where the second is the larger.
    """
    values_K = critic(pack)
    assert pack.values is not None
    assert pack.returns is not None
    loss_K = (values_K - pack.returns).square()
    clipped_K = torch.zeros_like(loss_K, dtype=torch.bool)
    if clip is not None:
        near_K = pack.values + (values_K - pack.values).clamp(-clip, clip)
        bounded_K = (near_K - pack.returns).square()
        clipped_K = bounded_K.detach() > loss_K.detach()
        loss_K = torch.maximum(loss_K, bounded_K)
    loss = (token_mean(pack.row_tokens, total) * 0.5 * loss_K).sum()
    greatest = values_K.detach().abs().max().double() if pack.num_targets else loss.detach().new_zeros(()).double()
    counts = torch.stack([loss.detach().double(), loss.new_tensor(pack.num_targets).double(), clipped_K.double().sum()])
    return loss, ValueSums(counts, greatest[None])
