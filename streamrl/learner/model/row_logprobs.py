"""Log-probs and entropy by rows of logits, for a GPU: whole rows of the vocabulary, in the model's dtype.

Guarantees: never more logits at a time than `bytes_at_once` hold; where those of all tokens fit they are made once and
kept for the backward, which writes their gradients over them; else they are made again, some tokens at a time. Sums
over the vocabulary are in float32. Rows begin at multiples of 256 bytes and products have sides that are multiples of
16 bytes, since cuBLAS computes others by kernels several times as slow. A whole row at a time needs no float32 sums
over blocks: the gradient of the hidden states is one product, and the weight's is written once, in place.

`chunked_logprobs` is the same by blocks of the vocabulary, for a CPU's cache.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch.autograd.function import FunctionCtx

from streamrl.learner.model.logit_passes import LogitPasses, passes_for

ROW_BYTES = 256
"""A row of logits begins at a multiple of it."""
PRODUCT_BYTES = 16
"""Sides of products are multiples of it, but for a last one of the vocabulary that is smaller."""
TOKEN_MULTIPLE = 128
"""Tokens of a chunk are a multiple of it: the tile of a matrix product."""


class OutputLayer(NamedTuple):
    """weight_VH: [V, H]. bias_V: [V], or None."""

    weight_VH: torch.Tensor
    bias_V: torch.Tensor | None

    @property
    def padded(self) -> int:
        """Logits of a row with the buffer behind them."""
        multiple = ROW_BYTES // self.weight_VH.element_size()
        return -(-len(self.weight_VH) // multiple) * multiple

    def parts(self) -> Iterator[slice]:
        """The vocabulary in one part, or in two of which the first has an aligned size."""
        rows, multiple = len(self.weight_VH), PRODUCT_BYTES // self.weight_VH.element_size()
        aligned = rows // multiple * multiple
        yield from (part for part in (slice(0, aligned), slice(aligned, rows)) if part.stop > part.start)

    def logits_buffer(self, tokens: int) -> torch.Tensor:
        """[tokens, padded], for `logits`. What is behind a row is 0: a kernel may read it, and multiply it by 0."""
        buffer = self.weight_VH.new_empty(tokens, self.padded)
        buffer[:, len(self.weight_VH) :].zero_()
        return buffer

    def logits(self, hidden_KH: torch.Tensor, buffer: torch.Tensor) -> torch.Tensor:
        """[K, V], a view into `buffer`."""
        found = buffer[: len(hidden_KH), : len(self.weight_VH)]
        for part in self.parts():
            weight = self.weight_VH[part].T
            if self.bias_V is None:
                torch.mm(hidden_KH, weight, out=found[:, part])
            else:
                torch.addmm(self.bias_V[part], hidden_KH, weight, out=found[:, part])
        return found


class RowLogprobs(torch.autograd.Function):
    """`apply(hidden_KH, weight_VH, bias_V, targets_K, temperature, bytes_at_once, entropy_gradient, keep, passes)`
    gives (logprobs_K, entropy_K), float32. keep: whether a backward will come."""

    @staticmethod
    def forward(
        ctx: FunctionCtx,
        hidden_KH: torch.Tensor,
        weight_VH: torch.Tensor,
        bias_V: torch.Tensor | None,
        targets_K: torch.Tensor,
        temperature: float,
        bytes_at_once: int,
        entropy_gradient: bool,
        keep: bool,
        passes: LogitPasses,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        layer = OutputLayer(weight_VH, bias_V)
        size = tokens_of_a_chunk(len(hidden_KH), layer, bytes_at_once)
        buffer = layer.logits_buffer(size)
        found = []
        for hidden, targets in zip(hidden_KH.split(size), targets_K.split(size), strict=True):
            logits = layer.logits(hidden, buffer)
            found.append(passes.measure(logits, targets, 1.0 / temperature))
        log_total_K, entropy_K, chosen_K = (torch.cat(parts) for parts in zip(*found, strict=True))
        ctx.save_for_backward(hidden_KH, weight_VH, bias_V, targets_K, log_total_K, entropy_K)
        ctx.kept = logits if keep and len(found) == 1 else None
        ctx.temperature, ctx.size, ctx.passes = temperature, size, passes
        ctx.entropy_gradient = entropy_gradient
        if not entropy_gradient:
            ctx.mark_non_differentiable(entropy_K)
        return chosen_K - log_total_K, entropy_K

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        hidden_KH, weight_VH, bias_V, targets_K, log_total_K, entropy_K = ctx.saved_tensors
        layer = OutputLayer(weight_VH, bias_V)
        into = _Into.of(hidden_KH, layer, ctx.needs_input_grad)
        # Written over below, so a second backward makes them again.
        kept, ctx.kept = ctx.kept, None
        buffer = None if kept is not None else layer.logits_buffer(ctx.size)
        entropy_gradient_K = gradients[1].contiguous() if ctx.entropy_gradient else None
        gradient_K = gradients[0].contiguous()
        for start in range(0, len(hidden_KH), ctx.size):
            part = slice(start, start + ctx.size)
            logits = layer.logits(hidden_KH[part], buffer) if kept is None else kept
            of_logits = ctx.passes.differentiate_(
                logits,
                targets_K[part],
                1.0 / ctx.temperature,
                log_total_K[part],
                entropy_K[part],
                gradient_K[part],
                None if entropy_gradient_K is None else entropy_gradient_K[part],
            )
            into.add(of_logits, hidden_KH, layer, part)
        return into.hidden_KH, into.weight_VH, into.bias(), None, None, None, None, None, None


class _Into(NamedTuple):
    """Where gradients go, in the dtype of what they are of; None where nobody asks. The bias's is summed in float32."""

    hidden_KH: torch.Tensor | None
    weight_VH: torch.Tensor | None
    bias_V: torch.Tensor | None
    bias_dtype: torch.dtype | None

    @classmethod
    def of(cls, hidden_KH: torch.Tensor, layer: OutputLayer, needed: tuple[bool, ...]) -> "_Into":
        bias_V = layer.bias_V if layer.bias_V is not None and needed[2] else None
        return cls(
            torch.empty_like(hidden_KH) if needed[0] else None,
            torch.empty_like(layer.weight_VH) if needed[1] else None,
            None if bias_V is None else torch.zeros_like(bias_V, dtype=torch.float32),
            None if bias_V is None else bias_V.dtype,
        )

    def add(self, of_logits_KV: torch.Tensor, hidden_KH: torch.Tensor, layer: OutputLayer, tokens: slice) -> None:
        """What the logits of some tokens give. The first tokens' is written, that of others added."""
        for part in layer.parts():
            gradient = of_logits_KV[:, part]
            if self.hidden_KH is not None:
                _product(self.hidden_KH[tokens], gradient, layer.weight_VH[part], part.start > 0)
            if self.weight_VH is not None:
                _product(self.weight_VH[part], gradient.T, hidden_KH[tokens], tokens.start > 0)
        if self.bias_V is not None:
            self.bias_V.add_(of_logits_KV.sum(0, dtype=torch.float32))

    def bias(self) -> torch.Tensor | None:
        return None if self.bias_V is None else self.bias_V.to(self.bias_dtype)


def _product(into: torch.Tensor, left: torch.Tensor, right: torch.Tensor, adds: bool) -> None:
    if adds:
        into.addmm_(left, right)
    else:
        torch.mm(left, right, out=into)


def tokens_of_a_chunk(tokens: int, layer: OutputLayer, bytes_at_once: int) -> int:
    """Equal chunks, as few as the bytes allow, of a multiple of TOKEN_MULTIPLE where there are several."""
    most = max(bytes_at_once // (layer.padded * layer.weight_VH.element_size()), 1)
    if tokens <= most:
        return tokens
    if most > TOKEN_MULTIPLE:
        most -= most % TOKEN_MULTIPLE
    even = -(-tokens // -(-tokens // most))
    return min(-(-even // TOKEN_MULTIPLE) * TOKEN_MULTIPLE, most)


def row_logprobs(
    hidden_KH: torch.Tensor,
    weight_VH: torch.Tensor,
    bias_V: torch.Tensor | None,
    targets_K: torch.Tensor,
    temperature: float,
    bytes_at_once: int,
    entropy_gradient: bool = False,
    passes: LogitPasses | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """As `logprobs.token_logprobs`, of one target at least. passes: what suits the device when absent."""
    keep = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in (hidden_KH, weight_VH, bias_V))
    logprobs_K, entropy_K = RowLogprobs.apply(
        hidden_KH,
        weight_VH,
        bias_V,
        targets_K,
        temperature,
        bytes_at_once,
        entropy_gradient,
        keep,
        passes or passes_for(hidden_KH.device),
    )
    return logprobs_K, entropy_K
