"""Small models of the families that Megatron trains, of one that a user adds, and rows for them."""

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    Phi3Config,
    Phi3ForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

from streamrl.types import RolloutRows

VOCAB = 67
"""No even number, so that two ranks pad it."""
PADDING = 5
"""A token that rows have, too. transformers gives its embedding no gradient."""
_HEADS = {"head_dim": 8}
LAYERS, EXPERTS, CHOSEN = 4, 4, 2
_EXPERTS = {"num_local_experts": EXPERTS, "num_experts_per_tok": CHOSEN}
_FAMILIES: dict[str, tuple[type, type, dict[str, Any]]] = {
    "llama": (LlamaConfig, LlamaForCausalLM, _HEADS),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM, {}),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM, _HEADS),
    "qwen3_moe": (
        Qwen3MoeConfig,
        Qwen3MoeForCausalLM,
        {**_HEADS, **_EXPERTS, "moe_intermediate_size": 24, "norm_topk_prob": True},
    ),
    "phi3": (Phi3Config, Phi3ForCausalLM, {}),
    "mixtral": (MixtralConfig, MixtralForCausalLM, _EXPERTS),
}


def small_model(family: str, **sizes: Any) -> PreTrainedModel:
    """Four layers, float32; norms and biases are not what they begin with."""
    config_class, model_class, own = _FAMILIES[family]
    torch.manual_seed(0)
    settings = {
        "vocab_size": VOCAB,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "initializer_range": 0.2,
        "tie_word_embeddings": False,
        "pad_token_id": PADDING,
    }
    model = model_class(config_class(**settings | own | sizes))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(0.3 * torch.randn_like(parameter))
        # transformers begins with zeros there, of which a norm makes nothing or a thousand times as much.
        model.get_input_embeddings().weight[PADDING].normal_(0.0, 0.2)
    return model.eval()


def small_rows(step: int, *, groups: int = 5, group_size: int = 3) -> RolloutRows:
    """Seeded groups with shared prompts, ragged answers and rewards that differ."""
    random = np.random.default_rng([3, step])
    parts: list[np.ndarray] = []
    for _ in range(groups):
        prompt = random.integers(0, VOCAB, random.integers(1, 20))
        for _ in range(group_size):
            parts += [prompt, random.integers(0, VOCAB, random.integers(2, 24))]
    lengths = np.array([len(part) for part in parts])
    count, rows = int(lengths.sum()), groups * group_size
    return RolloutRows(
        offsets=np.concatenate([[0], np.cumsum(lengths)[1::2]]),
        token_ids=np.concatenate(parts).astype(np.int32),
        token_origin=np.repeat(np.tile([0, 1], rows), lengths).astype(np.uint8),
        rollout_logprobs=random.normal(-4, 0.5, count).astype(np.float32),
        token_steps=np.full(count, step),
        group=np.repeat(np.arange(groups), group_size),
        sample_index=np.tile(np.arange(group_size), groups),
        rewards=random.random(rows),
        valid=np.ones(rows, bool),
    )


def with_routes(rows: RolloutRows, step: int) -> RolloutRows:
    """With routes that no router would choose, and none for some tokens; as in an engine, the same ones for what a
    group's prompts have in common."""
    random = np.random.default_rng([4, step])
    each = np.stack([random.permutation(EXPERTS)[:CHOSEN] for _ in range(rows.num_tokens * LAYERS)])
    routes = each.reshape(rows.num_tokens, LAYERS, CHOSEN).astype(np.int16)
    routes[random.random(rows.num_tokens) < 0.2] = -1
    for row in range(rows.num_rows):
        first = rows.offsets[np.flatnonzero(rows.group == rows.group[row])[0]]
        start, stop = rows.offsets[row], rows.offsets[row + 1]
        prompt = int((rows.token_origin[start:stop] == 0).sum())
        routes[start : start + prompt] = routes[first : first + prompt]
    return replace(rows, routes=routes)
