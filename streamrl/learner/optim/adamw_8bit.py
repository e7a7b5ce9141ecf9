"""AdamW whose two moments are kept in 8 bits by blocks, as torchao has it (Dettmers et al. 2022, 8-bit optimizers via
block-wise quantization).

Guarantees: a block lies within one row of a matrix, so where blocks begin does not depend on how rows are shared out:
the blocks of several ranks are those of one, and a checkpoint holds them as they are. A matrix whose rows are no
whole number of blocks, and what is no matrix (norms, biases), has moments in float32. The update is computed in
float32, from the moments before they are rounded. Knows nothing of ranks.
"""

from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import torch
from torchao.optim import AdamW8bit
from torchao.optim.subclass_8bit import OptimState8bit

from streamrl.config.estimates.sizes import MOMENT_BLOCK
from streamrl.config.schema.learner import OptimizerConfig
from streamrl.errors import ConfigError
from streamrl.learner.optim.moments import MOMENTS, ReadPart

SIGNED = {"exp_avg": True, "exp_avg_sq": False}
"""Which of a moment's values may be negative: each kind has its own 256 values."""


class EightBitAdamW(AdamW8bit):
    """Under the names of `moments`, `<moment>` is of uint8, the index of a value, and `<moment>_scale` of float32, one
    for each block. A moment is the value times the scale of its block."""

    def __init__(self, groups: list[dict[str, Any]], config: OptimizerConfig) -> None:
        """Raises ConfigError where nothing would be kept in 8 bits."""
        if not any(in_blocks(param) for group in groups for param in group["params"]):
            raise ConfigError(
                'an optimizer of kind = "adamw_8bit" would keep nothing in 8 bits: no matrix of the model has rows of '
                f'a multiple of {MOMENT_BLOCK} elements; set kind = "adamw"'
            )
        super().__init__(groups, lr=config.lr, betas=config.betas, eps=config.eps, block_size=MOMENT_BLOCK)

    def step(self, closure: Any = None) -> Any:
        """torchao compiles the update of each shape. On a CPU that would take a C++ compiler, so there it is computed
        as it is written."""
        on_cpu = all(param.is_cpu for group in self.param_groups for param in group["params"])
        with torch.compiler.set_stance("force_eager") if on_cpu else nullcontext():
            return super().step(closure)

    def set_learning_rate(self, rate: float) -> None:
        """Where a compiled update reads it."""
        for group in self.param_groups:
            group["lr"].fill_(rate)

    def moment_bytes(self, param: torch.Tensor, elements: int) -> int:
        """Bytes of both moments of a parameter of so many elements, of which `param` is a part."""
        if not in_blocks(param):
            return 8 * elements
        return 2 * elements + 8 * (elements // MOMENT_BLOCK)

    def parts(self, param: torch.Tensor, moment: str) -> Iterator[tuple[str, torch.Tensor]]:
        """The tensors of one moment, each with its kind."""
        held = self.state[param][moment]
        if not in_blocks(param):
            yield moment, held
            return
        codes, scale = (held.codes, held.scale) if param.numel() else (held.to(torch.uint8), held)
        yield moment, codes
        yield _scale(moment), scale.view(*param.shape[:-1], param.shape[-1] // MOMENT_BLOCK)

    def restore(self, param: torch.Tensor, updates: int, read: ReadPart) -> None:
        """Go on with what `parts` gave after so many updates."""
        moments = {moment: self._restored(param, moment, read) for moment in MOMENTS}
        self.state[param] = {"step": torch.tensor(float(updates)), **moments}

    def _restored(self, param: torch.Tensor, moment: str, read: ReadPart) -> torch.Tensor:
        if not in_blocks(param):
            return read(moment, torch.float32, 1)
        codes, scale = read(moment, torch.uint8, 1), read(_scale(moment), torch.float32, MOMENT_BLOCK)
        fresh = self._new_buffer(param, SIGNED[moment])
        if param.numel():
            fresh.codes.copy_(codes)
            fresh.scale.copy_(scale.flatten())
        return fresh

    def _new_buffer(self, p: torch.Tensor, signed: bool) -> torch.Tensor:
        """torchao's own way goes by the elements of a shard, and would keep a matrix in 8 bits on one rank and in
        float32 on another. It divides by the number of blocks, so a shard without rows has none."""
        if not in_blocks(p) or not p.numel():
            return torch.zeros_like(p)
        return OptimState8bit.zeros(p.shape, signed, self.block_size, p.device, dtype=p.dtype)


def in_blocks(param: torch.Tensor) -> bool:
    """Whether the moments of a parameter, whole or some rows of it, are kept in 8 bits."""
    return param.ndim > 1 and param.shape[-1] % MOMENT_BLOCK == 0


def _scale(moment: str) -> str:
    return f"{moment}_scale"
