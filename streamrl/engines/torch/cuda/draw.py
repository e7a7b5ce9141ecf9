"""Drawing the next token of every row on the device, in one kernel that also moves the row on.

Guaranteed: what `sampling.choose` guarantees. A row's token is a function of its logits, parameters, stream and index;
the uniform number is that of `sampling.uniforms`; a token of probability zero is never drawn; a row whose logits are
not finite gives a log-prob of NaN. Top-k and top-p look for their threshold bit by bit over the ordered bits of a
float, so nothing is sorted, and a token that ties with the last one kept is kept.

Shapes: B rows, V vocabulary.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from streamrl.engines.torch.sampling import UNIFORM_BITS

BLOCK = 8192
"""Logits that a program reads at once."""


@triton.jit
def _ordered(x):  # type: ignore[no-untyped-def]
    """uint32 in the order of the floats x."""
    bits = x.to(tl.float32).to(tl.int32, bitcast=True)
    flipped = tl.where(bits < 0, ~bits, bits ^ -2147483648)
    return flipped.to(tl.uint32, bitcast=True)


@triton.jit
def _threshold(  # type: ignore[no-untyped-def]
    logits_ptr, size, least, wanted, peak, heat, COUNT: tl.constexpr, BITS: tl.constexpr, BLOCK: tl.constexpr
):
    """The greatest ordered value such that what is kept at or above it weighs `wanted` or more; at least `least`.
    COUNT: whether each token weighs 1, else its share exp((x - peak) / heat)."""
    found = tl.zeros((), tl.uint32)
    for bit in range(BITS):
        tried = found | (tl.full((), 1, tl.uint32) << (31 - bit))
        weight = tl.zeros((), tl.float32)
        for start in range(0, size, BLOCK):
            at = start + tl.arange(0, BLOCK)
            x = tl.load(logits_ptr + at, mask=at < size, other=float("-inf")).to(tl.float32)
            order = _ordered(x)
            kept = (at < size) & (order >= tried) & (order >= least)
            if COUNT:
                weight += tl.sum(tl.where(kept, 1.0, 0.0), 0)
            else:
                weight += tl.sum(tl.where(kept, tl.exp((x - peak) / heat), 0.0), 0)
        found = tl.where(weight >= wanted, tried, found)
    return tl.maximum(found, least)


@triton.jit
def _block(logits_ptr, size, start, least, floor, peak, heat, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """Of the logits from `start` on: their places, themselves, and the share of each, 0 for one that is not kept."""
    at = start + tl.arange(0, BLOCK)
    x = tl.load(logits_ptr + at, mask=at < size, other=float("-inf")).to(tl.float32)
    score = (x - peak) / heat
    kept = (at < size) & (_ordered(x) >= least) & (score >= floor)
    return at, x, tl.where(kept, tl.exp(score), 0.0)


@triton.jit
def _peak(logits_ptr, size, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """The greatest logit, and how many are not finite."""
    peak = tl.full((), float("-inf"), tl.float32)
    finite = tl.zeros((), tl.int32)
    for start in range(0, size, BLOCK):
        at = start + tl.arange(0, BLOCK)
        x = tl.load(logits_ptr + at, mask=at < size, other=0.0).to(tl.float32)
        finite += tl.sum((tl.abs(x) < float("inf")).to(tl.int32), 0)
        peak = tl.maximum(peak, tl.max(tl.where(at < size, x, float("-inf")), 0))
    return peak, tl.cdiv(size, BLOCK) * BLOCK - finite


@triton.jit
def _weigh(logits_ptr, size, least, floor, peak, heat, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """The sum of the shares that are kept, and the first place of the greatest logit."""
    total = tl.zeros((), tl.float32)
    best = tl.full((), 2147483647, tl.int32)
    for start in range(0, size, BLOCK):
        at, x, shares = _block(logits_ptr, size, start, least, floor, peak, heat, BLOCK)
        total += tl.sum(shares, 0)
        best = tl.minimum(best, tl.min(tl.where((at < size) & (x == peak), at, 2147483647), 0))
    return total, best


@triton.jit
def _place(logits_ptr, size, least, floor, peak, heat, target, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """The first place at which the sum of the shares is over `target`: its block, then the place in it."""
    before = tl.zeros((), tl.float32)
    ahead = tl.zeros((), tl.float32)
    found = tl.full((), -1, tl.int32)
    for start in range(0, size, BLOCK):
        _, _, shares = _block(logits_ptr, size, start, least, floor, peak, heat, BLOCK)
        after = ahead + tl.sum(shares, 0)
        passes = (found < 0) & (after > target)
        found = tl.where(passes, start, found)
        before = tl.where(passes, ahead, before)
        ahead = after
    at, _, shares = _block(logits_ptr, size, tl.maximum(found, 0), least, floor, peak, heat, BLOCK)
    passed = (before + tl.cumsum(shares, 0) > target) & (shares > 0.0)
    # Rounding may leave none: then the last that has a share.
    first = tl.min(tl.where(passed, at, 2147483647), 0)
    last = tl.max(tl.where(shares > 0.0, at, 0), 0)
    return tl.minimum(first, last)


@triton.jit
def _uniform(  # type: ignore[no-untyped-def]
    stream, index, GOLDEN: tl.constexpr, MIX_1: tl.constexpr, MIX_2: tl.constexpr, UNIFORM_BITS: tl.constexpr
):
    """Number `index` of a stream: see `sampling.uniforms`."""
    state = stream.to(tl.uint64, bitcast=True) + (index.to(tl.uint64) + 1) * tl.full((), GOLDEN, tl.uint64)
    state = (state ^ (state >> 30)) * tl.full((), MIX_1, tl.uint64)
    state = (state ^ (state >> 27)) * tl.full((), MIX_2, tl.uint64)
    state = state ^ (state >> 31)
    return (state >> (64 - UNIFORM_BITS)).to(tl.int32).to(tl.float32) / (1 << UNIFORM_BITS)


@triton.jit
def _draw(  # type: ignore[no-untyped-def]
    logits_ptr,
    temperature_ptr,
    top_k_ptr,
    top_p_ptr,
    min_p_ptr,
    stream_ptr,
    index_ptr,
    token_ptr,
    position_ptr,
    out_token_ptr,
    out_logprob_ptr,
    size,
    last_position,
    GOLDEN: tl.constexpr,
    MIX_1: tl.constexpr,
    MIX_2: tl.constexpr,
    UNIFORM_BITS: tl.constexpr,
    BITS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0)
    position = tl.load(position_ptr + row)
    if position >= 0:
        logits_ptr += row.to(tl.int64) * size
        asked = tl.load(temperature_ptr + row)
        heat = tl.where(asked == 0.0, 1.0, asked)
        peak, broken = _peak(logits_ptr, size, BLOCK)
        least = tl.zeros((), tl.uint32)
        floor = tl.full((), float("-inf"), tl.float32)
        if (asked != 0.0) & (broken == 0):
            top_k = tl.load(top_k_ptr + row)
            if (top_k > 0) & (top_k < size):
                least = _threshold(logits_ptr, size, least, top_k.to(tl.float32), peak, heat, True, BITS, BLOCK)
            top_p = tl.load(top_p_ptr + row)
            if top_p < 1.0:
                whole, _ = _weigh(logits_ptr, size, least, floor, peak, heat, BLOCK)
                least = _threshold(logits_ptr, size, least, top_p * whole, peak, heat, False, BITS, BLOCK)
            min_p = tl.load(min_p_ptr + row)
            if min_p > 0.0:
                floor = tl.log(min_p)
        total, best = _weigh(logits_ptr, size, least, floor, peak, heat, BLOCK)
        index = tl.load(index_ptr + row)
        target = total * _uniform(tl.load(stream_ptr + row), index, GOLDEN, MIX_1, MIX_2, UNIFORM_BITS)
        drawn = _place(logits_ptr, size, least, floor, peak, heat, target, BLOCK)
        token = tl.minimum(tl.maximum(tl.where(asked == 0.0, best, drawn), 0), size - 1)
        chosen = tl.load(logits_ptr + token).to(tl.float32)
        logprob = tl.where(broken > 0, float("nan"), (chosen - peak) / heat - tl.log(total))
        tl.store(out_token_ptr + row, token.to(tl.int32))
        tl.store(out_logprob_ptr + row, logprob)
        tl.store(token_ptr + row, token.to(tl.int64))
        tl.store(position_ptr + row, tl.minimum(position + 1, last_position))
        tl.store(index_ptr + row, index + 1)


class RowState(NamedTuple):
    """What the device knows of B rows that decode.

    token: int64, the token that is read next. position: int64, its position; -1 where there is no row. index: int64,
    which token is drawn next. stream: int64 with the bits of a mixed seed. temperature (0 is greedy), top_p, min_p:
    float32. top_k: int32, 0 off.
    """

    token: torch.Tensor
    position: torch.Tensor
    index: torch.Tensor
    stream: torch.Tensor
    temperature: torch.Tensor
    top_k: torch.Tensor
    top_p: torch.Tensor
    min_p: torch.Tensor


GOLDEN, MIX_1, MIX_2 = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
"""Those of `sampling`, as numbers that a kernel can hold."""


def draw(logits_BV: torch.Tensor, rows: RowState, tokens_B: torch.Tensor, logprobs_B: torch.Tensor, last: int) -> None:
    """Draw a token for each row that is there, and move it on: its token, position (`last` at most) and index.

    tokens_B: int32, logprobs_B: float32, where the results go. See `sampling.choose` for what a log-prob means.
    """
    count, size = logits_BV.shape
    _draw[(count,)](
        logits_BV,
        rows.temperature,
        rows.top_k,
        rows.top_p,
        rows.min_p,
        rows.stream,
        rows.index,
        rows.token,
        rows.position,
        tokens_B,
        logprobs_B,
        size,
        last,
        GOLDEN=GOLDEN,
        MIX_1=MIX_1,
        MIX_2=MIX_2,
        UNIFORM_BITS=UNIFORM_BITS,
        BITS=16 if logits_BV.dtype is torch.bfloat16 else 32,
        BLOCK=min(BLOCK, triton.next_power_of_2(size)),
        num_warps=8,
    )
