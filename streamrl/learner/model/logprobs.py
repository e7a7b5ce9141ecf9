"""Log-probs and entropy of chosen tokens, without `tokens x vocabulary` at once.

Guarantees: the log-probs are those of the distribution that was sampled (logits divided by the
temperature), in float32 whatever the model's dtype; at most `logits_at_once` logits exist at a time, in the
backward too, where they are made again unless all of them are as few. Blocks are of the vocabulary on a CPU, so that
they stay in its cache, and of tokens on a GPU. Knows nothing of rows or packs.
"""

import torch
import torch.nn.functional as F

from streamrl.config.schema.learner import LOGITS_BYTES
from streamrl.learner.model.chunked_logprobs import BlockedLogprobs
from streamrl.learner.model.row_logprobs import row_logprobs

LOGITS_AT_ONCE = 2**22
"""Of a CPU: what stays in its cache."""


def token_logprobs(
    hidden_KH: torch.Tensor,
    weight_VH: torch.Tensor,
    bias_V: torch.Tensor | None,
    targets_K: torch.Tensor,
    temperature: float,
    logits_at_once: int | None = None,
    entropy_gradient: bool = False,
    logits_bytes: int = LOGITS_BYTES,
) -> tuple[torch.Tensor, torch.Tensor]:
    """`log softmax(hidden @ weight.T / temperature)` at each target, and the entropy of that distribution
    in nats.

    hidden_KH: [K, H] at the positions that predict. targets_K: int64 [K]. temperature: above 0. logits_at_once: when
    absent `LOGITS_AT_ONCE` on a CPU, on a GPU as many as `logits_bytes` hold. Returns (logprobs_K, entropy_K), float32;
    the entropy carries no gradient unless asked for.
    """
    if hidden_KH.is_cuda and len(targets_K):
        size = logits_bytes if logits_at_once is None else logits_at_once * weight_VH.element_size()
        return row_logprobs(hidden_KH, weight_VH, bias_V, targets_K, temperature, size, entropy_gradient)
    most = logits_at_once or LOGITS_AT_ONCE
    if len(targets_K) * len(weight_VH) <= most:
        return _at_once(hidden_KH, weight_VH, bias_V, targets_K, temperature, entropy_gradient)
    logprobs_K, entropy_K = BlockedLogprobs.apply(
        hidden_KH, weight_VH, bias_V, targets_K, temperature, most, entropy_gradient
    )
    return logprobs_K, entropy_K


def _at_once(
    hidden_KH: torch.Tensor,
    weight_VH: torch.Tensor,
    bias_V: torch.Tensor | None,
    targets_K: torch.Tensor,
    temperature: float,
    entropy_gradient: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """All logits by autograd: the fewest operations, where they are few."""
    logits_KV = F.linear(hidden_KH, weight_VH, bias_V).float() / temperature
    # log_softmax, since a logsumexp of bfloat16 logits is unstable (verl's finding).
    logprobs_KV = F.log_softmax(logits_KV, dim=-1)
    with torch.set_grad_enabled(entropy_gradient and torch.is_grad_enabled()):
        entropy_K = -(logprobs_KV.exp() * logprobs_KV).sum(-1)
    return -F.nll_loss(logprobs_KV, targets_K, reduction="none"), entropy_K
