"""A matrix product whose rows do not know each other: fixed tiles, one order of summation.

Why: a matrix library takes other kernels for other numbers of rows, and the last bits of a row change with its company.
Here a row's sum runs over the inner length in blocks of `INNER`, whatever the number of rows (He et al., "Defeating
Nondeterminism in LLM Inference", 2025). It is slower than the library, most of all for few rows.

Shapes: M rows, K inner length, N columns.
"""

import torch
import triton
import triton.language as tl

ROWS, COLUMNS, INNER = 64, 64, 64


@triton.jit
def _product(  # type: ignore[no-untyped-def]
    x_ptr,
    weight_ptr,
    out_ptr,
    M,
    N,
    K,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    INNER: tl.constexpr,
    PRECISION: tl.constexpr,
):
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    inner = tl.arange(0, INNER)
    sums = tl.zeros((ROWS, COLUMNS), tl.float32)
    for start in range(0, K, INNER):
        inside = start + inner < K
        x = tl.load(
            x_ptr + row.to(tl.int64)[:, None] * K + start + inner[None, :],
            mask=(row < M)[:, None] & inside[None, :],
            other=0.0,
        )
        weight = tl.load(
            weight_ptr + column.to(tl.int64)[:, None] * K + start + inner[None, :],
            mask=(column < N)[:, None] & inside[None, :],
            other=0.0,
        )
        sums = tl.dot(x, tl.trans(weight), sums, input_precision=PRECISION)
    into = row.to(tl.int64)[:, None] * N + column[None, :]
    tl.store(out_ptr + into, sums.to(out_ptr.dtype.element_ty), mask=(row < M)[:, None] & (column < N)[None, :])


def invariant_mm(x_MK: torch.Tensor, weight_KN: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
    """x @ weight, [M, N], in `out` where it is given; weight is a transposed view of contiguous [N, K]."""
    rows, inner = x_MK.shape
    columns = weight_KN.shape[1]
    out = x_MK.new_empty(rows, columns) if out is None else out
    grid = (triton.cdiv(columns, COLUMNS), triton.cdiv(rows, ROWS))
    precision = "ieee" if x_MK.dtype is torch.float32 else "tf32"
    _product[grid](
        x_MK.contiguous(),
        weight_KN.t(),
        out,
        rows,
        columns,
        inner,
        ROWS=ROWS,
        COLUMNS=COLUMNS,
        INNER=INNER,
        PRECISION=precision,
        num_warps=4,
        num_stages=3,
    )
    return out
