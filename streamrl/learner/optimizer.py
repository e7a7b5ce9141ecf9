"""AdamW and the gradient norm, over plain tensors.

The FSDP backend gives each rank's shards, the reference loop whole parameters; AdamW is element by element,
so both are the same. Knows nothing of ranks but a function that sums a scalar over them.
"""

from collections.abc import Callable, Iterable, Sequence

import torch

from streamrl.config.learner_tables import OptimizerConfig


def make_optimizer(params: Iterable[torch.Tensor], config: OptimizerConfig) -> torch.optim.AdamW:
    """AdamW over leaf tensors. Weight decay acts on matrices only, never on norms and biases.

    The fused kernel: one pass over memory, and one call for all parameters.
    """
    params = list(params)
    groups = [
        {"params": [p for p in params if p.ndim >= 2], "weight_decay": config.weight_decay},
        {"params": [p for p in params if p.ndim < 2], "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    return torch.optim.AdamW(groups, lr=config.lr, betas=config.betas, eps=config.eps, fused=True)


def set_learning_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = rate


def clip_gradients(
    params: Sequence[torch.Tensor],
    max_norm: float,
    sum_over_ranks: Callable[[torch.Tensor], torch.Tensor] | None = None,
    counted: Sequence[float] | None = None,
) -> float:
    """Scale all gradients so that their global L2 norm is at most `max_norm`; the norm before is returned.

    `sum_over_ranks` adds a scalar over the ranks when `params` are shards; `counted` says how much of each this rank
    answers for, where several have it (1 for all when absent). A norm that is not finite scales
    nothing: the caller looks at it before it steps.
    """
    # In float64: rounded at the end, the norm of shards is that of whole tensors.
    norms = torch.stack([torch.linalg.vector_norm(p.grad, dtype=torch.float64) for p in params if p.grad is not None])
    square = norms.square()
    if counted is not None:
        square = square * torch.tensor(counted, dtype=torch.float64, device=square.device)
    square = square.sum()
    norm = (square if sum_over_ranks is None else sum_over_ranks(square)).sqrt().float()
    value = norm.item()
    if value > max_norm and value != float("inf"):
        torch.nn.utils.clip_grads_with_norm_(params, max_norm, norm)
    return value
