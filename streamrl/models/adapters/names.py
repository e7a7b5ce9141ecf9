"""How the tensors of low-rank adapters (LoRA) are called, in versions, checkpoints and exports. Without torch and peft.

`<module>.lora_A.weight` [rank, in] and `<module>.lora_B.weight` [out, rank] change `<module>.weight` [out, in], the
weight that is called by its Hugging Face name.
"""

from collections.abc import Iterable
from typing import Any

LORA_A = ".lora_A.weight"
LORA_B = ".lora_B.weight"
PEFT_PREFIX = "base_model.model."
"""What stands before these names in a file of peft's."""
NAMES_OF_EXPERTS = ("gate", "gate_proj", "up_proj", "down_proj", "w1", "w2", "w3")
"""Linear layers that peft takes for parts of experts where a model has some, by their former names."""


def adapted_weight(name: str) -> str | None:
    """The weight that an adapter's tensor changes; None when `name` is no adapter's."""
    for suffix in (LORA_A, LORA_B):
        if name.endswith(suffix):
            return f"{name.removesuffix(suffix)}.weight"
    return None


def peft_facts(names: Iterable[str], rank: int, alpha: float) -> dict[str, Any]:
    """What peft's `LoraConfig` is told of adapters whose tensors have these names."""
    weights = (adapted_weight(name) or "" for name in names)
    return {
        "task_type": "CAUSAL_LM",
        "r": rank,
        # An integer where it is one: so it is typed there.
        "lora_alpha": int(alpha) if float(alpha).is_integer() else alpha,
        "target_modules": sorted({weight.removesuffix(".weight").rpartition(".")[2] for weight in weights}),
    }


def adapter_of(weight: str) -> tuple[str, str]:
    """The names of the two tensors that change a weight."""
    module = weight.removesuffix(".weight")
    return module + LORA_A, module + LORA_B
