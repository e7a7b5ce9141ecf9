"""What an implicit reward model learns: the outcomes of rows, as an objective of a backend.

The loss of a pack is its part of the mini-batch's, as in `objectives`. Pure functions.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch

from streamrl.algorithms.advantages.prime import outcome_loss
from streamrl.algorithms.aggregation import Denominators
from streamrl.algorithms.levels import row_sums
from streamrl.learner.batch.packing import PackedBatch
from streamrl.learner.model.policy import PolicyModel
from streamrl.learner.sums import Sums

TEMPERATURE = 1.0
"""Of both log-probs, whatever rollouts are sampled with: the reward is of the models, as in the paper and in verl."""


@dataclass(frozen=True, slots=True)
class OutcomeSums(Sums):
    """added: float64 [1], the loss. greatest: float64 [1], the largest |implicit reward of a row|."""

    loss_name: ClassVar[str] = "prime/loss"
    num_added: ClassVar[int] = 1

    def metrics(self) -> dict[str, float]:
        return {self.loss_name: self.added.item(), "prime/row_reward_abs_max": self.greatest.item()}


def implicit_reward_loss(
    model: PolicyModel, pack: PackedBatch, total: Denominators, beta: float
) -> tuple[torch.Tensor, OutcomeSums]:
    """(loss, sums): the mean over rows of `prime.outcome_loss`; a row without a trained token does not count.

    pack: with `reference_logprobs` and `outcomes`.
    """
    assert pack.reference_logprobs is not None
    assert pack.outcomes is not None
    logprobs_K, _ = model(pack, TEMPERATURE)
    lengths_R = torch.unique_consecutive(pack.rows, return_counts=True)[1]
    log_ratios_R = row_sums(logprobs_K - pack.reference_logprobs, lengths_R)
    outcomes_R = pack.outcomes[lengths_R.cumsum(0) - 1]
    loss = outcome_loss(log_ratios_R, outcomes_R, beta).sum() / max(total.rows, 1)
    rewards_R = beta * log_ratios_R.detach().double()
    greatest = rewards_R.abs().max() if len(rewards_R) else rewards_R.new_zeros(())
    return loss, OutcomeSums(loss.detach().double()[None], greatest[None])
