"""What is made of rows of logits, in plain torch: their softmax's facts, and in place their gradients.

Guarantees: float32 inside whatever the dtype of the logits, a few rows at a time, so that no float32 copy of all of
them exists. `streamrl.learner.kernels.softmax` is the same on a GPU, in one pass over memory each.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch

AT_ONCE = 2**24
"""Logits that are in float32 at a time."""

Measure = Callable[[torch.Tensor, torch.Tensor, float], tuple[torch.Tensor, torch.Tensor, torch.Tensor]]
Differentiate = Callable[..., torch.Tensor]


class LogitPasses(NamedTuple):
    """Who computes both passes."""

    measure: Measure
    differentiate_: Differentiate


def passes_for(device: torch.device) -> LogitPasses:
    """Triton's on a GPU whose torch has Triton, else those of this module."""
    if device.type == "cuda":
        try:
            from streamrl.learner.kernels import softmax
        except ModuleNotFoundError:
            return LogitPasses(measure, differentiate_)
        return LogitPasses(softmax.measure, softmax.differentiate_)
    return LogitPasses(measure, differentiate_)


def measure(
    logits_KV: torch.Tensor, targets_K: torch.Tensor, scale: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """float32 [K] each, of logits times `scale`: log of the sum of exp, entropy in nats, the target's logit."""
    found = torch.empty(3, len(logits_KV), dtype=torch.float32, device=logits_KV.device)
    for part in _parts(logits_KV):
        scaled = logits_KV[part].float() * scale
        log_total = scaled.logsumexp(1, keepdim=True)
        found[0, part] = log_total[:, 0]
        found[2, part] = scaled.gather(1, targets_K[part, None])[:, 0]
        logprobs = scaled.sub_(log_total)
        found[1, part] = -(logprobs.exp() * logprobs).sum(1)
    log_total_K, entropy_K, chosen_K = found.unbind()
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
    """Write over the logits what the loss changes by each of them, and return them.

    log_total_K, entropy_K: as `measure` gave them. gradient_K, entropy_gradient_K: float32 [K], of the loss by the
    target's log-prob and by the entropy; None where the entropy carries none. Of a log-prob by logit v: 1 at the
    target, minus p_v. Of the entropy: -p_v (log p_v + entropy). Both times `scale`.
    """
    for part in _parts(logits_KV):
        gradient = gradient_K[part, None] * scale
        logprobs = (logits_KV[part].float() * scale).sub_(log_total_K[part, None])
        factor = gradient
        if entropy_gradient_K is not None:
            factor = gradient + entropy_gradient_K[part, None] * scale * (logprobs + entropy_K[part, None])
        found = logprobs.exp_().mul_(factor).neg_()
        found.scatter_add_(1, targets_K[part, None], gradient)
        logits_KV[part] = found.to(logits_KV.dtype)
    return logits_KV


def _parts(logits_KV: torch.Tensor) -> Iterator[slice]:
    size = max(AT_ONCE // max(logits_KV.shape[1], 1), 1)
    return (slice(start, start + size) for start in range(0, len(logits_KV), size))
