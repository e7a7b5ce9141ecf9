"""The kernels between the matrix products: RMS norm with the addition before it, and the gate of the MLP.

Guaranteed: a row's numbers depend on that row alone. Sums are in float32; what is stored is rounded where transformers
rounds it. Triton kernels; a CPU runs them by Triton's interpreter.

Shapes: T rows, E hidden size, I intermediate size.
"""

import torch
import triton
import triton.language as tl


@triton.jit
def _rms_norm(x_ptr, added_ptr, weight_ptr, out_ptr, eps, size, ADD: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    inside = at < size
    x = tl.load(x_ptr + row * size + at, mask=inside, other=0.0)
    if ADD:
        added = tl.load(added_ptr + row * size + at, mask=inside, other=0.0)
        x = (x.to(tl.float32) + added.to(tl.float32)).to(x.dtype)
        tl.store(x_ptr + row * size + at, x, mask=inside)
    wide = x.to(tl.float32)
    scale = tl.rsqrt(tl.sum(wide * wide, 0) / size + eps)
    weight = tl.load(weight_ptr + at, mask=inside, other=0.0)
    scaled = (wide * scale).to(x.dtype).to(tl.float32) * weight.to(tl.float32)
    tl.store(out_ptr + row * size + at, scaled.to(x.dtype), mask=inside)


@triton.jit
def _gate(both_ptr, out_ptr, size, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < size
    gate = tl.load(both_ptr + row * 2 * size + at, mask=inside, other=0.0)
    up = tl.load(both_ptr + row * 2 * size + size + at, mask=inside, other=0.0)
    wide = gate.to(tl.float32)
    silu = (wide / (1.0 + tl.exp(-wide))).to(gate.dtype).to(tl.float32)
    tl.store(out_ptr + row * size + at, (silu * up.to(tl.float32)).to(gate.dtype), mask=inside)


GATE_BLOCK = 1024


def rms_norm(
    x_TE: torch.Tensor, weight_E: torch.Tensor, eps: float, added_TE: torch.Tensor | None = None
) -> torch.Tensor:
    """RMS norm of x, [T, E]. With `added`, x becomes x + added first, in place."""
    rows, size = x_TE.shape
    out = torch.empty_like(x_TE)
    block = triton.next_power_of_2(size)
    added = x_TE if added_TE is None else added_TE
    warps = min(8, max(1, block // 256))
    _rms_norm[(rows,)](x_TE, added, weight_E, out, eps, size, ADD=added_TE is not None, BLOCK=block, num_warps=warps)
    return out


def gate(both_TI: torch.Tensor) -> torch.Tensor:
    """silu(gate) * up, [T, I], of their joint projection [T, 2 I]."""
    rows, size = both_TI.shape[0], both_TI.shape[1] // 2
    out = both_TI.new_empty(rows, size)
    _gate[(rows, triton.cdiv(size, GATE_BLOCK))](both_TI, out, size, BLOCK=GATE_BLOCK)
    return out
