"""RMS norm on a GPU, alone or of a sum of two, in one pass over memory forward and one backward.

Guarantees: what transformers' Qwen and Llama norms give, with their roundings: normalised in float32, rounded to the
dtype, times the weight. The weight's gradient is summed in float32, by programs whose parts are added in a fixed order.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch.autograd.function import FunctionCtx

from streamrl.learner.kernels.launch import programs

TILE = 4096
"""Elements that a program has at a time: as many rows as fit."""


@triton.jit
def _forward(
    x_ptr,
    residual_ptr,
    weight_ptr,
    summed_ptr,
    out_ptr,
    rstd_ptr,
    rows,
    eps,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
    ADDS: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, BLOCK)
    inside = (row < rows)[:, None] & (column < SIZE)[None, :]
    places = row[:, None] * SIZE + column[None, :]
    dtype = out_ptr.dtype.element_ty
    x = tl.load(x_ptr + places, mask=inside, other=0.0).to(tl.float32)
    if ADDS:
        x = (x + tl.load(residual_ptr + places, mask=inside, other=0.0).to(tl.float32)).to(dtype)
        tl.store(summed_ptr + places, x, mask=inside)
        x = x.to(tl.float32)
    rstd = tl.rsqrt(tl.sum(x * x, 1) / SIZE + eps)
    weight = tl.load(weight_ptr + column, mask=column < SIZE, other=0.0).to(tl.float32)
    normed = (x * rstd[:, None]).to(dtype).to(tl.float32)
    tl.store(out_ptr + places, normed * weight[None, :], mask=inside)
    tl.store(rstd_ptr + row, rstd, mask=row < rows)


@triton.jit
def _backward(
    of_out_ptr,
    of_summed_ptr,
    x_ptr,
    weight_ptr,
    rstd_ptr,
    of_x_ptr,
    of_weight_ptr,
    rows,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
    ADDS: tl.constexpr,
    OF_WEIGHT: tl.constexpr,
):
    column = tl.arange(0, BLOCK)
    weight = tl.load(weight_ptr + column, mask=column < SIZE, other=0.0).to(tl.float32)
    of_weight = tl.zeros([BLOCK], tl.float32)
    for first in range(tl.program_id(0) * ROWS, rows, tl.num_programs(0) * ROWS):
        row = (first + tl.arange(0, ROWS)).to(tl.int64)
        inside = (row < rows)[:, None] & (column < SIZE)[None, :]
        places = row[:, None] * SIZE + column[None, :]
        of_out = tl.load(of_out_ptr + places, mask=inside, other=0.0).to(tl.float32)
        rstd = tl.load(rstd_ptr + row, mask=row < rows, other=0.0)
        normed = tl.load(x_ptr + places, mask=inside, other=0.0).to(tl.float32) * rstd[:, None]
        weighted = of_out * weight[None, :]
        of_x = (weighted - normed * (tl.sum(weighted * normed, 1) / SIZE)[:, None]) * rstd[:, None]
        if ADDS:
            of_x += tl.load(of_summed_ptr + places, mask=inside, other=0.0).to(tl.float32)
        tl.store(of_x_ptr + places, of_x, mask=inside)
        if OF_WEIGHT:
            of_weight += tl.sum(of_out * normed, 0)
    if OF_WEIGHT:
        tl.store(of_weight_ptr + tl.program_id(0) * SIZE + column, of_weight, mask=column < SIZE)


class RmsNorm(torch.autograd.Function):
    """`apply(x, weight, eps)`. x: [..., H]."""

    @staticmethod
    def forward(ctx: FunctionCtx, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        x = x.contiguous()
        out, rstd = torch.empty_like(x), _per_row(x)
        _launch_forward(x, x, weight, x, out, rstd, eps, adds=False)
        ctx.save_for_backward(x, weight, rstd)
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x, weight, rstd = ctx.saved_tensors
        of_x, of_weight = _launch_backward(gradients[0], None, x, weight, rstd, ctx.needs_input_grad[1])
        return of_x, of_weight, None


class AddRmsNorm(torch.autograd.Function):
    """`apply(x, residual, weight, eps)` gives (x + residual, norm of that)."""

    @staticmethod
    def forward(
        ctx: FunctionCtx, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        x, residual = x.contiguous(), residual.contiguous()
        summed, out, rstd = torch.empty_like(x), torch.empty_like(x), _per_row(x)
        _launch_forward(x, residual, weight, summed, out, rstd, eps, adds=True)
        ctx.save_for_backward(summed, weight, rstd)
        return summed, out

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        summed, weight, rstd = ctx.saved_tensors
        of_summed, of_out = gradients
        of_x, of_weight = _launch_backward(of_out, of_summed, summed, weight, rstd, ctx.needs_input_grad[2])
        return of_x, of_x, of_weight, None


def _per_row(x: torch.Tensor) -> torch.Tensor:
    return torch.empty(x.numel() // x.shape[-1], dtype=torch.float32, device=x.device)


def _shape(size: int) -> dict[str, int]:
    block = triton.next_power_of_2(size)
    return {"SIZE": size, "BLOCK": block, "ROWS": max(TILE // block, 1), "num_warps": 4 if block <= TILE else 8}


def _launch_forward(
    x: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor,
    summed: torch.Tensor,
    out: torch.Tensor,
    rstd: torch.Tensor,
    eps: float,
    adds: bool,
) -> None:
    shape, rows = _shape(x.shape[-1]), len(rstd)
    grid = (triton.cdiv(rows, shape["ROWS"]),)
    _forward[grid](x, residual, weight, summed, out, rstd, rows, eps, ADDS=adds, **shape)


def _launch_backward(
    of_out: torch.Tensor,
    of_summed: torch.Tensor | None,
    x: torch.Tensor,
    weight: torch.Tensor,
    rstd: torch.Tensor,
    of_weight: bool,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    shape, rows, of_out = _shape(x.shape[-1]), len(rstd), of_out.contiguous()
    count = programs(triton.cdiv(rows, shape["ROWS"]), x.device)
    of_x = torch.empty_like(x)
    parts = x.new_empty((count, x.shape[-1]) if of_weight else (0,), dtype=torch.float32)
    _backward[(count,)](
        of_out,
        of_out if of_summed is None else of_summed.contiguous(),
        x,
        weight,
        rstd,
        of_x,
        parts,
        rows,
        ADDS=of_summed is not None,
        OF_WEIGHT=of_weight,
        **shape,
    )
    return of_x, parts.sum(0).to(weight.dtype) if of_weight else None
