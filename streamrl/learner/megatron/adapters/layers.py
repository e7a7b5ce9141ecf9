"""What adapters add to a linear layer of megatron-core: scale * B(A(x)), for each Hugging Face projection in it.

Guarantees: outputs and gradients are those of peft's layers on the whole model, up to rounding, whether a tensor rank
has the layer's outputs or its inputs, and whether tokens are spread over these ranks. What travels between them has the
adapters' rank as its width. The layer itself is not touched: its parameters keep their names.

The sums over the tensor ranks stand between A and B. Behind them A's outputs are the same on each rank, or of its own
tokens, so the parts that are whole get their whole gradient there, or the part of it that the rank's tokens give, which
megatron-core adds up behind the last pack.
"""

from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F
from megatron.core.tensor_parallel.mappings import (
    copy_to_tensor_model_parallel_region,
    gather_from_sequence_parallel_region,
    reduce_from_tensor_model_parallel_region,
    reduce_scatter_to_sequence_parallel_region,
)
from megatron.core.transformer import TransformerConfig
from torch import nn

from streamrl.learner.megatron.adapters.plan import AdaptedLinear, in_groups
from streamrl.learner.megatron.cuts import HEADS, WHOLE, Cut, Sizes
from streamrl.learner.megatron.ranks import MegatronRanks
from streamrl.learner.model.adapters import AdapterSettings

_BETWEEN: dict[tuple[bool, bool], Callable[[torch.Tensor], torch.Tensor]] = {
    (False, False): copy_to_tensor_model_parallel_region,
    (False, True): gather_from_sequence_parallel_region,
    (True, False): reduce_from_tensor_model_parallel_region,
    (True, True): reduce_scatter_to_sequence_parallel_region,
}
"""By (whether the layer is cut by its inputs, whether tokens are spread): from A's outputs to B's inputs."""


class Pair(nn.Module):
    """Of one projection. lora_a: [rank, in], lora_b: [out, rank], this rank's parts, float32. Values are loaded."""

    def __init__(self, lora_a: nn.Parameter, lora_b: nn.Parameter) -> None:
        super().__init__()
        self.lora_a = lora_a
        self.lora_b = lora_b


class Adapters(nn.Module):
    """Of one linear layer: a `Pair` under the short name of each projection that has one."""

    def __init__(
        self,
        linear: AdaptedLinear,
        shapes: Mapping[str, torch.Size],
        sizes: Sizes,
        settings: AdapterSettings,
        config: TransformerConfig,
        ranks: MegatronRanks,
    ) -> None:
        """shapes: of all whole tensors, adapters among them."""
        super().__init__()
        rank, count = ranks.tensor_rank, ranks.layout.tensor
        spread = config.sequence_parallel

        def parameter(name: str, cut: Cut) -> nn.Parameter:
            whole = torch.empty(shapes[name], device="meta")
            own = torch.empty(cut.part([whole], sizes, rank, count).shape, device=ranks.group.device)
            made = nn.Parameter(own)
            made.sequence_parallel = spread and cut is WHOLE
            return made

        self._pairs: dict[str, Pair] = {}
        for short, tensor in linear.projections:
            if tensor in linear.names:
                lora_a, lora_b = (parameter(entry.tensors[0], entry.cut) for entry in linear.pair(tensor))
                self._pairs[short] = Pair(lora_a, lora_b)
                self.add_module(short, self._pairs[short])
        ways = 1 if linear.by_inputs else count
        self._widths = {short: shapes[tensor][0] // ways for short, tensor in linear.projections}
        self._groups = sizes.groups // count if linear.weight.cut is HEADS else 1
        self._between = _BETWEEN[linear.by_inputs, spread]
        self._rank, self._scale = settings.rank, settings.scale

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: what the layer is given, [T, 1, in], or this rank's part of T or in. What is to be added to the output."""
        lora_a = torch.cat([pair.lora_a for pair in self._pairs.values()])
        inner = self._between(F.linear(x, lora_a.to(x.dtype)))
        own = dict(zip(self._pairs, inner.split(self._rank, -1), strict=True))
        changes = [
            F.linear(own[short], self._pairs[short].lora_b.to(x.dtype))
            if short in own
            else inner.new_zeros(*inner.shape[:-1], width)
            for short, width in self._widths.items()
        ]
        return in_groups(changes, self._groups) * self._scale


def attach(linear: nn.Module, adapters: Adapters) -> None:
    """Have a linear layer of megatron-core, which gives (output, bias), add what its adapters give."""

    def added(
        _linear: nn.Module, inputs: tuple[torch.Tensor, ...], outputs: tuple[torch.Tensor, torch.Tensor | None]
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        output, bias = outputs
        return output + adapters(inputs[0]), bias

    linear.add_module("adapters", adapters)
    linear.register_forward_hook(added)
