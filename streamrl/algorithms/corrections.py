"""Corrections: how much a token's loss weighs for having been sampled by another policy than `proximal`.

Every function takes proximal_T and rollout_T, float32 [T], log-probs without gradient under the policy that the loss's
ratio is against and under the one that sampled. Ratio and weight together reach from the sampling policy to the
trained one. Knows nothing of clipping, advantages or aggregation.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch

LOG_RATIO_LIMIT = 20.0
"""Bound of a log ratio before `exp`, as in verl: beyond it the weight has no meaning, only a chance to
overflow."""


class Correction(NamedTuple):
    """weights_T: float32 [T], detached. truncated_T: bool [T], where the weight hit its cap."""

    weights_T: torch.Tensor
    truncated_T: torch.Tensor


def none(proximal_T: torch.Tensor, rollout_T: torch.Tensor, cap: float) -> Correction:
    """Every token weighs 1. `cap` has no part."""
    return Correction(torch.ones_like(rollout_T), torch.zeros_like(rollout_T, dtype=torch.bool))


def tis(proximal_T: torch.Tensor, rollout_T: torch.Tensor, cap: float) -> Correction:
    """Truncated importance sampling: `min(exp(proximal - rollout), cap)`.

    Source: Ionides 2008; for RL with a separate engine Yao et al. 2025, Your efficient RL framework secretly brings
    you off-policy RL training.
    """
    log_ratio_T = (proximal_T - rollout_T).detach().clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    ratio_T = log_ratio_T.exp()
    return Correction(ratio_T.clamp(max=cap), ratio_T > cap)


CORRECTIONS: dict[str, Callable[[torch.Tensor, torch.Tensor, float], Correction]] = {
    "none": none,
    "tis": tis,
}
