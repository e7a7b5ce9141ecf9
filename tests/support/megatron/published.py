"""Sizes of published models, as their `config.json` has them, and how many parameters they have."""

import json
import struct
from pathlib import Path
from typing import Any

_QWEN3 = {"vocab_size": 151936, "head_dim": 128, "tie_word_embeddings": False, "eos_token_id": 151645}
_EXPERTS = {"model_type": "qwen3_moe", "num_experts": 128, "num_experts_per_tok": 8, "num_key_value_heads": 4}

PUBLISHED: dict[str, tuple[dict[str, Any], int]] = {
    "0.6B": (
        {
            **_QWEN3,
            "model_type": "qwen3",
            "hidden_size": 1024,
            "num_hidden_layers": 28,
            "num_attention_heads": 16,
            "num_key_value_heads": 8,
            "intermediate_size": 3072,
            "tie_word_embeddings": True,
        },
        596_049_920,
    ),
    "8B": (
        {
            **_QWEN3,
            "model_type": "qwen3",
            "hidden_size": 4096,
            "num_hidden_layers": 36,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "intermediate_size": 12288,
        },
        8_190_735_360,
    ),
    "30B-A3B": (
        {
            **_QWEN3,
            **_EXPERTS,
            "hidden_size": 2048,
            "num_hidden_layers": 48,
            "num_attention_heads": 32,
            "intermediate_size": 6144,
            "moe_intermediate_size": 768,
        },
        30_532_122_624,
    ),
    "235B-A22B": (
        {
            **_QWEN3,
            **_EXPERTS,
            "hidden_size": 4096,
            "num_hidden_layers": 94,
            "num_attention_heads": 64,
            "intermediate_size": 12288,
            "moe_intermediate_size": 1536,
        },
        235_093_634_560,
    ),
}


def write_published(folder: Path, name: str, **changes: Any) -> Path:
    """A folder with the sizes of a published model, and a file of weights that takes no room on the disk."""
    config, parameters = PUBLISHED[name]
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({**config, **changes}))
    (folder / "tokenizer.json").write_text(json.dumps({"model": {"vocab": {"a": 0}}}))
    entry = {"dtype": "BF16", "shape": [parameters], "data_offsets": [0, 2 * parameters]}
    header = json.dumps({"weights": entry}).encode()
    with (folder / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
        file.truncate(8 + len(header) + 2 * parameters)
    return folder
