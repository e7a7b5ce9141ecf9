"""What a decoder layer is made of beside its matrix products and its attention, in plain torch and in Triton.

Guarantees: both are what transformers' Qwen2, Qwen3 and Llama layers compute, with their roundings: norms in float32,
rounded before the weight.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F


class LayerOps(NamedTuple):
    """norm: (x, weight, eps). add_norm: (x, residual, weight, eps) to (x + residual, its norm). rotate: (x [T, heads,
    head_dim], weight of a norm before or None, cos [T, head_dim], sin, eps). gate: (gate, up) to silu(gate) * up."""

    norm: Callable[[torch.Tensor, torch.Tensor, float], torch.Tensor]
    add_norm: Callable[[torch.Tensor, torch.Tensor, torch.Tensor, float], tuple[torch.Tensor, torch.Tensor]]
    rotate: Callable[[torch.Tensor, torch.Tensor | None, torch.Tensor, torch.Tensor, float], torch.Tensor]
    gate: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    wide = x.float()
    wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
    return weight * wide.to(x.dtype)


def add_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    summed = residual + x
    return summed, norm(summed, weight, eps)


def rotate(
    x_THD: torch.Tensor, weight: torch.Tensor | None, cos_TD: torch.Tensor, sin_TD: torch.Tensor, eps: float
) -> torch.Tensor:
    if weight is not None:
        x_THD = norm(x_THD, weight, eps)
    first, second = x_THD.chunk(2, -1)
    return x_THD * cos_TD[:, None] + torch.cat((-second, first), -1) * sin_TD[:, None]


def gate(opened: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    return F.silu(opened) * up


PLAIN_OPS = LayerOps(norm, add_norm, rotate, gate)


def triton_ops() -> LayerOps | None:
    """Those of `streamrl.learner.kernels`; None where there is no Triton."""
    try:
        from streamrl.learner.kernels.gate import Gate
        from streamrl.learner.kernels.norm import AddRmsNorm, RmsNorm
        from streamrl.learner.kernels.rotary import Rotate
    except ModuleNotFoundError:
        return None
    return LayerOps(RmsNorm.apply, AddRmsNorm.apply, Rotate.apply, Gate.apply)
