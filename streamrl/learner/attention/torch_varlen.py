"""torch's own attention over segments, whose output may be kept when a layer is computed again.

Guarantees: causal, bottom-right aligned, without dropout; several query heads to a key head without a copy of the keys.
By the operations that `torch.nn.attention.varlen` calls, which takes a head of keys for each of queries in some
releases, and keeps nothing.
"""

from typing import Any

import torch
from torch.autograd.function import FunctionCtx


class KeptAttention:
    """Of one layer and pack: what its attention gave, from the first time that it is computed to the second."""

    def __init__(self) -> None:
        self._found: tuple[torch.Tensor, ...] | None = None

    def keep(self, found: tuple[torch.Tensor, ...]) -> None:
        self._found = tuple(tensor.detach() for tensor in found)

    def take(self) -> tuple[torch.Tensor, ...] | None:
        """What was kept, once; None before that."""
        found, self._found = self._found, None
        return found


class TorchVarlen(torch.autograd.Function):
    """`apply(query, key, value, cu_q, cu_k, max_q, max_k, scale, kept)`, as `varlen.Kernel`."""

    @staticmethod
    def forward(
        ctx: FunctionCtx,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        cu_q: torch.Tensor,
        cu_k: torch.Tensor,
        max_q: int,
        max_k: int,
        scale: float | None,
        kept: KeptAttention | None,
    ) -> torch.Tensor:
        found = None if kept is None else kept.take()
        if found is None:
            found = torch.ops.aten._flash_attention_forward(
                query, key, value, cu_q, cu_k, max_q, max_k, 0.0, True, False, scale=scale
            )[:4]
            if kept is not None:
                kept.keep(found)
        output, log_total, *generator = found
        ctx.save_for_backward(query, key, value, output, log_total, cu_q, cu_k, *generator)
        ctx.max_q, ctx.max_k, ctx.scale = max_q, max_k, scale
        return output

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        query, key, value, output, log_total, cu_q, cu_k, *generator = ctx.saved_tensors
        of_query, of_key, of_value = torch.ops.aten._flash_attention_backward(
            gradients[0],
            query,
            key,
            value,
            output,
            log_total,
            cu_q,
            cu_k,
            ctx.max_q,
            ctx.max_k,
            0.0,
            True,
            *generator,
            scale=ctx.scale,
        )
        return of_query, of_key, of_value, None, None, None, None, None, None
