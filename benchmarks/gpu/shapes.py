"""Models of the shapes that people train, with random weights made on the GPU, and the facts of the GPU."""

import torch
from transformers import PreTrainedModel, Qwen3Config, Qwen3ForCausalLM

_SIZES = {
    "0.6B": (1024, 3072, 28, 16, True),
    "1.7B": (2048, 6144, 28, 16, True),
    "4B": (2560, 9728, 36, 32, True),
    "8B": (4096, 12_288, 36, 32, False),
}
"""Of Qwen3: hidden size, intermediate size, layers, heads, whether embedding and head are one."""

BANDWIDTH = {"H100": 3.35e12, "H200": 4.8e12, "A100": 2.0e12, "B200": 8.0e12}
"""Bytes a second of a GPU's memory, as its vendor says."""
PEAK = {"H100": 989e12, "H200": 989e12, "A100": 312e12, "L40S": 362e12, "B200": 2250e12}
"""Operations a second in dense bfloat16, as its vendor says."""


def config_of(name: str) -> Qwen3Config:
    hidden, wide, layers, heads, tied = _SIZES[name]
    return Qwen3Config(
        vocab_size=151_936,
        hidden_size=hidden,
        intermediate_size=wide,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=8,
        head_dim=128,
        max_position_embeddings=40_960,
        tie_word_embeddings=tied,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=0,
    )


def model_of(name: str, dtype: torch.dtype = torch.bfloat16) -> PreTrainedModel:
    """On the GPU, in evaluation mode."""
    torch.manual_seed(0)
    with torch.device("cuda"):
        before = torch.get_default_dtype()
        torch.set_default_dtype(dtype)
        try:
            return Qwen3ForCausalLM(config_of(name)).eval()
        finally:
            torch.set_default_dtype(before)


def of_device(table: dict[str, float]) -> float:
    """The entry of the GPU at hand. Raises LookupError for one that the table lacks."""
    name = torch.cuda.get_device_name()
    found = next((value for part, value in table.items() if part in name), None)
    if found is None:
        raise LookupError(f"no figures of its vendor for {name}; add them to benchmarks/gpu/shapes.py")
    return found
