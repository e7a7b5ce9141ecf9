"""AdamW by megatron-core's optimizers, plain or with its states shared out to the data parallel ranks.

Guarantees: nothing changes before the gradient norm was looked at; weights and moments are float32, and go out and
come in as parts of parameters like those of the model, whichever optimizer keeps them.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from megatron.core.optimizer import OptimizerConfig as MegatronOptimizerConfig
from megatron.core.optimizer import get_megatron_optimizer, get_standard_config_overrides
from megatron.core.optimizer.clip_grads import clip_grad_by_total_norm_fp32
from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer
from megatron.core.optimizer.optimizer import MegatronOptimizer
from torch import nn

from streamrl.config.schema.learner import OptimizerConfig
from streamrl.learner.optim.moments import MOMENTS

MASTER = "master"
"""The kind of a parameter's float32 weights, beside those of `MOMENTS`."""


class Held(NamedTuple):
    """What this rank keeps of a parameter: the elements first:last of its part of the weights, in float32, and AdamW's
    state of them."""

    first: int
    last: int
    master: torch.Tensor
    state: dict[str, Any]


class MegatronAdamW:
    """Over the chunks of one rank. Weight decay acts on matrices only."""

    def __init__(
        self, chunks: Sequence[nn.Module], config: OptimizerConfig, *, distributed: bool, dtype: torch.dtype
    ) -> None:
        """Collective."""
        settings = MegatronOptimizerConfig(
            optimizer="adam",
            lr=config.lr,
            weight_decay=config.weight_decay,
            adam_beta1=config.betas[0],
            adam_beta2=config.betas[1],
            adam_eps=config.eps,
            clip_grad=config.max_grad_norm,
            use_distributed_optimizer=distributed,
            bf16=dtype == torch.bfloat16,
            params_dtype=dtype,
        )
        self._distributed = distributed
        self._chunks = chunks
        self._chained = get_megatron_optimizer(
            settings, list(chunks), get_standard_config_overrides(settings), use_gloo_process_groups=False
        )
        self._parts: list[MegatronOptimizer] = [
            part for part in self._chained.chained_optimizers if not part.is_stub_optimizer
        ]
        self.begin(config)

    def begin(self, config: OptimizerConfig) -> None:
        """Start a training of the weights as they are, without moments of an earlier one. megatron-core's optimizers
        change what they find at a parameter, so one follows another on the same weights by this and not by a new one.
        """
        self._max_norm = config.max_grad_norm
        for group in self._chained.param_groups:
            # Weight decay is left to a schedule of megatron-core's own, which there is none of here.
            group["weight_decay"] = config.weight_decay * group["wd_mult"]
            group["betas"], group["eps"] = config.betas, config.eps
        for part in self._parts:
            part.state.clear()

    def set_learning_rate(self, rate: float) -> None:
        for group in self._chained.param_groups:
            group["lr"] = rate

    def gradient_norm(self) -> float:
        """Collective. Of all gradients over all ranks, before they are clipped."""
        self._chained.prepare_grads()
        return float(self._chained.get_grad_norm())

    def step(self, norm: float) -> None:
        """Collective. Clip by the norm, and update the weights of the model."""
        for part in self._parts:
            params = part.get_parameters()
            if params:
                clip_grad_by_total_norm_fp32(params, self._max_norm, norm)
        self._chained.step_with_ready_grads()

    def clear_gradients(self) -> None:
        for chunk in self._chunks:
            chunk.zero_grad_buffer()
        self._chained.zero_grad()

    def held(self, param: torch.Tensor) -> Held | None:
        """None where another rank has it."""
        for part in self._parts:
            found = _shared_out(part, param) if isinstance(part, DistributedOptimizer) else _own(part, param)
            if found is not None:
                return found
        return None

    def whole(self, param: torch.Tensor, kind: str, copies: dist.ProcessGroup) -> torch.Tensor:
        """Collective of `copies`, the ranks that have the same part of the parameter. That part's float32 weights or
        one moment of them, in its shape."""
        held = self.held(param)
        if not self._distributed or copies.size() == 1:
            assert held is not None
            return _kind(held, kind).view(param.shape)
        # Each element from the one rank that has it: as integers, since a sum of floats loses the sign of zeros.
        whole = torch.zeros(param.numel(), dtype=torch.int32, device=param.device)
        if held is not None:
            whole[held.first : held.last] = _kind(held, kind).reshape(-1).view(torch.int32)
        dist.all_reduce(whole, group=copies)
        return whole.view(torch.float32).view(param.shape)

    def restore(self, param: torch.Tensor, updates: int, read: Callable[[str], torch.Tensor]) -> None:
        """Go on after so many updates with what `read` gives of each kind: this rank's part of the parameter, whole."""
        held = self.held(param)
        if held is None:
            return
        with torch.no_grad():
            held.master.view(-1).copy_(read(MASTER).reshape(-1)[held.first : held.last])
        held.state.clear()
        if not updates:
            return
        held.state["step"] = torch.tensor(float(updates))
        for moment in MOMENTS:
            mine = read(moment).reshape(-1)[held.first : held.last]
            held.state[moment] = mine.to(held.master.device, copy=True).view(held.master.shape)


def _kind(held: Held, kind: str) -> torch.Tensor:
    return held.master.detach() if kind == MASTER else held.state[kind]


def _own(part: MegatronOptimizer, param: torch.Tensor) -> Held | None:
    """Of an optimizer that keeps whole parameters."""
    master = getattr(param, "main_param", param)
    if not any(master is one for one in part.get_parameters()):
        return None
    return Held(0, param.numel(), master, part.state[master])


def _shared_out(part: DistributedOptimizer, param: torch.Tensor) -> Held | None:
    place = part.model_param_group_index_map.get(param)
    if place is None:
        return None
    group, order = place
    master = part.optimizer.param_groups[group]["params"][order]
    span = part._get_model_param_range_map(param)["param"]
    return Held(span.start, span.end, master, part.state[master])


def moments_of(updates: int) -> tuple[str, ...]:
    """The kinds of moments that there are after so many updates."""
    return MOMENTS if updates else ()
