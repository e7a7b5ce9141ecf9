"""AdamW and the gradient norm, over plain tensors.

The FSDP backend gives each rank's shards, the reference loop whole parameters; AdamW is element by element, or row by
row (`low_bit`), so both are the same. Knows nothing of ranks but a function that sums a scalar over them.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from streamrl.config.known import MISSING_TORCHAO
from streamrl.config.schema.learner import OptimizerConfig
from streamrl.errors import ConfigError
from streamrl.learner.optim.moments import MOMENTS, ReadPart

if TYPE_CHECKING:
    from streamrl.learner.optim.adamw_8bit import EightBitAdamW

Optimizer: TypeAlias = "FusedAdamW | EightBitAdamW"


class FusedAdamW(torch.optim.AdamW):
    """The fused kernel: one pass over memory, and one call for all parameters. Moments are float32."""

    def __init__(self, groups: list[dict[str, Any]], config: OptimizerConfig) -> None:
        super().__init__(groups, lr=config.lr, betas=config.betas, eps=config.eps, fused=True)

    def set_learning_rate(self, rate: float) -> None:
        for group in self.param_groups:
            group["lr"] = rate

    def moment_bytes(self, param: torch.Tensor, elements: int) -> int:
        """Bytes of both moments of a parameter of so many elements, of which `param` is a part."""
        return 8 * elements

    def parts(self, param: torch.Tensor, moment: str) -> Iterator[tuple[str, torch.Tensor]]:
        """The tensors of one moment, each with its kind."""
        yield moment, self.state[param][moment]

    def restore(self, param: torch.Tensor, updates: int, read: ReadPart) -> None:
        """Go on with what `parts` gave after so many updates."""
        # The fused kernel keeps its step count as float32 on the parameter's device.
        count = torch.tensor(float(updates), dtype=torch.float32, device=param.device)
        self.state[param] = {"step": count, **{moment: read(moment, torch.float32, 1) for moment in MOMENTS}}


def make_optimizer(params: Iterable[torch.Tensor], config: OptimizerConfig) -> Optimizer:
    """AdamW over leaf tensors. Weight decay acts on matrices only, never on norms and biases.

    Raises ConfigError where the package of the kind is missing, or the kind has nothing to act on.
    """
    params = list(params)
    groups = [
        {"params": [p for p in params if p.ndim >= 2], "weight_decay": config.weight_decay},
        {"params": [p for p in params if p.ndim < 2], "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    return _eight_bit()(groups, config) if config.kind == "adamw_8bit" else FusedAdamW(groups, config)


def _eight_bit() -> "type[EightBitAdamW]":
    """Imported when it is wanted: it needs a package that need not be there."""
    try:
        from streamrl.learner.optim.adamw_8bit import EightBitAdamW
    except ModuleNotFoundError as error:
        raise ConfigError(f'an optimizer of kind = "adamw_8bit" needs a package: {MISSING_TORCHAO}') from error
    return EightBitAdamW


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
