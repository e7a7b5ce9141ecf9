"""How the tensors of low-rank adapters (LoRA) are called, in versions, checkpoints and exports. Imports nothing.

`<module>.lora_A.weight` [rank, in] and `<module>.lora_B.weight` [out, rank] change `<module>.weight` [out, in], the
weight that is called by its Hugging Face name.
"""

LORA_A = ".lora_A.weight"
LORA_B = ".lora_B.weight"


def adapted_weight(name: str) -> str | None:
    """The weight that an adapter's tensor changes; None when `name` is no adapter's."""
    for suffix in (LORA_A, LORA_B):
        if name.endswith(suffix):
            return f"{name.removesuffix(suffix)}.weight"
    return None


def adapter_of(weight: str) -> tuple[str, str]:
    """The names of the two tensors that change a weight."""
    module = weight.removesuffix(".weight")
    return module + LORA_A, module + LORA_B
