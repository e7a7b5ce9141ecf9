"""The learning rate as a pure function of the step: nothing to save, nothing to restore."""

import math
from collections.abc import Callable

from streamrl.config.schema.learner import OptimizerConfig

DECAYS: dict[str, Callable[[float], float]] = {
    "constant": lambda _progress: 1.0,
    "linear": lambda progress: 1.0 - progress,
    "cosine": lambda progress: 0.5 * (1.0 + math.cos(math.pi * progress)),
}
"""From progress in [0, 1] to height in [0, 1]: the share of the way from the last rate up to the peak."""


def lr_factor(step: int, *, warmup_steps: int, total_steps: int, decay: str, min_lr_ratio: float) -> float:
    """The rate of update number `step` (from 0) as a share of the peak.

    It rises linearly as (step + 1) / warmup_steps, is 1 at the last warm-up update, and falls to
    `min_lr_ratio` at update total_steps - 1, where it stays. `constant` stays at 1.
    """
    if step < warmup_steps:
        return (step + 1) / warmup_steps
    peak = max(warmup_steps - 1, 0)
    span = total_steps - 1 - peak
    progress = min((step - peak) / span, 1.0) if span > 0 else float(step > peak)
    return min_lr_ratio + (1.0 - min_lr_ratio) * DECAYS[decay](progress)


def learning_rate(step: int, optimizer: OptimizerConfig, total_steps: int) -> float:
    """The rate of update number `step` (from 0) under the configuration."""
    return optimizer.lr * lr_factor(
        step,
        warmup_steps=optimizer.warmup_steps,
        total_steps=total_steps,
        decay=optimizer.decay,
        min_lr_ratio=optimizer.min_lr_ratio,
    )
