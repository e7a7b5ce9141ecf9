"""Log-probs and entropy of chosen tokens, without `tokens x vocabulary` at once.

Guarantees: the log-probs are those of the distribution that was sampled (logits divided by the
temperature), in float32 whatever the model's dtype; at most `chunk_tokens x vocabulary` logits exist at a
time, in the backward too, where a chunk's logits are made again. Knows nothing of rows or packs.
"""

import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

LOGITS_AT_ONCE = 2**26
"""Elements of one chunk of logits: 256 MiB in float32, yet enough rows for an efficient matrix product."""


def chunk_size(vocab_size: int) -> int:
    """Tokens of one chunk."""
    return max(LOGITS_AT_ONCE // vocab_size, 1)


def token_logprobs(
    hidden_KH: torch.Tensor,
    weight_VH: torch.Tensor,
    bias_V: torch.Tensor | None,
    targets_K: torch.Tensor,
    temperature: float,
    chunk_tokens: int,
    entropy_gradient: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """`log softmax(hidden @ weight.T / temperature)` at each target, and the entropy of that distribution
    in nats.

    hidden_KH: [K, H] at the positions that predict. targets_K: int64 [K]. temperature: above 0.
    Returns (logprobs_K, entropy_K), float32; the entropy carries no gradient unless asked for.
    """
    if len(targets_K) <= chunk_tokens:
        return _chunk(hidden_KH, weight_VH, bias_V, targets_K, temperature, entropy_gradient)
    parts = [
        checkpoint(
            _chunk,
            hidden,
            weight_VH,
            bias_V,
            targets,
            temperature,
            entropy_gradient,
            use_reentrant=False,
            preserve_rng_state=False,
        )
        for hidden, targets in zip(hidden_KH.split(chunk_tokens), targets_K.split(chunk_tokens), strict=True)
    ]
    return torch.cat([part[0] for part in parts]), torch.cat([part[1] for part in parts])


def _chunk(
    hidden_KH: torch.Tensor,
    weight_VH: torch.Tensor,
    bias_V: torch.Tensor | None,
    targets_K: torch.Tensor,
    temperature: float,
    entropy_gradient: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    logits_KV = F.linear(hidden_KH, weight_VH, bias_V).float() / temperature
    # log_softmax, since a logsumexp of bfloat16 logits is unstable (verl's finding).
    logprobs_KV = F.log_softmax(logits_KV, dim=-1)
    with torch.set_grad_enabled(entropy_gradient and torch.is_grad_enabled()):
        entropy_K = -(logprobs_KV.exp() * logprobs_KV).sum(-1)
    return -F.nll_loss(logprobs_KV, targets_K, reduction="none"), entropy_K
