"""Losses whose gradient is the plain policy gradient, of all tokens or of those that a mask leaves; and the one whose
rewards are a teacher's. Arguments and result as the package says."""

import torch

from streamrl.algorithms.divergences import k1_straight
from streamrl.algorithms.losses.clipped import ratios

_LEAST = 1e-8
"""Of the probability of all other tokens: a token that is all but certain has no log of it."""

RATIO_CAP = 20.0
"""verl's bound of DPPO's ratio, large on purpose: the mask is the trust region, this only keeps outliers finite."""


def reinforce(
    logprobs_T: torch.Tensor,
    proximal_T: torch.Tensor,
    advantages_T: torch.Tensor,
    weights_T: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """`-w * A * logprobs`: the plain policy gradient. Source: Williams 1992, Simple statistical gradient-following
    algorithms for connectionist reinforcement learning.

    `proximal_T` has no part, and no token is clipped.
    """
    return -weights_T * advantages_T * logprobs_T, torch.zeros_like(logprobs_T, dtype=torch.bool)


def opd(
    logprobs_T: torch.Tensor,
    proximal_T: torch.Tensor,
    advantages_T: torch.Tensor,
    weights_T: torch.Tensor,
    teacher_T: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """`w * (logprobs - teacher)`, with the gradient `w * (logprobs - teacher) * d logprobs`: on-policy distillation,
    which is the plain policy gradient where each token's advantage is `teacher - logprobs`. Its value estimates
    KL(trained || teacher). Source: Agarwal et al. 2024, On-policy distillation of language models; Lu 2025, On-policy
    distillation, whose form with one sampled token this is.

    teacher_T: float32 [T], log-probs of the tokens under the teacher, without gradient. `proximal_T` and `advantages_T`
    have no part, and no token is clipped. slime and prime-rl take the advantage at the policy that sampled, here it is
    at the trained one; on rows of the present version they are the same.
    """
    return weights_T * k1_straight(logprobs_T, teacher_T), torch.zeros_like(logprobs_T, dtype=torch.bool)


def dppo(
    logprobs_T: torch.Tensor,
    proximal_T: torch.Tensor,
    advantages_T: torch.Tensor,
    weights_T: torch.Tensor,
    clip_low: float,
    clip_high: float,
    divergence: str = "tv",
    *,
    cap: float = RATIO_CAP,
) -> tuple[torch.Tensor, torch.Tensor]:
    """`-w * A * sg(min(r, cap)) * logprobs` where the token's probability has not moved too far in the direction that A
    pushes it, 0 elsewhere. Source: Qi et al. 2026, DPPO (arXiv:2602.04879), its two binary divergences, between the
    token and all others; as in verl.

    divergence "tv": p - q, p and q being exp(logprobs) and exp(proximal); masked above clip_high where A > 0, below
    -clip_low elsewhere (prime-rl and SkyRL have this one). "kl": KL of the two-valued distribution of q from that of
    p; masked where it is above clip_high and p > q, or above clip_low and p < q. The paper takes 0.2 for tv and 0.05
    for kl, against the policy that sampled (`proximal = "rollout"`). prime-rl adds `1e-3 * (logprobs - proximal)^2`.
    """
    current_T = logprobs_T.detach()
    p_T, q_T = current_T.exp(), proximal_T.exp()
    if divergence == "tv":
        up_T, down_T = p_T - q_T > clip_high, p_T - q_T < -clip_low
    else:
        others_T = (1.0 - q_T).clamp(min=_LEAST)
        kl_T = q_T * (proximal_T - current_T) + others_T * (others_T / (1.0 - p_T).clamp(min=_LEAST)).log()
        up_T, down_T = (kl_T > clip_high) & (p_T > q_T), (kl_T > clip_low) & (p_T < q_T)
    masked_T = torch.where(advantages_T > 0, up_T, down_T)
    ratio_T = ratios(current_T, proximal_T).clamp(max=cap)
    return torch.where(masked_T, 0.0, -weights_T * advantages_T * ratio_T * logprobs_T), masked_T
