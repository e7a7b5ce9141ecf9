"""Finite or not at all: the gates that a number passes before it may change or leave the learner."""

import math
from collections.abc import Mapping

import torch

from streamrl.errors import NonFiniteError


def require_finite(metrics: Mapping[str, float], where: str) -> None:
    """Raise NonFiniteError that names every value which is NaN or infinite, and `where`."""
    bad = {name: value for name, value in metrics.items() if not math.isfinite(value)}
    if bad:
        found = ", ".join(f"{name} = {value}" for name, value in sorted(bad.items()))
        raise NonFiniteError(
            f"{where}: {found}; nothing was applied. A lower learner.optimizer.lr, or a look at the rewards "
            "and rollout log-probs of this batch, is the way on"
        )


def require_finite_weight(name: str, tensor: torch.Tensor) -> None:
    """Raise NonFiniteError when `tensor` holds a NaN or an infinity."""
    if not bool(torch.isfinite(tensor).all()):
        bad = int((~torch.isfinite(tensor)).sum())
        raise NonFiniteError(
            f"weight {name}: {bad} of {tensor.numel()} elements are not finite; it is not published. "
            "Resume from the last checkpoint with a lower learner.optimizer.lr"
        )
