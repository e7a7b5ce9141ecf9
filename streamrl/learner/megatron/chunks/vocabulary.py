"""Log-probs and entropy of tokens whose logits are spread over ranks by rows of the vocabulary.

Guarantees: those of the whole vocabulary, with exact gradients; no logits but those of one block exist; padded rows of
the output layer have no logits, so no probability and no gradient. Three numbers of each token travel, and what they
are relative to. The passes are those of `streamrl.learner.model.chunked_logprobs`.
"""

from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.autograd.function import FunctionCtx

from streamrl.learner.model.chunked_logprobs import Given, Head, Into, Softmax, differentiate, measure
from streamrl.learner.model.logprobs import LOGITS_AT_ONCE


class OwnRows(NamedTuple):
    """Of the output layer on this rank: the first token, and how many rows are tokens. group: the ranks with the other
    rows; None for one rank."""

    first: int
    count: int
    group: dist.ProcessGroup | None


class SpreadLogprobs(torch.autograd.Function):
    """`apply(hidden_KH, weight_VH, targets_K, temperature, rows, entropy_gradient, logits_at_once)` gives (logprobs_K,
    entropy_K), float32, the same on each rank. The gradient of the hidden states is that of this rank's rows."""

    @staticmethod
    def forward(
        ctx: FunctionCtx,
        hidden_KH: torch.Tensor,
        weight_VH: torch.Tensor,
        targets_K: torch.Tensor,
        temperature: float,
        rows: OwnRows,
        entropy_gradient: bool,
        logits_at_once: int,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        own = Head(weight_VH[: rows.count], None, temperature)
        softmax, chosen = measure(own, hidden_KH, targets_K - rows.first, logits_at_once)
        softmax, chosen = _over_ranks(softmax, chosen, rows.group)
        log_total, entropy = softmax.log_total(), softmax.entropy()
        ctx.save_for_backward(hidden_KH, weight_VH, targets_K, log_total, entropy)
        ctx.rows, ctx.temperature, ctx.logits_at_once = rows, temperature, logits_at_once
        ctx.entropy_gradient = entropy_gradient
        if not entropy_gradient:
            ctx.mark_non_differentiable(entropy)
        return (chosen - log_total)[:, 0], entropy[:, 0]

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        hidden_KH, weight_VH, targets_K, log_total, entropy = ctx.saved_tensors
        count = ctx.rows.count
        of_hidden = torch.zeros_like(hidden_KH, dtype=torch.float32) if ctx.needs_input_grad[0] else None
        of_weight = torch.empty_like(weight_VH) if ctx.needs_input_grad[1] else None
        if of_weight is not None:
            of_weight[count:].zero_()
        given = Given(
            hidden_KH,
            targets_K - ctx.rows.first,
            log_total,
            entropy,
            gradients[0][:, None] / ctx.temperature,
            gradients[1][:, None] / ctx.temperature if ctx.entropy_gradient else None,
        )
        into = Into(of_hidden, None if of_weight is None else of_weight[:count], None)
        differentiate(Head(weight_VH[:count], None, ctx.temperature), given, into, ctx.logits_at_once)
        of_hidden = None if of_hidden is None else of_hidden.to(hidden_KH.dtype)
        return of_hidden, of_weight, None, None, None, None, None


def _over_ranks(
    softmax: Softmax, chosen: torch.Tensor, group: dist.ProcessGroup | None
) -> tuple[Softmax, torch.Tensor]:
    """Of all rows, from those of each rank."""
    if group is None:
        return softmax, chosen
    greatest = softmax.greatest.clone()
    dist.all_reduce(greatest, op=dist.ReduceOp.MAX, group=group)
    own = softmax.over(greatest)
    sums = torch.stack([own.total, own.moment, chosen])
    dist.all_reduce(sums, group=group)
    total, moment, chosen = sums.unbind()
    return Softmax(greatest, total, moment), chosen


def spread_logprobs(
    hidden_KH: torch.Tensor,
    weight_VH: torch.Tensor,
    targets_K: torch.Tensor,
    temperature: float,
    rows: OwnRows,
    entropy_gradient: bool = False,
    logits_at_once: int = LOGITS_AT_ONCE,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(logprobs_K, entropy_K), float32, as `streamrl.learner.model.logprobs.token_logprobs` gives them. A collective of
    the ranks of `rows`. hidden_KH: [K, H], the same on each of them. weight_VH: this rank's rows, padding included."""
    if not len(targets_K):  # a pack without targets still takes part in the backward, with zeros
        nothing_K = hidden_KH.float().sum(-1)
        return nothing_K, nothing_K.detach()
    logprobs_K, entropy_K = SpreadLogprobs.apply(
        hidden_KH, weight_VH, targets_K, temperature, rows, entropy_gradient, logits_at_once
    )
    return logprobs_K, entropy_K
