"""The model of the weights' benchmark: 500 MB of float32, in the proportions of a small Qwen3."""

from collections.abc import Mapping

import torch
from transformers import PreTrainedModel, Qwen3Config, Qwen3ForCausalLM

from streamrl.engines.torch.families import describe
from streamrl.engines.torch.weights import FusedWeights

CONFIG = Qwen3Config(
    vocab_size=32_768,
    hidden_size=768,
    intermediate_size=2304,
    num_hidden_layers=13,
    num_attention_heads=12,
    num_key_value_heads=4,
    head_dim=64,
    max_position_embeddings=512,
    tie_word_embeddings=True,
)


def build() -> PreTrainedModel:
    """The model with drawn weights."""
    torch.manual_seed(0)
    return Qwen3ForCausalLM(CONFIG)


def engine_weights(tensors: Mapping[str, torch.Tensor]) -> FusedWeights:
    """A version as the torch engine serves it on a CPU."""
    return FusedWeights.over(describe(CONFIG), torch.float32, tensors)
