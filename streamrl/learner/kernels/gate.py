"""The gate of an MLP on a GPU, silu(gate) * up, in one pass forward and one backward.

Guarantees: as transformers computes it, with its roundings; nothing but the two inputs is kept for the backward.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch.autograd.function import FunctionCtx

BLOCK = 2048


@triton.jit
def _forward(gate_ptr, up_ptr, out_ptr, count, BLOCK: tl.constexpr):
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = place < count
    gate = tl.load(gate_ptr + place, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(up_ptr + place, mask=inside, other=0.0).to(tl.float32)
    opened = (gate * tl.sigmoid(gate)).to(out_ptr.dtype.element_ty).to(tl.float32)
    tl.store(out_ptr + place, opened * up, mask=inside)


@triton.jit
def _backward(of_out_ptr, gate_ptr, up_ptr, of_gate_ptr, of_up_ptr, count, BLOCK: tl.constexpr):
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = place < count
    of_out = tl.load(of_out_ptr + place, mask=inside, other=0.0).to(tl.float32)
    gate = tl.load(gate_ptr + place, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(up_ptr + place, mask=inside, other=0.0).to(tl.float32)
    share = tl.sigmoid(gate)
    tl.store(of_up_ptr + place, of_out * gate * share, mask=inside)
    tl.store(of_gate_ptr + place, of_out * up * share * (1.0 + gate * (1.0 - share)), mask=inside)


class Gate(torch.autograd.Function):
    """`apply(gate, up)`, of one shape."""

    @staticmethod
    def forward(ctx: FunctionCtx, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        gate, up = gate.contiguous(), up.contiguous()
        out = torch.empty_like(gate)
        _forward[(triton.cdiv(gate.numel(), BLOCK),)](gate, up, out, gate.numel(), BLOCK=BLOCK, num_warps=4)
        ctx.save_for_backward(gate, up)
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        gate, up = ctx.saved_tensors
        of_gate, of_up = torch.empty_like(gate), torch.empty_like(up)
        grid = (triton.cdiv(gate.numel(), BLOCK),)
        of_out = gradients[0].contiguous()
        _backward[grid](of_out, gate, up, of_gate, of_up, gate.numel(), BLOCK=BLOCK, num_warps=4)
        return of_gate, of_up
