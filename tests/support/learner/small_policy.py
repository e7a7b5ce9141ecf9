"""A policy of two layers, and rows for it, all seeded."""

import numpy as np
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from streamrl.types import RolloutRows

VOCAB = 19


def make_model(seed: int = 5) -> Qwen3ForCausalLM:
    torch.manual_seed(seed)
    return Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=VOCAB,
            hidden_size=24,
            intermediate_size=35,
            num_hidden_layers=2,
            num_attention_heads=3,
            num_key_value_heads=1,
            head_dim=8,
            max_position_embeddings=64,
            tie_word_embeddings=True,
        )
    )


def make_rows(*, rows: int = 8, seed: int = 9) -> RolloutRows:
    """Groups of four, of 2 to 11 tokens; some are of the environment, one in five rows has no score."""
    random = np.random.default_rng(seed)
    lengths = random.integers(2, 12, rows)
    count = int(lengths.sum())
    offsets, origin = np.concatenate([[0], np.cumsum(lengths)]), random.choice([1, 1, 1, 2], count).astype(np.uint8)
    origin[offsets[:-1]] = 0
    return RolloutRows(
        offsets=offsets,
        token_ids=random.integers(0, VOCAB, count).astype(np.int32),
        token_origin=origin,
        rollout_logprobs=random.normal(-3, 0.3, count).astype(np.float32),
        token_steps=np.zeros(count, np.int64),
        group=np.arange(rows) // 4,
        sample_index=np.arange(rows) % 4,
        rewards=random.normal(0, 1, rows),
        valid=random.random(rows) > 0.2,
    )
