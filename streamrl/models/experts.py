"""The weights of experts, which a model holds as one tensor and a checkpoint as one for each expert. Pure.

transformers 5 loads `experts.0.gate_proj.weight`, `experts.0.up_proj.weight`, ... of Qwen3-MoE, DeepSeek-V3 and the
like into `experts.gate_up_proj` [experts, 2 * inner, hidden], gate before up, and `experts.down_proj` [experts, hidden,
inner].
"""

from collections.abc import Collection, Iterable, Iterator

import torch

GATE_UP, DOWN = ".experts.gate_up_proj", ".experts.down_proj"


def as_in_checkpoint(
    pairs: Iterable[tuple[str, torch.Tensor]], names: Collection[str]
) -> Iterator[tuple[str, torch.Tensor]]:
    """Tensors under the names of a checkpoint. names: those that it has; what it has under the model's own name
    stays."""
    for name, tensor in pairs:
        if name in names or not name.endswith((GATE_UP, DOWN)):
            yield name, tensor
            continue
        prefix = name.rpartition(".")[0]
        for number, expert in enumerate(tensor):
            if name.endswith(DOWN):
                yield f"{prefix}.{number}.down_proj.weight", expert
            else:
                gate, up = expert.chunk(2)
                yield f"{prefix}.{number}.gate_proj.weight", gate
                yield f"{prefix}.{number}.up_proj.weight", up
