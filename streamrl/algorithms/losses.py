"""Losses: one number for each trained token, from log-probs and advantages.

Pure functions of flat tensors: a token that must not be trained is not in them, so no mask and no padding
exist here. Aggregation into a scalar is `aggregation`'s; what the ratio is against is `proximal`'s.
"""

from collections.abc import Callable

import torch

from streamrl.algorithms.corrections import LOG_RATIO_LIMIT


def ppo(
    logprobs_T: torch.Tensor,
    proximal_T: torch.Tensor,
    advantages_T: torch.Tensor,
    weights_T: torch.Tensor,
    clip_low: float,
    clip_high: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """`w * max(-A * r, -A * clip(r, 1 - clip_low, 1 + clip_high))` with `r = exp(logprobs - proximal)`.

    Source: Schulman et al. 2017, PPO; separate bounds: Yu et al. 2025, DAPO. No dual clip (verl has one by
    default).

    All tensors: float32 [T]; only `logprobs_T` carries gradient. Returns (loss_T float32 [T], clipped_T
    bool [T]: where the clip decides and the token gives no gradient).
    """
    log_ratio_T = (logprobs_T - proximal_T).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    ratio_T = log_ratio_T.exp()
    plain_T = -advantages_T * ratio_T
    bounded_T = -advantages_T * ratio_T.clamp(1.0 - clip_low, 1.0 + clip_high)
    return weights_T * torch.maximum(plain_T, bounded_T), (bounded_T > plain_T).detach()


def reinforce(
    logprobs_T: torch.Tensor,
    proximal_T: torch.Tensor,
    advantages_T: torch.Tensor,
    weights_T: torch.Tensor,
    clip_low: float,
    clip_high: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """`-w * A * logprobs`: the plain policy gradient. Source: Williams 1992, Simple statistical gradient-following
    algorithms for connectionist reinforcement learning.

    Arguments and result as `ppo`; `proximal_T` and the bounds have no part, and no token is clipped.
    """
    return -weights_T * advantages_T * logprobs_T, torch.zeros_like(logprobs_T, dtype=torch.bool)


LOSSES: dict[str, Callable[..., tuple[torch.Tensor, torch.Tensor]]] = {
    "ppo": ppo,
    "reinforce": reinforce,
}
