"""Losses against the collapse of entropy: they hold those tokens back whose log-prob and advantage move together most.
Arguments and result as the package says. Source: Cui et al. 2025, The entropy mechanism of reinforcement learning.

The covariance of a token is `(logprobs - mean) * (A - mean)`, and which tokens are chosen is a share of all. Means and
share are of the tokens that are GIVEN: the learner gives one pack, so the result depends on `micro_batch_tokens` and on
the number of ranks and shares, which no other loss does. verl's are of the micro-batch likewise. To know the whole
batch's, a second forward of all of it would have to come before the first backward.
"""

import torch

from streamrl.algorithms.losses.clipped import ppo, ratios


def covariances(logprobs_T: torch.Tensor, advantages_T: torch.Tensor) -> torch.Tensor:
    """[T] without gradient, each token's part of the covariance of log-prob and advantage."""
    current_T = logprobs_T.detach()
    return (current_T - current_T.mean()) * (advantages_T - advantages_T.mean())


def clip_cov(
    logprobs_T: torch.Tensor,
    proximal_T: torch.Tensor,
    advantages_T: torch.Tensor,
    weights_T: torch.Tensor,
    clip_low: float,
    clip_high: float,
    cov_share: float,
    cov_low: float,
    cov_high: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """PPO's loss, and 0 for `max(int(cov_share * T), 1)` of the tokens that it does not clip and whose covariance lies
    between cov_low and cov_high (2e-4, 1 and 5 in verl).

    verl draws them with unseeded randomness, so no run can be repeated; here they are taken at equal distances from
    those that qualify. The rest as verl's, without its dual clip.
    """
    loss_T, clipped_T = ppo(logprobs_T, proximal_T, advantages_T, weights_T, clip_low, clip_high)
    if not len(logprobs_T):
        return loss_T, clipped_T
    cov_T = covariances(logprobs_T, advantages_T)
    fit = torch.nonzero((cov_T > cov_low) & (cov_T < cov_high) & ~clipped_T)[:, 0]
    count = min(max(int(cov_share * len(logprobs_T)), 1), len(fit))
    chosen_T = torch.zeros_like(clipped_T)
    chosen_T[fit[torch.arange(count, device=fit.device) * len(fit) // max(count, 1)]] = True
    return torch.where(chosen_T, 0.0, loss_T), clipped_T | chosen_T


def kl_cov(
    logprobs_T: torch.Tensor,
    proximal_T: torch.Tensor,
    advantages_T: torch.Tensor,
    weights_T: torch.Tensor,
    cov_share: float,
    cov_kl: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """`w * (-A * r)`, and for the `max(int(cov_share * T), 1)` tokens of largest covariance `w * (-A * r + cov_kl *
    |logprobs - proximal|)` (2e-3 and 1 in verl). Nothing is clipped: clipped_T is False.

    Of equal covariances the earlier token is taken. Where the proximal policy is the trained one, the penalty has no
    gradient (|0|), so it needs another.
    """
    loss_T = -advantages_T * ratios(logprobs_T, proximal_T)
    nowhere_T = torch.zeros_like(logprobs_T, dtype=torch.bool)
    if not len(logprobs_T):
        return weights_T * loss_T, nowhere_T
    count = max(int(cov_share * len(logprobs_T)), 1)
    largest = covariances(logprobs_T, advantages_T).sort(descending=True, stable=True).indices[:count]
    chosen_T = nowhere_T.index_fill(0, largest, True)
    penalised_T = loss_T + cov_kl * (logprobs_T - proximal_T).abs()
    return weights_T * torch.where(chosen_T, penalised_T, loss_T), nowhere_T
