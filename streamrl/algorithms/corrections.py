"""Corrections: what the loss compares the current policy with, and how far off-policy tokens are weighted.

A rollout was sampled by some older version (`rollout_logprobs`), and one optimizer step is taken for each
batch. So the policy "before the step" is the current one: its log-probs are the detached log-probs of the
same forward, and no second forward is needed. A correction returns two tensors, both without gradient:

* `proximal_T`: the log-probs that the loss's ratio is taken against;
* `weights_T`: a factor for each token's loss.

Knows nothing of clipping, advantages or aggregation.
"""

from typing import NamedTuple

import torch

LOG_RATIO_LIMIT = 20.0
"""Bound of a log ratio before `exp`, as in verl: beyond it the weight has no meaning, only a chance to
overflow."""


class Correction(NamedTuple):
    """proximal_T and weights_T: float32 [T], detached. truncated_T: bool [T], where the weight hit its
    cap."""

    proximal_T: torch.Tensor
    weights_T: torch.Tensor
    truncated_T: torch.Tensor


def none(current_T: torch.Tensor, rollout_T: torch.Tensor, cap: float) -> Correction:
    """Classic PPO and GRPO: the ratio is against the policy that sampled, its clip bounds the distance, no
    weight.

    current_T: float32 [T], detached log-probs of the trained policy. rollout_T: float32 [T]. `cap` has no
    part.
    """
    truncated_T = torch.zeros_like(rollout_T, dtype=torch.bool)
    return Correction(rollout_T.detach(), torch.ones_like(rollout_T), truncated_T)


def tis(current_T: torch.Tensor, rollout_T: torch.Tensor, cap: float) -> Correction:
    """Truncated importance sampling: `w = min(exp(current - rollout), cap)`, the ratio against the current
    policy.

    Source: Ionides 2008; for RL with a separate engine Yao et al. 2025, Your efficient RL framework
    secretly brings you off-policy RL training. With one step for each batch the clipped ratio is 1, so `w`
    alone corrects. current_T: float32 [T], detached log-probs of the trained policy. rollout_T: float32
    [T].
    """
    current_T = current_T.detach()
    log_ratio_T = (current_T - rollout_T).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    ratio_T = log_ratio_T.exp()
    return Correction(current_T, ratio_T.clamp(max=cap), ratio_T > cap)
