"""The quick look at weights of well-known forms says yes only where transformers finds each tensor as it should be."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

from streamrl.models.fitting.plain_shapes import fits_plainly
from streamrl.models.fitting.weights_fit import require_fitting_weights

SIZES = {
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 30,
    "max_position_embeddings": 64,
}


def saved(folder: Path, kind: str, **more: Any) -> Path:
    config = AutoConfig.for_model(kind, **{**SIZES, **more})
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    return folder


def edit(folder: Path, **changed: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changed}))


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize(
    ("kind", "more"),
    [("llama", {}), ("llama", {"head_dim": 8}), ("qwen2", {}), ("qwen3", {"head_dim": 6}), ("qwen3", {"head_dim": 8})],
)
def test_a_model_as_transformers_saves_it_fits(kind: str, more: dict[str, int], tied: bool, tmp_path: Path) -> None:
    folder = saved(tmp_path, kind, tie_word_embeddings=tied, **more)
    assert fits_plainly(folder)
    require_fitting_weights(folder)


@pytest.mark.parametrize(
    "changed",
    [{key: SIZES[key] * 2} for key in SIZES if key != "max_position_embeddings"]
    + [
        {"head_dim": 12},
        {"head_dim": None},
        {"attention_bias": True},
        {"hidden_act": "nonesuch"},
        {"model_type": "mistral"},
        {"tie_word_embeddings": None},
        {"tie_word_embeddings": False},
        {"layer_types": ["full_attention"]},
        {"rope_parameters": {"rope_type": "yarn"}},
        {"rope_scaling": {"type": "linear"}},
        {"quantization_config": {"quant_method": "fp8"}},
        {"rms_norm_eps": "small"},
    ],
)
def test_it_does_not_say_yes_to_another_configuration(changed: dict[str, Any], tmp_path: Path) -> None:
    folder = saved(tmp_path, "qwen3", tie_word_embeddings=True, head_dim=8)
    edit(folder, **changed)
    assert not fits_plainly(folder)


def test_it_does_not_say_yes_to_other_tensors(tmp_path: Path) -> None:
    folder = saved(tmp_path, "qwen2", tie_word_embeddings=True)
    path = folder / "model.safetensors"
    tensors = load_file(path)
    bias = "model.layers.1.self_attn.q_proj.bias"
    for changed in (
        {name: tensor for name, tensor in tensors.items() if name != bias},
        {**tensors, bias: torch.zeros(23)},
        {**tensors, "more": torch.zeros(1)},
    ):
        save_file(changed, path, metadata={"format": "pt"})
        assert not fits_plainly(folder)
    path.write_bytes(path.read_bytes()[:7])
    assert not fits_plainly(folder)
