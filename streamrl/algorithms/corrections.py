"""Corrections: how much a token's loss weighs for having been sampled by another policy than `proximal`.

`importance` gives the ratio of the two policies; every correction takes it, ratio_T, float32 [T] without gradient, the
upper bound of a weight, and `low`, the lower one, which `icepop` alone has. Ratio and weight together reach from the
sampling policy to the trained one.

A weight of 0 leaves the token in the denominators, which are counted before any forward: a batch of which half is
zeroed makes half a step. (verl's IcePop does so too; slime's masked form takes the token out of the mean.)
Knows nothing of clipping, advantages or aggregation.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch

from streamrl.algorithms.levels import LEVELS

LOG_RATIO_LIMIT = 20.0
"""Bound of a log ratio before `exp`, as in verl: beyond it the weight has no meaning, only a chance to
overflow."""


class Correction(NamedTuple):
    """weights_T: float32 [T], detached. truncated_T: bool [T], where a bound decided the weight."""

    weights_T: torch.Tensor
    truncated_T: torch.Tensor


def importance(
    proximal_T: torch.Tensor, rollout_T: torch.Tensor, level: str = "token", lengths_R: torch.Tensor | None = None
) -> torch.Tensor:
    """`exp(proximal - rollout)`, the exponent within +-20: float32 [T], without gradient.

    proximal_T, rollout_T: float32 [T], log-probs under the policy that the loss's ratio is against and under the one
    that sampled. level: whether the ratio is the token's, the product over its row, or the geometric mean over its row
    (see `levels`, also for lengths_R, which "token" does without).
    """
    log_ratio_T = (proximal_T - rollout_T).detach()
    if level != "token":
        assert lengths_R is not None
        log_ratio_T = LEVELS[level](log_ratio_T, lengths_R)
    return log_ratio_T.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()


def none(ratio_T: torch.Tensor, cap: float, low: float = 0.0) -> Correction:
    """Every token weighs 1. Nothing else has a part."""
    return Correction(torch.ones_like(ratio_T), torch.zeros_like(ratio_T, dtype=torch.bool))


def tis(ratio_T: torch.Tensor, cap: float, low: float = 0.0) -> Correction:
    """Truncated importance sampling: `min(ratio, cap)`.

    Source: Ionides 2008; for RL with a separate engine Yao et al. 2025, Your efficient RL framework secretly brings
    you off-policy RL training.
    """
    return Correction(ratio_T.clamp(max=cap), ratio_T > cap)


def icepop(ratio_T: torch.Tensor, cap: float, low: float = 0.0) -> Correction:
    """The ratio where it lies from `low` to `cap`, 0 elsewhere. Source: Ling team 2025, IcePop, Every step evolves;
    bounds of 0.5 and 5 there, token level. The bounds are of trainer over rollout, as in verl."""
    outside_T = (ratio_T < low) | (ratio_T > cap)
    return Correction(torch.where(outside_T, 0.0, ratio_T), outside_T)


def mis(ratio_T: torch.Tensor, cap: float, low: float = 0.0) -> Correction:
    """Masked importance sampling: the ratio where it is at most `cap`, 0 beyond. Source: Liu et al. 2025, When speed
    kills stability, which takes it at the level of sequences."""
    return Correction(torch.where(ratio_T > cap, 0.0, ratio_T), ratio_T > cap)


CORRECTIONS: dict[str, Callable[[torch.Tensor, float, float], Correction]] = {
    "none": none,
    "tis": tis,
    "icepop": icepop,
    "mis": mis,
}
