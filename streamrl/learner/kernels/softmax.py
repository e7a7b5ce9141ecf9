"""Passes over rows of logits on a GPU: one that reads them once, and one that turns them into their gradients in place.

Guarantees: sums are in float32 whatever the dtype of the logits, and relative to the greatest logit so far (the online
softmax of Milakov and Gimelshein 2018); a logit that is not a number shows in its own row alone. The order of every sum
is fixed, so two passes over the same logits are equal to the bit. As `streamrl.learner.model.logit_passes`, which is
the same in plain torch.
"""

import torch
import triton
import triton.language as tl

COLUMNS = 4096
"""Of one load. 16 logits a thread."""
WARPS = 8


@triton.jit
def _measure(
    logits_ptr,
    stride,
    targets_ptr,
    log_total_ptr,
    entropy_ptr,
    chosen_ptr,
    columns,
    scale,
    COLUMNS: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    logits_ptr += row * stride
    offsets = tl.arange(0, COLUMNS)
    # Finite, so that nothing is subtracted from minus infinity.
    greatest = tl.full([], -1e38, tl.float32)
    total = tl.zeros([COLUMNS], tl.float32)
    moment = tl.zeros([COLUMNS], tl.float32)
    for start in range(0, columns, COLUMNS):
        inside = start + offsets < columns
        logits = tl.load(logits_ptr + start + offsets, mask=inside, other=-1e30).to(tl.float32) * scale
        fresh = tl.maximum(greatest, tl.max(tl.where(inside, logits, -1e38), 0))
        fade = tl.exp(greatest - fresh)
        moment = (moment + total * (greatest - fresh)) * fade
        total = total * fade
        distance = logits - fresh
        share = tl.where(inside, tl.exp(distance), 0.0)
        total += share
        moment += tl.where(inside, share * distance, 0.0)
        greatest = fresh
    whole = tl.sum(total, 0)
    log_whole = tl.log(whole)
    target = tl.load(targets_ptr + row)
    tl.store(log_total_ptr + row, greatest + log_whole)
    tl.store(entropy_ptr + row, log_whole - tl.sum(moment, 0) / whole)
    tl.store(chosen_ptr + row, tl.load(logits_ptr + target).to(tl.float32) * scale)


@triton.jit
def _differentiate(
    logits_ptr,
    stride,
    targets_ptr,
    log_total_ptr,
    entropy_ptr,
    gradient_ptr,
    entropy_gradient_ptr,
    columns,
    scale,
    COLUMNS: tl.constexpr,
    OF_ENTROPY: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    offsets = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = offsets < columns
    places = logits_ptr + row * stride + offsets
    target = tl.load(targets_ptr + row)
    # By the logits that the product gave, so times the scale.
    gradient = tl.load(gradient_ptr + row) * scale
    logprobs = tl.load(places, mask=inside, other=0.0).to(tl.float32) * scale - tl.load(log_total_ptr + row)
    factor = gradient
    if OF_ENTROPY:
        weight = tl.load(entropy_gradient_ptr + row) * scale
        factor += weight * (logprobs + tl.load(entropy_ptr + row))
    found = tl.where(offsets == target, gradient, 0.0) - tl.exp(logprobs) * factor
    tl.store(places, found, mask=inside)


def measure(
    logits_KV: torch.Tensor, targets_K: torch.Tensor, scale: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """As `logit_passes.measure`. Columns of `logits_KV` lie side by side; rows may have room behind them."""
    rows, columns = logits_KV.shape
    found = torch.empty(3, rows, dtype=torch.float32, device=logits_KV.device)
    log_total_K, entropy_K, chosen_K = found.unbind()
    _measure[(rows,)](
        logits_KV,
        logits_KV.stride(0),
        targets_K,
        log_total_K,
        entropy_K,
        chosen_K,
        columns,
        scale,
        COLUMNS=COLUMNS,
        num_warps=WARPS,
    )
    return log_total_K, entropy_K, chosen_K


def differentiate_(
    logits_KV: torch.Tensor,
    targets_K: torch.Tensor,
    scale: float,
    log_total_K: torch.Tensor,
    entropy_K: torch.Tensor,
    gradient_K: torch.Tensor,
    entropy_gradient_K: torch.Tensor | None,
) -> torch.Tensor:
    """As `logit_passes.differentiate_`."""
    rows, columns = logits_KV.shape
    _differentiate[(rows, triton.cdiv(columns, COLUMNS))](
        logits_KV,
        logits_KV.stride(0),
        targets_K,
        log_total_K,
        entropy_K,
        gradient_K,
        gradient_K if entropy_gradient_K is None else entropy_gradient_K,
        columns,
        scale,
        COLUMNS=COLUMNS,
        OF_ENTROPY=entropy_gradient_K is not None,
        num_warps=WARPS,
    )
    return logits_KV
