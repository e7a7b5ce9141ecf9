"""Log-probs and entropy by blocks of the vocabulary, and their gradients, each block of logits made twice.

Guarantees: no logits but those of one block exist, forward and backward; sums over the vocabulary are in float32
whatever the dtype, and relative to the greatest logit so far (the online softmax of Milakov and Gimelshein 2018), so a
logit of any size neither overflows nor loses the others. The gradient of a weight is written once, in place, and no
second copy of it is made. Needs one matrix product more than autograd over all logits would, and less memory traffic.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch.autograd.function import FunctionCtx

TOKENS = 16384
"""Tokens of one block at most. The gradient of the head is summed over such stretches, in its own dtype."""


class Softmax(NamedTuple):
    """What is known of K softmaxes over a part of the vocabulary, float32 [K, 1] each.

    greatest: the largest logit. total: sum of exp(x - greatest). moment: sum of exp(x - greatest) * (x - greatest).
    """

    greatest: torch.Tensor
    total: torch.Tensor
    moment: torch.Tensor

    def over(self, greatest: torch.Tensor) -> "Softmax":
        """The same, relative to another `greatest`, no smaller than its own."""
        shift = self.greatest - greatest
        scale = shift.exp()
        return Softmax(greatest, self.total * scale, (self.moment + self.total * shift) * scale)

    def merge(self, other: "Softmax") -> "Softmax":
        """Of both parts of the vocabulary together."""
        greatest = torch.maximum(self.greatest, other.greatest)
        mine, theirs = self.over(greatest), other.over(greatest)
        return Softmax(greatest, mine.total + theirs.total, mine.moment + theirs.moment)

    def log_total(self) -> torch.Tensor:
        """log of the sum of exp over all logits, float32 [K, 1]."""
        return self.greatest + self.total.log()

    def entropy(self) -> torch.Tensor:
        """In nats, float32 [K, 1]."""
        return self.total.log() - self.moment / self.total


class Head(NamedTuple):
    """The output layer. weight_VH: [V, H]. bias_V: [V], or None. temperature: divides the logits."""

    weight_VH: torch.Tensor
    bias_V: torch.Tensor | None
    temperature: float

    def blocks(self, size: int) -> Iterator[tuple[int, int]]:
        """First row and row after the last of each block of at most `size` rows."""
        rows = len(self.weight_VH)
        return ((low, min(low + size, rows)) for low in range(0, rows, size))

    def logits(self, hidden_KH: torch.Tensor, low: int, high: int, room: torch.Tensor) -> torch.Tensor:
        """float32 [K, high - low], in `room`."""
        logits = room[: len(hidden_KH) * (high - low)].view(len(hidden_KH), high - low)
        weight = self.weight_VH[low:high].T
        if hidden_KH.dtype == torch.float32:
            torch.mm(hidden_KH, weight, out=logits)
        else:
            logits.copy_(torch.mm(hidden_KH, weight))
        if self.bias_V is not None:
            logits += self.bias_V[low:high]
        return logits if self.temperature == 1.0 else logits.div_(self.temperature)


class BlockedLogprobs(torch.autograd.Function):
    """`apply(hidden_KH, weight_VH, bias_V, targets_K, temperature, block_elements, entropy_gradient)` gives
    (logprobs_K, entropy_K), float32. block_elements: logits that exist at once."""

    @staticmethod
    def forward(
        ctx: FunctionCtx,
        hidden_KH: torch.Tensor,
        weight_VH: torch.Tensor,
        bias_V: torch.Tensor | None,
        targets_K: torch.Tensor,
        temperature: float,
        block_elements: int,
        entropy_gradient: bool,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        head = Head(weight_VH, bias_V, temperature)
        softmax, chosen = measure(head, hidden_KH, targets_K, block_elements)
        log_total_K, entropy_K, chosen_K = softmax.log_total()[:, 0], softmax.entropy()[:, 0], chosen[:, 0]
        ctx.save_for_backward(hidden_KH, weight_VH, bias_V, targets_K, log_total_K, entropy_K)
        ctx.temperature, ctx.block_elements, ctx.entropy_gradient = temperature, block_elements, entropy_gradient
        if not entropy_gradient:
            ctx.mark_non_differentiable(entropy_K)
        return chosen_K - log_total_K, entropy_K

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        hidden_KH, weight_VH, bias_V, targets_K, log_total_K, entropy_K = ctx.saved_tensors
        head = Head(weight_VH, bias_V, ctx.temperature)
        of_hidden = torch.zeros_like(hidden_KH, dtype=torch.float32) if ctx.needs_input_grad[0] else None
        of_weight = torch.empty_like(weight_VH) if ctx.needs_input_grad[1] else None
        of_bias = torch.zeros_like(bias_V) if bias_V is not None and ctx.needs_input_grad[2] else None
        given = Given(
            hidden_KH,
            targets_K,
            log_total_K[:, None],
            entropy_K[:, None],
            gradients[0][:, None] / ctx.temperature,
            gradients[1][:, None] / ctx.temperature if ctx.entropy_gradient else None,
        )
        differentiate(head, given, Into(of_hidden, of_weight, of_bias), ctx.block_elements)
        of_hidden = None if of_hidden is None else of_hidden.to(hidden_KH.dtype)
        return of_hidden, of_weight, of_bias, None, None, None, None


def measure(
    head: Head, hidden_KH: torch.Tensor, targets_K: torch.Tensor, block_elements: int
) -> tuple[Softmax, torch.Tensor]:
    """The softmax over the head's rows, and the target's logit, float32 [K, 1]: 0 for a target that is none of them."""
    found = [
        _measure(head, hidden, targets, block_elements)
        for hidden, targets in zip(hidden_KH.split(TOKENS), targets_K.split(TOKENS), strict=True)
    ]
    softmaxes, chosen = zip(*found, strict=True)
    return Softmax(*(torch.cat(parts) for parts in zip(*softmaxes, strict=True))), torch.cat(chosen)


def _measure(
    head: Head, hidden_KH: torch.Tensor, targets_K: torch.Tensor, block_elements: int
) -> tuple[Softmax, torch.Tensor]:
    size, (room, weighted) = _rooms(head, hidden_KH, block_elements)
    softmax, chosen = None, torch.zeros(len(hidden_KH), 1, device=hidden_KH.device)
    for low, high in head.blocks(size):
        logits = head.logits(hidden_KH, low, high, room)
        at = targets_K[:, None] - low
        inside = (at >= 0) & (at < high - low)
        chosen += torch.where(inside, logits.gather(1, at.clamp(0, high - low - 1)), 0.0)
        greatest = logits.amax(1, keepdim=True)
        logits -= greatest
        shares = torch.exp(logits, out=weighted[: logits.numel()].view_as(logits))
        block = Softmax(greatest, shares.sum(1, keepdim=True), logits.mul_(shares).sum(1, keepdim=True))
        softmax = block if softmax is None else softmax.merge(block)
    assert softmax is not None
    return softmax, chosen


class Given(NamedTuple):
    """Of K tokens; [K, 1] but for the first two. gradient, entropy_gradient: of the loss, by the logits' scale."""

    hidden_KH: torch.Tensor
    targets_K: torch.Tensor
    log_total: torch.Tensor
    entropy: torch.Tensor
    gradient: torch.Tensor
    entropy_gradient: torch.Tensor | None

    def part(self, tokens: slice) -> "Given":
        """Of some of the tokens."""
        return Given(*(None if field is None else field[tokens] for field in self))


class Into(NamedTuple):
    """Where gradients go; None where nobody asks. The hidden states' and the bias's are added to what is there, the
    weight's is written, or added where it `adds`: where it holds those of other tokens already."""

    hidden_KH: torch.Tensor | None
    weight_VH: torch.Tensor | None
    bias_V: torch.Tensor | None
    adds: bool = False


def differentiate(head: Head, given: Given, into: Into, block_elements: int) -> None:
    """The gradients of log-probs and entropy, by the log of the sum of exp and the entropy over all rows of the
    vocabulary; the head may have some of them."""
    for start in range(0, len(given.hidden_KH), TOKENS):
        part = slice(start, start + TOKENS)
        of_hidden = None if into.hidden_KH is None else into.hidden_KH[part]
        _backward(head, given.part(part), Into(of_hidden, into.weight_VH, into.bias_V, start > 0), block_elements)


def _backward(head: Head, given: Given, into: Into, block_elements: int) -> None:
    """Of a log-prob by logit v: 1 at the target, minus p_v. Of the entropy: -p_v (log p_v + entropy)."""
    hidden_KH = given.hidden_KH
    size, (room, further) = _rooms(head, hidden_KH, block_elements)
    for low, high in head.blocks(size):
        logprobs = head.logits(hidden_KH, low, high, room).sub_(given.log_total)
        factor = given.gradient
        if given.entropy_gradient is not None:
            factor = torch.add(logprobs, given.entropy, out=further[: logprobs.numel()].view_as(logprobs))
            factor.mul_(given.entropy_gradient).add_(given.gradient)
        of_logits = logprobs.exp_().mul_(factor).neg_()
        at_K = given.targets_K - low
        inside_K = (at_K >= 0) & (at_K < high - low)
        # Every token adds, some of them 0: which ones are inside is not known to the host.
        added_K = torch.where(inside_K, given.gradient[:, 0], 0.0)
        of_logits.scatter_add_(1, at_K.clamp(0, high - low - 1)[:, None], added_K[:, None])
        _add_products(head, of_logits, hidden_KH, into, low, high)


def _add_products(
    head: Head, of_logits: torch.Tensor, hidden_KH: torch.Tensor, into: Into, low: int, high: int
) -> None:
    if into.bias_V is not None:
        into.bias_V[low:high] += of_logits.sum(0)
    of_logits = of_logits.to(hidden_KH.dtype)
    if into.hidden_KH is not None and hidden_KH.dtype == torch.float32:
        into.hidden_KH.addmm_(of_logits, head.weight_VH[low:high])
    elif into.hidden_KH is not None:
        into.hidden_KH.add_(of_logits @ head.weight_VH[low:high])
    if into.weight_VH is not None:
        into.weight_VH[low:high].addmm_(of_logits.T, hidden_KH, beta=1.0 if into.adds else 0.0)


def _rooms(head: Head, hidden_KH: torch.Tensor, block_elements: int) -> tuple[int, tuple[torch.Tensor, ...]]:
    """Rows of the vocabulary in a block, and room for two blocks."""
    size = min(max(block_elements // len(hidden_KH), 1), len(head.weight_VH))
    rooms = torch.empty(2, size * len(hidden_KH), dtype=torch.float32, device=hidden_KH.device)
    return size, rooms.unbind()
