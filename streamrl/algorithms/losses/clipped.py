"""Losses that bound the ratio of each token by itself. Arguments and result as the package says."""

import torch

from streamrl.algorithms.corrections import LOG_RATIO_LIMIT


def ratios(logprobs_T: torch.Tensor, proximal_T: torch.Tensor) -> torch.Tensor:
    """`exp(logprobs - proximal)`, the exponent within +-20, where its gradient ends."""
    return (logprobs_T - proximal_T).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()


def ppo(
    logprobs_T: torch.Tensor,
    proximal_T: torch.Tensor,
    advantages_T: torch.Tensor,
    weights_T: torch.Tensor,
    clip_low: float,
    clip_high: float,
    dual_clip: float | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """`w * max(-A * r, -A * clip(r, 1 - clip_low, 1 + clip_high))` with `r = exp(logprobs - proximal)`.

    Source: Schulman et al. 2017, PPO; separate bounds: Yu et al. 2025, DAPO.

    dual_clip: for A < 0 the loss is at most `-A * dual_clip` (Ye et al. 2020, Mastering complex control in MOBA games).
    None, the default, is none; verl has 3.0 by default. TRL has an upper bound `delta` of the plain ratio instead:
    above `1 + clip_high` it is the same function.
    """
    ratio_T = ratios(logprobs_T, proximal_T)
    plain_T = -advantages_T * ratio_T
    bounded_T = -advantages_T * ratio_T.clamp(1.0 - clip_low, 1.0 + clip_high)
    loss_T, clipped_T = torch.maximum(plain_T, bounded_T), (bounded_T > plain_T).detach()
    if dual_clip is not None:
        most_T = torch.where(advantages_T < 0, -advantages_T * dual_clip, torch.inf)
        clipped_T = clipped_T | (loss_T > most_T).detach()
        loss_T = torch.minimum(loss_T, most_T)
    return weights_T * loss_T, clipped_T


def cispo(
    logprobs_T: torch.Tensor,
    proximal_T: torch.Tensor,
    advantages_T: torch.Tensor,
    weights_T: torch.Tensor,
    clip_low: float,
    clip_high: float,
    *,
    absolute: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """`-w * sg(clip(r, 1 - clip_low, 1 + clip_high)) * A * logprobs`: the ratio is bounded, and no token loses its
    gradient. Source: MiniMax 2025, MiniMax-M1.

    The two bounds are verl's. TRL bounds above only, at the value `epsilon_high` itself: `absolute = True`, where
    `clip_high` is that value and `clip_low` has no part. clipped_T: where the bound decides, though gradient stays.
    """
    ratio_T = ratios(logprobs_T, proximal_T).detach()
    low, high = (0.0, clip_high) if absolute else (1.0 - clip_low, 1.0 + clip_high)
    bounded_T = ratio_T.clamp(low, high)
    return -weights_T * bounded_T * advantages_T * logprobs_T, bounded_T != ratio_T


def sapo(
    logprobs_T: torch.Tensor,
    proximal_T: torch.Tensor,
    advantages_T: torch.Tensor,
    weights_T: torch.Tensor,
    sapo_tau_positive: float,
    sapo_tau_negative: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """`-w * A * (4 / tau) * sigmoid(tau * (r - 1))`, tau by the sign of A (that of `A <= 0` is the negative one): the
    gradient fades out on both sides of r = 1, where it is that of the plain ratio. Source: Gao et al. 2025, SAPO
    (arXiv:2511.20347); tau 1.0 and 1.05 there.

    Nothing is clipped. verl always aggregates it by seq_mean_token_mean, as the paper does; here the key decides.
    """
    ratio_T = ratios(logprobs_T, proximal_T)
    taus = ratio_T.new_tensor([sapo_tau_negative, sapo_tau_positive])
    tau_T = taus[(advantages_T > 0).long()]
    gate_T = torch.sigmoid(tau_T * (ratio_T - 1.0)) * (4.0 / tau_T)
    return -weights_T * advantages_T * gate_T, torch.zeros_like(logprobs_T, dtype=torch.bool)
