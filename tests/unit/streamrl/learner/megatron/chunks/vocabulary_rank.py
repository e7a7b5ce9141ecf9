"""One rank of those that an output layer is spread over.

    python vocabulary_rank.py STORE RANK WORLD OUT

OUT gets how far log-probs, entropy and gradients are from those of the whole layer on one rank, as JSON.
"""

import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist

from streamrl.learner.megatron.chunks.vocabulary import OwnRows, spread_logprobs
from streamrl.learner.parallel.process_group import open_group

TOKENS, HIDDEN, VOCAB = 23, 16, 67


def compared(rank: int, world: int, *, logits_at_once: int, entropy_gradient: bool, scale: float) -> float:
    """scale: of the logits, some of which are far above the others."""
    torch.manual_seed(4)
    hidden = scale * torch.randn(TOKENS, HIDDEN)
    weight = torch.randn(VOCAB, HIDDEN)
    targets, mixed = torch.randint(0, VOCAB, (TOKENS,)), torch.randn(2, TOKENS)
    each = -(-VOCAB // world)
    own = torch.full((each, HIDDEN), 1e3)  # padding that would have all the probability
    count = min(each, VOCAB - rank * each)
    own[:count] = weight[rank * each : rank * each + count]
    ours, own = hidden.clone().requires_grad_(), own.requires_grad_()
    rows = OwnRows(rank * each, count, dist.group.WORLD)
    logprobs, entropy = spread_logprobs(ours, own, targets, 0.7, rows, entropy_gradient, logits_at_once)
    _loss(logprobs, entropy, mixed, entropy_gradient).backward()
    dist.all_reduce(ours.grad)

    theirs, whole = hidden.double().requires_grad_(), weight.double().requires_grad_()
    table = torch.log_softmax(theirs @ whole.T / 0.7, -1)
    right = table.gather(1, targets[:, None])[:, 0], -(table.exp() * table).sum(-1)
    _loss(*right, mixed, entropy_gradient).backward()
    of_own = torch.zeros_like(own)
    of_own[:count] = whole.grad[rank * each : rank * each + count]
    pairs = [(logprobs, right[0]), (entropy, right[1]), (ours.grad, theirs.grad), (own.grad, of_own)]
    return max(((one - other).abs().max() / other.abs().max().clamp(min=1.0)).item() for one, other in pairs)


def _loss(logprobs: torch.Tensor, entropy: torch.Tensor, mixed: torch.Tensor, entropy_gradient: bool) -> torch.Tensor:
    loss = (mixed[0] * logprobs).sum()
    return loss + (mixed[1] * entropy).sum() if entropy_gradient else loss


def main(store: str, rank: str, world: str, out: str) -> None:
    torch.set_num_threads(1)
    group = open_group(int(rank), int(world), Path(store), device=torch.device("cpu"), timeout_s=60)
    found = [
        compared(int(rank), int(world), logits_at_once=size, entropy_gradient=entropy_gradient, scale=scale)
        for size in (1, 100, 2**22)
        for entropy_gradient in (False, True)
        for scale in (0.1, 1.0, 30.0)
    ]
    Path(out).write_text(json.dumps({"apart": found}), encoding="utf-8")
    group.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
