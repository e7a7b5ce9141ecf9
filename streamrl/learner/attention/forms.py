"""Attention in other forms than the plain one: a sliding window, a soft cap of the scores, attention sinks.

Guarantees: what transformers computes for a row alone, with gradients; no more than QUERY_BLOCK rows of scores are held
at once, made again in the backward. Slower than a kernel, and only for layers that ask for it.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

QUERY_BLOCK = 256


class Form(NamedTuple):
    """What a layer asks for. window: keys that a query sees, itself included; None for all. cap: scores are
    `cap * tanh(score / cap)`. sinks: [heads], a score of each head that takes weight and gives nothing."""

    window: int | None = None
    cap: float | None = None
    sinks: torch.Tensor | None = None

    def binds(self, longest: int) -> bool:
        """Whether it makes a difference for segments of at most so many keys."""
        return self.cap is not None or self.sinks is not None or (self.window is not None and self.window < longest)


def attend_formed(
    query_NHQD: torch.Tensor, key_NKLD: torch.Tensor, value_NKLE: torch.Tensor, scale: float, form: Form
) -> torch.Tensor:
    """[N, H, Q, E]: N segments of L keys, of which the last Q are the queries' own."""
    queries, keys = query_NHQD.shape[2], key_NKLD.shape[2]
    blocks = []
    for start in range(0, queries, QUERY_BLOCK):
        stop = min(start + QUERY_BLOCK, queries)
        last = keys - queries + stop
        first = 0 if form.window is None else max(0, keys - queries + start - form.window + 1)
        parts = query_NHQD[:, :, start:stop], key_NKLD[:, :, first:last], value_NKLE[:, :, first:last]
        seen = _seen(stop - start, last - first, form.window, query_NHQD.device)
        if torch.is_grad_enabled() and queries > QUERY_BLOCK:
            block = checkpoint(_attend, *parts, seen, scale, form.cap, form.sinks, use_reentrant=False)
        else:
            block = _attend(*parts, seen, scale, form.cap, form.sinks)
        blocks.append(block)
    return torch.cat(blocks, dim=2)


def _seen(queries: int, keys: int, window: int | None, device: torch.device) -> torch.Tensor:
    """bool [queries, keys]: the last query is the last key, and each sees the keys up to itself, `window` of them."""
    distance = torch.arange(queries, device=device)[:, None] + (keys - queries) - torch.arange(keys, device=device)
    seen = distance >= 0
    return seen if window is None else seen & (distance < window)


def _attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    seen: torch.Tensor,
    scale: float,
    cap: float | None,
    sinks: torch.Tensor | None,
) -> torch.Tensor:
    grouped = query.shape[1] != key.shape[1]
    if cap is None and sinks is None:
        return F.scaled_dot_product_attention(query, key, value, attn_mask=seen, scale=scale, enable_gqa=grouped)
    repeat = query.shape[1] // key.shape[1]
    key, value = (x.repeat_interleave(repeat, 1) if grouped else x for x in (key, value))
    scores = query @ key.transpose(2, 3) * scale
    if cap is not None:
        scores = cap * torch.tanh(scores / cap)
    scores = scores.float().masked_fill(~seen, float("-inf"))
    if sinks is None:
        weights = torch.softmax(scores, dim=-1)
    else:
        column = sinks.float()[None, :, None, None].expand(*scores.shape[:3], 1)
        weights = torch.softmax(torch.cat([scores, column], dim=-1), dim=-1)[..., :-1]
    return weights.to(value.dtype) @ value
