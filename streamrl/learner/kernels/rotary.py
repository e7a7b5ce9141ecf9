"""Rotary embedding of queries or keys on a GPU, behind the norm over each head that Qwen3 has, in one pass.

Guarantees: float32 inside; the norm has the roundings of transformers'. The second half of a head's dimensions rotates
with the first, as in Llama and Qwen. Nothing but the input and the angles is kept for the backward.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch.autograd.function import FunctionCtx

from streamrl.learner.kernels.launch import programs

ROWS = 16
"""Heads of tokens that a program has at a time."""


@triton.jit
def _forward(
    x_ptr,
    weight_ptr,
    cos_ptr,
    sin_ptr,
    out_ptr,
    rows,
    eps,
    HEADS: tl.constexpr,
    HALF: tl.constexpr,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
    NORM: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, BLOCK)
    inside = (row < rows)[:, None] & (column < HALF)[None, :]
    first = row[:, None] * (2 * HALF) + column[None, :]
    angle = (row // HEADS)[:, None] * (2 * HALF) + column[None, :]
    dtype = out_ptr.dtype.element_ty
    x1 = tl.load(x_ptr + first, mask=inside, other=0.0).to(tl.float32)
    x2 = tl.load(x_ptr + first + HALF, mask=inside, other=0.0).to(tl.float32)
    if NORM:
        rstd = tl.rsqrt((tl.sum(x1 * x1, 1) + tl.sum(x2 * x2, 1)) / (2 * HALF) + eps)[:, None]
        w1 = tl.load(weight_ptr + column, mask=column < HALF, other=0.0).to(tl.float32)[None, :]
        w2 = tl.load(weight_ptr + HALF + column, mask=column < HALF, other=0.0).to(tl.float32)[None, :]
        x1 = ((x1 * rstd).to(dtype).to(tl.float32) * w1).to(dtype).to(tl.float32)
        x2 = ((x2 * rstd).to(dtype).to(tl.float32) * w2).to(dtype).to(tl.float32)
    cos1 = tl.load(cos_ptr + angle, mask=inside, other=0.0).to(tl.float32)
    cos2 = tl.load(cos_ptr + angle + HALF, mask=inside, other=0.0).to(tl.float32)
    sin1 = tl.load(sin_ptr + angle, mask=inside, other=0.0).to(tl.float32)
    sin2 = tl.load(sin_ptr + angle + HALF, mask=inside, other=0.0).to(tl.float32)
    tl.store(out_ptr + first, x1 * cos1 - x2 * sin1, mask=inside)
    tl.store(out_ptr + first + HALF, x2 * cos2 + x1 * sin2, mask=inside)


@triton.jit
def _backward(
    of_out_ptr,
    x_ptr,
    weight_ptr,
    cos_ptr,
    sin_ptr,
    of_x_ptr,
    of_weight_ptr,
    rows,
    eps,
    HEADS: tl.constexpr,
    HALF: tl.constexpr,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
    NORM: tl.constexpr,
):
    column = tl.arange(0, BLOCK)
    of_w1 = tl.zeros([BLOCK], tl.float32)
    of_w2 = tl.zeros([BLOCK], tl.float32)
    for start in range(tl.program_id(0) * ROWS, rows, tl.num_programs(0) * ROWS):
        row = (start + tl.arange(0, ROWS)).to(tl.int64)
        inside = (row < rows)[:, None] & (column < HALF)[None, :]
        first = row[:, None] * (2 * HALF) + column[None, :]
        angle = (row // HEADS)[:, None] * (2 * HALF) + column[None, :]
        of1 = tl.load(of_out_ptr + first, mask=inside, other=0.0).to(tl.float32)
        of2 = tl.load(of_out_ptr + first + HALF, mask=inside, other=0.0).to(tl.float32)
        cos1 = tl.load(cos_ptr + angle, mask=inside, other=0.0).to(tl.float32)
        sin2 = tl.load(sin_ptr + angle + HALF, mask=inside, other=0.0).to(tl.float32)
        turned1 = of1 * cos1 + of2 * sin2
        cos2 = tl.load(cos_ptr + angle + HALF, mask=inside, other=0.0).to(tl.float32)
        sin1 = tl.load(sin_ptr + angle, mask=inside, other=0.0).to(tl.float32)
        turned2 = of2 * cos2 - of1 * sin1
        if NORM:
            x1 = tl.load(x_ptr + first, mask=inside, other=0.0).to(tl.float32)
            x2 = tl.load(x_ptr + first + HALF, mask=inside, other=0.0).to(tl.float32)
            rstd = tl.rsqrt((tl.sum(x1 * x1, 1) + tl.sum(x2 * x2, 1)) / (2 * HALF) + eps)[:, None]
            x1 *= rstd
            x2 *= rstd
            w1 = tl.load(weight_ptr + column, mask=column < HALF, other=0.0).to(tl.float32)[None, :]
            w2 = tl.load(weight_ptr + HALF + column, mask=column < HALF, other=0.0).to(tl.float32)[None, :]
            of_w1 += tl.sum(turned1 * x1, 0)
            of_w2 += tl.sum(turned2 * x2, 0)
            turned1 *= w1
            turned2 *= w2
            common = ((tl.sum(turned1 * x1, 1) + tl.sum(turned2 * x2, 1)) / (2 * HALF))[:, None]
            turned1 = (turned1 - x1 * common) * rstd
            turned2 = (turned2 - x2 * common) * rstd
        tl.store(of_x_ptr + first, turned1, mask=inside)
        tl.store(of_x_ptr + first + HALF, turned2, mask=inside)
    if NORM:
        place = of_weight_ptr + tl.program_id(0) * (2 * HALF) + column
        tl.store(place, of_w1, mask=column < HALF)
        tl.store(place + HALF, of_w2, mask=column < HALF)


class Rotate(torch.autograd.Function):
    """`apply(x, weight, cos, sin, eps)`. x: [T, heads, head_dim]. weight: [head_dim] of the norm, or None for none.
    cos, sin: [T, head_dim]."""

    @staticmethod
    def forward(
        ctx: FunctionCtx,
        x: torch.Tensor,
        weight: torch.Tensor | None,
        cos: torch.Tensor,
        sin: torch.Tensor,
        eps: float,
    ) -> torch.Tensor:
        x, cos, sin = x.contiguous(), cos.contiguous(), sin.contiguous()
        out, rows = torch.empty_like(x), x.shape[0] * x.shape[1]
        _forward[(triton.cdiv(rows, ROWS),)](
            x, x if weight is None else weight, cos, sin, out, rows, eps, NORM=weight is not None, **_shape(x)
        )
        # Without a norm a rotation is undone without knowing what was rotated.
        ctx.save_for_backward(x if weight is not None else None, weight, cos, sin)
        ctx.eps = eps
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x, weight, cos, sin = ctx.saved_tensors
        of_out = gradients[0].contiguous()
        of_x, rows = torch.empty_like(of_out), of_out.shape[0] * of_out.shape[1]
        count = programs(triton.cdiv(rows, ROWS), of_out.device)
        parts = of_out.new_empty((count, of_out.shape[-1]), dtype=torch.float32)
        shape = _shape(of_out)
        if weight is None:
            _backward[(count,)](of_out, of_out, of_out, cos, sin, of_x, parts, rows, ctx.eps, NORM=False, **shape)
            return of_x, None, None, None, None
        _backward[(count,)](of_out, x, weight, cos, sin, of_x, parts, rows, ctx.eps, NORM=True, **shape)
        of_weight = parts.sum(0).to(weight.dtype) if ctx.needs_input_grad[1] else None
        return of_x, of_weight, None, None, None


def _shape(x: torch.Tensor) -> dict[str, int]:
    half = x.shape[-1] // 2
    return {"HEADS": x.shape[1], "HALF": half, "BLOCK": triton.next_power_of_2(half), "ROWS": ROWS, "num_warps": 4}
