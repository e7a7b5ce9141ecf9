"""Rejection: which tokens are left out because the trained policy has come too far from the one that sampled them.

Pure functions of current_T and rollout_T, float32 [T], log-probs under the policy before the step (detached) and under
the one that sampled; never `proximal`, so what is rejected does not depend on what the ratio is against. With `d =
current - rollout`, each returns float32 [T], a measure of the distance at a level (see `levels`): a row's measure is
the sum ("sequence") or the mean ("geometric") of its tokens'. A rejected token weighs 0 and stays in the denominators.
"""

from collections.abc import Callable

import torch

from streamrl.algorithms.corrections import LOG_RATIO_LIMIT
from streamrl.algorithms.levels import LEVELS


def _distance(current_T: torch.Tensor, rollout_T: torch.Tensor) -> torch.Tensor:
    return (current_T - rollout_T).detach().clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)


def ratio(current_T: torch.Tensor, rollout_T: torch.Tensor, level: str, lengths_R: torch.Tensor) -> torch.Tensor:
    """`exp(d)`, trainer over rollout: the bounds are those of an importance weight. AReaL and slime call it ratio."""
    distance_T = LEVELS[level](_distance(current_T, rollout_T), lengths_R)
    return distance_T.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()


def k1(current_T: torch.Tensor, rollout_T: torch.Tensor, level: str, lengths_R: torch.Tensor) -> torch.Tensor:
    """`-d`, which estimates KL(rollout || trainer): of rollout over trainer, so that `low` bounds it where the ratio is
    LARGE. As in verl."""
    return LEVELS[level](-_distance(current_T, rollout_T), lengths_R)


def k2(current_T: torch.Tensor, rollout_T: torch.Tensor, level: str, lengths_R: torch.Tensor) -> torch.Tensor:
    """`d^2 / 2`, never negative."""
    return LEVELS[level](0.5 * _distance(current_T, rollout_T) ** 2, lengths_R)


def k3(current_T: torch.Tensor, rollout_T: torch.Tensor, level: str, lengths_R: torch.Tensor) -> torch.Tensor:
    """`exp(d) - 1 - d`, never negative; Schulman 2020's estimator of KL(rollout || trainer)."""
    distance_T = _distance(current_T, rollout_T)
    return LEVELS[level](distance_T.exp() - 1.0 - distance_T, lengths_R)


def outside(measure_T: torch.Tensor, low: float | None, high: float | None) -> torch.Tensor:
    """bool [T], where the measure is below `low` or above `high`; None is no bound."""
    outside_T = torch.zeros_like(measure_T, dtype=torch.bool)
    if low is not None:
        outside_T |= measure_T < low
    if high is not None:
        outside_T |= measure_T > high
    return outside_T


REJECTIONS: dict[str, Callable[[torch.Tensor, torch.Tensor, str, torch.Tensor], torch.Tensor]] = {
    "ratio": ratio,
    "k1": k1,
    "k2": k2,
    "k3": k3,
}
"""All but "none", which measures nothing."""
