"""Proximal policies: what the loss's ratio is against, and so what its clip holds the update close to.

A token was sampled by some older version (`rollout_logprobs`), and one optimizer step is taken for each batch. So the
policy before the step is the current one, its log-probs the detached ones of the same forward, and no second forward
is needed. Every function takes current_T and rollout_T, float32 [T], the log-probs under the trained policy (detached)
and under the one that sampled, and lags_T, float32 [T], how many steps lie between the two; it returns proximal_T,
float32 [T], without gradient. On rows of the present version all three give the same ratio, 1.

Knows nothing of clipping and of weights: what is lost by `proximal` not being the sampling policy is `corrections`'.
"""

from collections.abc import Callable

import torch


def recompute(current_T: torch.Tensor, rollout_T: torch.Tensor, lags_T: torch.Tensor) -> torch.Tensor:
    """The policy before the step: the ratio is 1 and nothing is ever clipped, however old the row is.

    Source: decoupled PPO, Hilton et al. 2021, Batch size-invariance for policy optimization; Fu et al. 2025, AReaL.
    """
    return current_T.detach()


def rollout(current_T: torch.Tensor, rollout_T: torch.Tensor, lags_T: torch.Tensor) -> torch.Tensor:
    """The policy that sampled, as in classic PPO and GRPO: a token that has moved past the clip already gives no
    further push in that direction.

    Source: Schulman et al. 2017, Proximal policy optimization algorithms. verl calls it bypass mode.
    """
    return rollout_T.detach()


def interpolate(current_T: torch.Tensor, rollout_T: torch.Tensor, lags_T: torch.Tensor) -> torch.Tensor:
    """The version one step before the trained one, guessed on the line between the two ends:
    `current + (rollout - current) / lag`, and `current` for a lag of 0. At a lag of 1 it is `rollout`; the older the
    row, the closer to `current`.

    Source: Li et al. 2025, A-3PO; the method `loglinear` of AReaL, whose alpha counts from the other end.
    """
    share_T = torch.where(lags_T > 0, 1.0 / lags_T.clamp(min=1.0), 0.0)
    # Exact at both ends, which a sum of a product is not.
    return torch.lerp(current_T.detach(), rollout_T.detach().to(current_T.dtype), share_T.to(current_T.dtype))


PROXIMALS: dict[str, Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "recompute": recompute,
    "rollout": rollout,
    "interpolate": interpolate,
}
