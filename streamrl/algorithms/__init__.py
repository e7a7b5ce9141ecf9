"""The algorithms, by the names that the configuration uses: advantage x loss x proximal x correction x
aggregation are
independent choices. A new one is a pure function in its module and a line here (and its name in the
schema)."""

from collections.abc import Callable

import torch

from streamrl.algorithms import advantages, aggregation, corrections, losses, proximal
from streamrl.algorithms.advantages import BoolArray, DoubleArray
from streamrl.algorithms.aggregation import Denominators
from streamrl.algorithms.corrections import Correction
from streamrl.types import LongArray

ADVANTAGES: dict[str, Callable[[DoubleArray, BoolArray, LongArray], DoubleArray]] = {
    "grpo": advantages.grpo,
    "dr_grpo": advantages.dr_grpo,
    "rloo": advantages.rloo,
}

LOSSES: dict[str, Callable[..., tuple[torch.Tensor, torch.Tensor]]] = {
    "ppo": losses.ppo,
    "reinforce": losses.reinforce,
}

PROXIMALS: dict[str, Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "recompute": proximal.recompute,
    "rollout": proximal.rollout,
    "interpolate": proximal.interpolate,
}

CORRECTIONS: dict[str, Callable[[torch.Tensor, torch.Tensor, float], Correction]] = {
    "none": corrections.none,
    "tis": corrections.tis,
}

AGGREGATIONS: dict[str, Callable[[torch.Tensor, Denominators], torch.Tensor]] = {
    "token_mean": aggregation.token_mean,
    "seq_mean_token_mean": aggregation.seq_mean_token_mean,
    "seq_mean_token_sum": aggregation.seq_mean_token_sum,
}

__all__ = ["ADVANTAGES", "AGGREGATIONS", "CORRECTIONS", "LOSSES", "PROXIMALS", "Denominators"]
