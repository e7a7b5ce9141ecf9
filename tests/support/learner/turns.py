"""Seeded rollouts of several turns: an environment's tokens between sampled ones, of ragged lengths, some without a
score; and a model small enough to learn from them."""

import numpy as np
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from streamrl.types import RolloutRows, TokenOrigin

GROUP_SIZE = 2
VOCAB = 19


def make_model(
    *, hidden_size: int = 24, intermediate_size: int = 35, head_dim: int = 8, tied: bool = True
) -> Qwen3ForCausalLM:
    """The same weights at each call."""
    torch.manual_seed(5)
    return Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=VOCAB,
            hidden_size=hidden_size,
            intermediate_size=intermediate_size,
            num_hidden_layers=2,
            num_attention_heads=3,
            num_key_value_heads=1,
            head_dim=head_dim,
            max_position_embeddings=64,
            tie_word_embeddings=tied,
        )
    )


def make_turns(*seed: int, step: int, groups: int = 6, lag: int = 0, group_size: int = GROUP_SIZE) -> RolloutRows:
    """Groups with a shared prompt; log-probs near those of a model that was just made."""
    random = np.random.default_rng(seed)
    ids, origins, lengths = [], [], []
    for _ in range(groups):
        prompt = random.integers(0, VOCAB, random.integers(1, 5))
        for _ in range(group_size):
            turns = [(TokenOrigin.PROMPT, len(prompt)), *_turns(random)]
            own = np.concatenate([np.full(count, origin) for origin, count in turns])
            ids += [prompt, random.integers(0, VOCAB, len(own) - len(prompt))]
            origins.append(own)
            lengths.append(len(own))
    count, rows = sum(lengths), groups * group_size
    valid = random.random(rows) > 0.15
    return RolloutRows(
        offsets=np.concatenate([[0], np.cumsum(lengths)]),
        token_ids=np.concatenate(ids).astype(np.int32),
        token_origin=np.concatenate(origins).astype(np.uint8),
        rollout_logprobs=random.normal(-3.0, 0.2, count).astype(np.float32),
        token_steps=np.full(count, step - lag),
        group=np.repeat(np.arange(groups), group_size),
        sample_index=np.tile(np.arange(group_size), groups),
        rewards=np.where(valid, random.integers(0, 3, rows) / 2.0, np.nan),
        valid=valid,
        replica=[f"rollout-{row % 2}" for row in range(rows)],
    )


def _turns(random: np.random.Generator) -> list[tuple[TokenOrigin, int]]:
    """One to three sampled stretches with what an environment says between them, and now and then behind the last."""
    count = int(random.integers(1, 4))
    turns = []
    for _ in range(count):
        turns += [(TokenOrigin.SAMPLED, int(random.integers(1, 5)))]
        turns += [(TokenOrigin.ENVIRONMENT, int(random.integers(1, 4)))]
    return turns if random.random() < 0.3 else turns[:-1]
