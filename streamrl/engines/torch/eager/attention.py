"""Attention whose result for a query does not depend on what else is in the call.

Why not the library's fused kernel: on CPU it hands the matrix library a product whose inner length is the padded
key length, and beyond some length (224 with MKL on AVX2, for 4 query rows and more) the library splits it into
equal parts, so that the split, and with it the last bits, moves with the padding. Here products over keys have
inner length KEY_BLOCK at most, at fixed places, and key lengths are multiples of KEY_MULTIPLE; masked keys then
add exact zeros at the end of a sum and change nothing. `TorchEngine.self_test` proves it on the machine. For few
query rows it is also faster: 0.5 ms against 0.7 ms for 64 rows, 2 heads of 32, 256 keys.
"""

from typing import TypeVar

import torch

from streamrl.engines.torch.batch_invariance import KEY_BLOCK, KEY_MULTIPLE
from streamrl.types import LongArray

QUERY_BLOCK = 128
"""Query positions of a prompt handled at once; bounds the score matrix and skips most of what causality hides."""


HIDDEN = 1e30
"""Weight of a hidden key for each place that it lies beyond the visible ones; finite in float32 and bfloat16 up
to 10**8 places."""


LengthOrLengths = TypeVar("LengthOrLengths", int, LongArray)


def round_up(length: LengthOrLengths) -> LengthOrLengths:
    """The next multiple of KEY_MULTIPLE, of a number or of each number in an array."""
    return -(-length // KEY_MULTIPLE) * KEY_MULTIPLE


def attend(query_BRD: torch.Tensor, key_BLD: torch.Tensor, value_BLD: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """softmax(query key^T / sqrt(D) + mask) value, [B, R, D]: B independent products of R queries and L keys.

    mask is additive, broadcastable to [B, R, L]. The softmax is in float32.
    """
    scale = query_BRD.shape[-1] ** -0.5
    scores = torch.baddbmm(mask, query_BRD, key_BLD.transpose(1, 2), alpha=scale)
    probabilities = torch.softmax(scores, dim=-1, dtype=torch.float32).to(query_BRD.dtype)
    length = key_BLD.shape[1]
    if length <= KEY_BLOCK:
        return torch.bmm(probabilities, value_BLD)
    out = torch.bmm(probabilities[..., :KEY_BLOCK], value_BLD[:, :KEY_BLOCK])
    for start in range(KEY_BLOCK, length, KEY_BLOCK):
        stop = min(start + KEY_BLOCK, length)
        out.baddbmm_(probabilities[..., start:stop], value_BLD[:, start:stop])
    return out


def length_mask(last_B: torch.Tensor, places_L: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Additive mask [B, 1, L] that lets lane i see keys 0..last_B[i]; both arguments float32.

    A hidden key gets at most -HIDDEN, which no score can lift: its exponential is an exact zero, as with -inf.
    """
    return (last_B[:, None, None] - places_L).clamp_(max=0.0).mul_(HIDDEN).to(dtype)


def causal_attention(heads_MPHD: torch.Tensor, num_heads: int, num_kv_heads: int) -> torch.Tensor:
    """Self-attention of M sequences padded at the end to P, from their [M, P, heads + 2 kv_heads, D]
    projections (query, key, value heads). P is a multiple of KEY_MULTIPLE. Returns [M, P, heads * D]; what it
    holds for padding has no meaning."""
    num, padded, _, dim = heads_MPHD.shape
    by_head = heads_MPHD.transpose(1, 2)
    query = by_head[:, :num_heads].unflatten(1, (num_kv_heads, -1))
    key = by_head[:, num_heads : num_heads + num_kv_heads].reshape(-1, padded, dim)
    value = by_head[:, num_heads + num_kv_heads :].reshape(-1, padded, dim)
    repeat = num_heads // num_kv_heads
    blocks = []
    for start in range(0, padded, QUERY_BLOCK):
        stop = min(start + QUERY_BLOCK, padded)
        rows = query[:, :, :, start:stop].reshape(num * num_kv_heads, repeat * (stop - start), dim)
        mask = _causal_mask(start, stop, heads_MPHD).repeat(repeat, 1)
        out = attend(rows, key[:, :stop], value[:, :stop], mask)
        blocks.append(out.view(num, num_heads, stop - start, dim))
    return torch.cat(blocks, dim=2).transpose(1, 2).reshape(num, padded, num_heads * dim)


def _causal_mask(start: int, stop: int, like: torch.Tensor) -> torch.Tensor:
    """Additive [stop - start, stop]: query `start + i` sees keys 0..start + i."""
    full = torch.full((stop - start, stop), float("-inf"), dtype=like.dtype, device=like.device)
    return full.triu_(start + 1)
