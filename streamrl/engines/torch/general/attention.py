"""Attention as the families of transformers want it: a scale, a sliding window, a soft cap, attention sinks.

`attend` is `eager.attention.attend` with these; what none of them asks for takes the same steps, so that a row's
numbers do not depend on what else is in the call.
"""

from typing import NamedTuple

import torch

from streamrl.engines.torch.batch_invariance import KEY_BLOCK

HIDDEN = -1e30
"""Added to the score of a key that a query does not see; finite in float32 and bfloat16. Its exponential is zero."""


class Form(NamedTuple):
    """What a layer asks for. window: keys that a query sees, itself included; None for all. cap: scores are
    `cap * tanh(score / cap)`. sinks: [heads], a score of each head that takes weight and gives nothing."""

    scale: float
    window: int | None
    cap: float | None
    sinks: torch.Tensor | None


def attend(
    query_BGRD: torch.Tensor, key_BLD: torch.Tensor, value_BLE: torch.Tensor, hidden_BRL: torch.Tensor, form: Form
) -> torch.Tensor:
    """softmax(form(query key^T) + hidden) value, [B, G, R, E]: of B key heads each, G query heads of R queries.

    hidden: 0 where a query sees a key, else HIDDEN; broadcastable to [B, R, L]. The softmax is in float32."""
    heads, queries, length = query_BGRD.shape[1], query_BGRD.shape[2], key_BLD.shape[1]
    flat = query_BGRD.flatten(1, 2)
    scores = torch.bmm(flat, key_BLD.transpose(1, 2)).unflatten(1, (heads, queries)) * form.scale
    if form.cap is not None:
        scores = form.cap * torch.tanh(scores / form.cap)
    scores = scores.float() + hidden_BRL[:, None]
    if form.sinks is None:
        probabilities = torch.softmax(scores, dim=-1)
    else:
        kv_heads = form.sinks.shape[0] // heads
        sinks = form.sinks.float().view(kv_heads, heads).repeat(scores.shape[0] // kv_heads, 1)
        column = sinks[:, :, None, None].expand(*scores.shape[:3], 1)
        probabilities = torch.softmax(torch.cat([scores, column], dim=-1), dim=-1)[..., :-1]
    probabilities = probabilities.to(value_BLE.dtype).flatten(1, 2)
    out = torch.bmm(probabilities[..., :KEY_BLOCK], value_BLE[:, :KEY_BLOCK])
    for start in range(KEY_BLOCK, length, KEY_BLOCK):
        stop = min(start + KEY_BLOCK, length)
        out.baddbmm_(probabilities[..., start:stop], value_BLE[:, start:stop])
    return out.unflatten(1, (heads, queries))  # type: ignore[no-any-return]  # torch has no type for it


def hidden_of(last: torch.Tensor, places_L: torch.Tensor, window: int | None) -> torch.Tensor:
    """0 for the keys 0..last, of them the last `window` alone, and HIDDEN for all others; [*last.shape, L], float32."""
    seen = places_L <= last[..., None]
    if window is not None:
        seen &= places_L > last[..., None] - window
    return torch.where(seen, 0.0, HIDDEN)
