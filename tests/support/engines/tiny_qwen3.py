"""A Qwen3 so small that a test makes several."""

import torch
from transformers import PreTrainedModel, Qwen3Config, Qwen3ForCausalLM

VOCAB = 37
CONTEXT = 512


def tiny_model(*, seed: int = 0, tied: bool = True) -> PreTrainedModel:
    """Of random weights that are far from each other: a wrong one shows."""
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=VOCAB,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=CONTEXT,
        initializer_range=0.3,
        tie_word_embeddings=tied,
    )
    return Qwen3ForCausalLM(config).eval()
