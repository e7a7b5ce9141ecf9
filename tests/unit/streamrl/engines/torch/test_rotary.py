"""Tables of the rotary embedding against transformers' own classes, to the bit."""

from typing import Any

import pytest
import torch
from transformers import AutoConfig, PretrainedConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding
from transformers.models.mixtral.modeling_mixtral import MixtralRotaryEmbedding
from transformers.models.qwen2.modeling_qwen2 import Qwen2RotaryEmbedding
from transformers.models.qwen3.modeling_qwen3 import Qwen3RotaryEmbedding
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeRotaryEmbedding

from streamrl.engines.torch.families import STATIC_ROPE, TYPES
from streamrl.engines.torch.rotary import rope_tables

CLASSES = {
    "llama": LlamaRotaryEmbedding,
    "mixtral": MixtralRotaryEmbedding,
    "qwen2": Qwen2RotaryEmbedding,
    "qwen3": Qwen3RotaryEmbedding,
    "qwen3_moe": Qwen3MoeRotaryEmbedding,
}
ROPE: dict[str, dict[str, Any]] = {
    "default": {},
    "linear": {"factor": 3.0},
    "llama3": {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64},
    "yarn": {"factor": 4.0, "original_max_position_embeddings": 64},
}


def config(kind: str, rope: str, **sizes: int) -> PretrainedConfig:
    parameters = {"rope_type": rope, "rope_theta": 12345.0, **ROPE[rope]}
    if (kind, rope) == ("mixtral", "yarn"):
        sizes = {"head_dim": 24, **sizes}  # transformers finds no size of a head by itself there
    heads = {"hidden_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512}
    return AutoConfig.for_model(kind, **heads, **sizes, rope_parameters=parameters)


def test_there_is_a_class_and_a_case_for_all() -> None:
    assert CLASSES.keys() == set(TYPES)
    assert ROPE.keys() == set(STATIC_ROPE)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("sizes", [{}, {"head_dim": 16}])
@pytest.mark.parametrize("rope", ROPE)
@pytest.mark.parametrize("kind", CLASSES)
def test_tables_are_those_of_the_models_own_class(
    kind: str, rope: str, sizes: dict[str, int], dtype: torch.dtype
) -> None:
    of_model = config(kind, rope, **sizes)
    cos, sin = CLASSES[kind](of_model)(torch.empty(0, dtype=dtype), torch.arange(300)[None])
    half = sin.shape[-1] // 2
    found_cos, found_sin = rope_tables(of_model, 300, dtype, torch.device("cpu"))
    assert found_cos.dtype is dtype
    assert torch.equal(found_cos, cos[0])
    assert torch.equal(found_sin, torch.cat((-sin[0, :, :half], sin[0, :, half:]), dim=-1))
