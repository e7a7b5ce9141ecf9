"""Proximal policies: what the loss's ratio is against, and so what its clip holds the update close to.

A token was sampled by some older version (`rollout_logprobs`). Every function takes start_T and rollout_T, float32 [T],
the log-probs under the policy before the step's first update (detached) and under the one that sampled, and lags_T,
float32 [T], how many steps lie between the two; it returns proximal_T, float32 [T], without gradient. In the only
update of a step start is the policy that is trained, so its log-probs are those of the same forward; where a step has
several they are computed before. On rows of the present version all three begin with the same ratio, 1.

Knows nothing of clipping and of weights: what is lost by `proximal` not being the sampling policy is `corrections`'.
"""

from collections.abc import Callable

import torch


def recompute(start_T: torch.Tensor, rollout_T: torch.Tensor, lags_T: torch.Tensor) -> torch.Tensor:
    """The policy before the step: the ratio is 1 in its first update, where nothing is clipped however old the row is.

    Source: decoupled PPO, Hilton et al. 2021, Batch size-invariance for policy optimization; Fu et al. 2025, AReaL.
    """
    return start_T.detach()


def rollout(start_T: torch.Tensor, rollout_T: torch.Tensor, lags_T: torch.Tensor) -> torch.Tensor:
    """The policy that sampled, as in classic PPO and GRPO: a token that has moved past the clip already gives no
    further push in that direction.

    Source: Schulman et al. 2017, Proximal policy optimization algorithms. verl calls it bypass mode.
    """
    return rollout_T.detach()


def interpolate(start_T: torch.Tensor, rollout_T: torch.Tensor, lags_T: torch.Tensor) -> torch.Tensor:
    """The version one step before the trained one, guessed on the line between the two ends:
    `start + (rollout - start) / lag`, and `start` for a lag of 0. At a lag of 1 it is `rollout`; the older the
    row, the closer to `start`.

    Source: Li et al. 2025, A-3PO; the method `loglinear` of AReaL, whose alpha counts from the other end.
    """
    share_T = torch.where(lags_T > 0, 1.0 / lags_T.clamp(min=1.0), 0.0)
    # Exact at both ends, which a sum of a product is not.
    return torch.lerp(start_T.detach(), rollout_T.detach().to(start_T.dtype), share_T.to(start_T.dtype))


PROXIMALS: dict[str, Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "recompute": recompute,
    "rollout": rollout,
    "interpolate": interpolate,
}
