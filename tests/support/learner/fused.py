"""Small models of the families that the learner fuses, and packs of rows with shared prompts."""

from typing import Any

import numpy as np
import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from streamrl.learner.batch.packing import PackedBatch, pack
from streamrl.types import RolloutRows

VOCAB = 67
_FAMILIES: dict[str, tuple[type, type]] = {
    "qwen2": (Qwen2Config, Qwen2ForCausalLM),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM),
    "llama": (LlamaConfig, LlamaForCausalLM),
}


def small_model(family: str, **sizes: Any) -> PreTrainedModel:
    """Two layers, heads of 16, float32; norms and biases are not what they begin with."""
    config_class, model_class = _FAMILIES[family]
    torch.manual_seed(0)
    settings = {
        "vocab_size": VOCAB,
        "hidden_size": 48,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "initializer_range": 0.2,
    }
    model = model_class(config_class(**settings | sizes))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name or name.endswith("bias"):
                parameter.add_(0.3 * torch.randn_like(parameter))
    return model


def packed_rows(max_tokens: int = 4096, *, split: bool = False) -> Any:
    """One pack of four groups of three rows, each with a prompt of its own; `split`: all packs of `max_tokens`."""
    packs = pack(_rows(), np.linspace(-1.0, 1.0, 12), max_tokens)
    return packs if split else _only(packs)


def _only(packs: list[PackedBatch]) -> PackedBatch:
    (one,) = packs
    return one


def _rows() -> RolloutRows:
    random = np.random.default_rng(0)
    parts: list[np.ndarray] = []
    for length in (5, 9, 16, 1):
        prompt = random.integers(0, VOCAB, length)
        for _ in range(3):
            parts += [prompt, random.integers(0, VOCAB, random.integers(2, 40))]
    lengths = np.array([len(part) for part in parts])
    count = int(lengths.sum())
    return RolloutRows(
        offsets=np.concatenate([[0], np.cumsum(lengths)[1::2]]),
        token_ids=np.concatenate(parts).astype(np.int32),
        token_origin=np.repeat(np.tile([0, 1], 12), lengths).astype(np.uint8),
        rollout_logprobs=np.full(count, -2.0, np.float32),
        token_steps=np.zeros(count, np.int64),
        group=np.arange(12) // 3,
        sample_index=np.arange(12) % 3,
        rewards=np.zeros(12),
        valid=np.ones(12, bool),
    )
