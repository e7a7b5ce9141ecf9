"""Objectives: from a policy and a pack to a loss to be minimised, and the sums that the metrics are made of.

The loss of a pack is its share of the batch's: weights hold the global denominators, so losses and sums of
all packs and all ranks add up to the batch's, however it was cut. Both objectives are pure functions of
their arguments; the synchronous reference loop calls the same ones.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from streamrl.algorithms.aggregation import AGGREGATIONS, Denominators, token_mean
from streamrl.algorithms.corrections import CORRECTIONS, LOG_RATIO_LIMIT
from streamrl.algorithms.losses import LOSSES
from streamrl.algorithms.proximal import PROXIMALS
from streamrl.config.learner_tables import AlgorithmConfig
from streamrl.learner.packing import PackedBatch
from streamrl.learner.policy import PolicyModel


@dataclass(frozen=True, slots=True)
class Sums:
    """What adds up over packs and ranks.

    added: float64 [6], sums over targets: loss, count, entropy, ratio, clipped, kl. greatest: float64 [1],
    the largest |trainer - rollout| log-prob.
    """

    added: torch.Tensor
    greatest: torch.Tensor

    def plus(self, other: "Sums") -> "Sums":
        return Sums(self.added + other.added, torch.maximum(self.greatest, other.greatest))

    @classmethod
    def zero(cls, device: torch.device) -> "Sums":
        zeros = torch.zeros(7, dtype=torch.float64, device=device)
        return cls(zeros[:6], zeros[6:])

    def metrics(self) -> dict[str, float]:
        """The batch's means, under the names of `metrics.jsonl`. Call it on sums over everything."""
        loss, count, entropy, ratio, clipped, kl = self.added.tolist()
        count = max(count, 1.0)
        return {
            "loss/policy": loss,
            "loss/entropy": entropy / count,
            "ratio/mean": ratio / count,
            "ratio/clip_fraction": clipped / count,
            "mismatch/kl": kl / count,
            "mismatch/logprob_abs_max": self.greatest.item(),
        }


Objective = Callable[[PolicyModel, PackedBatch, Denominators], tuple[torch.Tensor, Sums]]


def policy_loss(
    policy: PolicyModel,
    pack: PackedBatch,
    total: Denominators,
    algorithm: AlgorithmConfig,
    temperature: float,
) -> tuple[torch.Tensor, Sums]:
    """(loss, sums) of one pack. The loss is a scalar with gradient: this pack's part of the batch's loss.

    policy: anything called as `PolicyModel` is. total: counts over the whole batch. Metrics: the ratio is
    trainer/rollout; a token is counted as clipped when the loss's clip or the correction's cap decided; kl
    is the k3 estimate of KL(rollout || trainer), `exp(d) - 1 - d` with `d = trainer - rollout` (Schulman
    2020).
    """
    logprobs_K, entropy_K = policy(pack, temperature)
    current_K = logprobs_K.detach()
    proximal_K = PROXIMALS[algorithm.proximal](current_K, pack.rollout_logprobs, pack.lags)
    correction = CORRECTIONS[algorithm.correction](proximal_K, pack.rollout_logprobs, algorithm.tis_cap)
    loss_K, clipped_K = LOSSES[algorithm.loss](
        logprobs_K,
        proximal_K,
        pack.advantages,
        correction.weights_T,
        algorithm.clip_low,
        algorithm.clip_high,
    )
    loss = (AGGREGATIONS[algorithm.aggregation](pack.row_tokens, total) * loss_K).sum()
    distance_K = current_K - pack.rollout_logprobs
    bounded_K = distance_K.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    ratio_K = bounded_K.exp()
    rows = (
        entropy_K,
        ratio_K,
        (clipped_K | correction.truncated_T).float(),
        ratio_K - 1.0 - bounded_K,
    )
    return loss, _sums(loss, pack, rows, distance_K)


def nll_loss(policy: PolicyModel, pack: PackedBatch, total: Denominators) -> tuple[torch.Tensor, Sums]:
    """Supervised: mean negative log-likelihood in nats of the targets over the batch; advantages have no
    part.

    The result is as `policy_loss`'s; ratio, clip and mismatch have no meaning here and are 0.
    """
    logprobs_K, entropy_K = policy(pack, 1.0)
    loss = -(token_mean(pack.row_tokens, total) * logprobs_K).sum()
    nothing_K = torch.zeros_like(entropy_K)
    return loss, _sums(loss, pack, (entropy_K, nothing_K, nothing_K, nothing_K), nothing_K)


def _sums(loss: torch.Tensor, pack: PackedBatch, rows: tuple[torch.Tensor, ...], distance_K: torch.Tensor) -> Sums:
    sums_R = torch.stack(rows).double().sum(1)
    count = sums_R.new_tensor([pack.num_targets])
    greatest = distance_K.abs().max().double() if pack.num_targets else sums_R.new_zeros(())
    return Sums(torch.cat([loss.detach().double()[None], count, sums_R]), greatest[None])
