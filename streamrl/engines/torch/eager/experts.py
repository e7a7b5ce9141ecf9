"""Experts of a layer: which of them a token goes to, and their products over the tokens that come to each.

Guaranteed: a token's numbers depend on its own row only, to the bit, as far as the function that multiplies rows keeps
rows independent: each expert's tokens are multiplied together, and what a token gets from its experts is added in the
order of its own choice. Nothing is dropped, however many tokens choose one expert. It knows neither weights nor layers.

Shapes: T packed tokens, E hidden size, X experts of a layer, K experts of a token.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F

RunExpert = Callable[[int, torch.Tensor], torch.Tensor]
"""(expert, its tokens [R, E]) to [R, E]."""


class Routes(NamedTuple):
    """experts: int64 [T, K], the likeliest first. weights: [T, K], what is got from each counts so much."""

    experts: torch.Tensor
    weights: torch.Tensor


def choose_experts(logits_TX: torch.Tensor, experts_per_token: int, renormalised: bool) -> Routes:
    """The likeliest experts of each token by the softmax over all, in float32; weights in the type of the logits.
    renormalised: the weights of a token sum to 1."""
    chosen = logits_TX.softmax(-1, dtype=torch.float32).topk(experts_per_token, dim=-1)
    weights = chosen.values
    if renormalised:
        weights = weights / _sum(weights.unbind(-1))[:, None]
    return Routes(chosen.indices, weights.to(logits_TX.dtype))


def run_experts(x_TE: torch.Tensor, routes: Routes, run: RunExpert, *, num_experts: int, min_rows: int) -> torch.Tensor:
    """What the tokens get from their experts, [T, E]. min_rows: that `run` must be given; others are zeros."""
    places = routes.experts.flatten()
    order = places.argsort(stable=True)
    rows = x_TE.index_select(0, order // routes.experts.shape[1])
    out = torch.empty_like(rows)
    start = 0
    for expert, count in enumerate(places.bincount(minlength=num_experts).tolist()):
        if count:
            part = rows[start : start + count]
            padded = F.pad(part, (0, 0, 0, max(min_rows - count, 0)))
            out[order[start : start + count]] = run(expert, padded)[:count]
            start += count
    each = out.unflatten(0, routes.experts.shape) * routes.weights[:, :, None]
    return _sum(each.unbind(1))


def _sum(parts: tuple[torch.Tensor, ...]) -> torch.Tensor:
    """One after the other: a library's sum takes an order by the shape of all."""
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total
