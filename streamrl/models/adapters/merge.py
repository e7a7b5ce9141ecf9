"""Low-rank adapters merged into the weights that they change: W + (alpha / rank) * B @ A.

Guarantees: computed in float32 and rounded to the weight's format once; neither side is changed; a weight without an
adapter is handed on as it is, without a copy. Bit for bit what `merge_and_unload` of peft makes in float32.
"""

from collections.abc import Iterable, Iterator, Mapping

import torch

from streamrl.models.adapters.names import adapter_of

NamedTensors = Iterable[tuple[str, torch.Tensor]]


def merged(weight: torch.Tensor, lora_a: torch.Tensor, lora_b: torch.Tensor, scale: float) -> torch.Tensor:
    """weight [out, in], lora_a [rank, in], lora_b [out, rank]; scale is alpha / rank."""
    change = lora_b.float() @ lora_a.float()
    return change.mul_(scale).add_(weight).to(weight.dtype)


def merge(base: NamedTensors, adapters: Mapping[str, torch.Tensor], scale: float) -> Iterator[tuple[str, torch.Tensor]]:
    """Every weight of `base` under its name, with its adapter where it has one."""
    for name, weight in base:
        lora_a, lora_b = adapter_of(name)
        yield name, merged(weight, adapters[lora_a], adapters[lora_b], scale) if lora_a in adapters else weight
