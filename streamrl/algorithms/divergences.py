"""Estimates of the KL divergence from a reference policy, as terms of a loss: one number for each trained token.

Pure functions of logprobs_T, float32 [T] with gradient, and reference_T, without; `d = logprobs - reference`. Tokens
are taken as if the trained policy had sampled them. Each returns float32 [T]. In expectation all
values are KL(trained || reference), but not all gradients are its gradient: that of k1 is the score, which is 0 in
expectation; that of k2 is the KL's; that of k3 is of KL(reference || trained). The straight-through forms, named with a
plus, have the value of one and the gradient of k2 (Tang and Munos 2025, On a few pitfalls in KL divergence gradient
estimation for RL).

verl clips the value of k3 to +-10, behind which its gradient is 0 however far the policy is: `limit = 10.0`.
"""

from collections.abc import Callable

import torch

from streamrl.algorithms.corrections import LOG_RATIO_LIMIT


def k1(logprobs_T: torch.Tensor, reference_T: torch.Tensor) -> torch.Tensor:
    """`d`: unbiased, of large variance, may be negative. As a loss it does nothing but add noise."""
    return logprobs_T - reference_T


def k2(logprobs_T: torch.Tensor, reference_T: torch.Tensor) -> torch.Tensor:
    """`d^2 / 2`: biased, of low variance. Source: Schulman 2020, Approximating KL divergence."""
    return 0.5 * (logprobs_T - reference_T) ** 2


def k3(logprobs_T: torch.Tensor, reference_T: torch.Tensor, *, limit: float | None = None) -> torch.Tensor:
    """`exp(-d) - 1 + d`: unbiased, never negative. Source: Schulman 2020; Shao et al. 2024, DeepSeekMath. The exponent
    is within +-20."""
    behind_T = (reference_T - logprobs_T).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    value_T = behind_T.exp() - 1.0 - behind_T
    return value_T if limit is None else value_T.clamp(-limit, limit)


def k1_straight(logprobs_T: torch.Tensor, reference_T: torch.Tensor) -> torch.Tensor:
    """The value of k1, the gradient of k2 (verl: `k1+`)."""
    return _straight(k1(logprobs_T, reference_T), k2(logprobs_T, reference_T))


def k3_straight(logprobs_T: torch.Tensor, reference_T: torch.Tensor, *, limit: float | None = None) -> torch.Tensor:
    """The value of k3, the gradient of k2 (verl: `k3+`)."""
    return _straight(k3(logprobs_T, reference_T, limit=limit), k2(logprobs_T, reference_T))


def _straight(value_T: torch.Tensor, slope_T: torch.Tensor) -> torch.Tensor:
    return value_T.detach() + slope_T - slope_T.detach()


DIVERGENCES: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "k2": k2,
    "k3": k3,
    "k1+": k1_straight,
    "k3+": k3_straight,
}
"""Those that a loss may have: k1 as a loss is noise."""

REWARD_DIVERGENCES: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {"k1": k1, "k2": k2, "k3": k3}
"""Those that a reward may have: a reward has no gradient, so the straight-through forms say nothing of their own."""
