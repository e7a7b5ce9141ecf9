"""Linear layers that read the same input, as one operation: in the backward their products add up in place.

Guarantees: outputs are those of the layers; the gradient of the input is the sum of what each gives, each added by the
matrix product that makes it, so no pass over memory adds them up.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd.function import FunctionCtx


class SharedInput(torch.autograd.Function):
    """`apply(x, *weights)` gives x @ weight.T of each. x: [..., K]; weights: [N, K] each."""

    @staticmethod
    def forward(ctx: FunctionCtx, x: torch.Tensor, *weights: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ctx.save_for_backward(x, *weights)
        return tuple(F.linear(x, weight) for weight in weights)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x, *weights = ctx.saved_tensors
        of_x, of_weights = None, []
        x_TK = x.flatten(0, -2)
        for gradient, weight, needed in zip(gradients, weights, ctx.needs_input_grad[1:], strict=True):
            of_out = gradient.flatten(0, -2)
            if ctx.needs_input_grad[0]:
                of_x = of_out @ weight if of_x is None else of_x.addmm_(of_out, weight)
            of_weights.append(of_out.T @ x_TK if needed else None)
        return None if of_x is None else of_x.view_as(x), *of_weights


def apply_all(layers: Sequence[nn.Module], x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Each layer's output. Layers with a bias, and those that adapters stand in for, compute by themselves."""
    if all(type(layer) is nn.Linear and layer.bias is None for layer in layers):
        outputs: tuple[torch.Tensor, ...] = SharedInput.apply(x, *(layer.weight for layer in layers))
        return outputs
    return tuple(layer(x) for layer in layers)
