"""A small Qwen3-MoE that servers run, and where its own routers send tokens."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel, Qwen3MoeConfig, Qwen3MoeForCausalLM

from streamrl.models.tokenizer import write_character_tokenizer
from streamrl.types import IntArray, RouteArray

LETTERS = "abcdefghijklmnopqrstuvwxyz"
VOCAB, LAYERS, EXPERTS, CHOSEN = len(LETTERS) + 3, 3, 8, 2
"""Beside its letters a tokenizer has three marks."""


def write_routed_model(folder: Path, seed: int, **more: Any) -> None:
    """Routers that are sure of their experts, so that rounding sends no token elsewhere."""
    sizes = {"vocab_size": VOCAB, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": LAYERS}
    # vLLM's attention for CPUs knows few sizes of a head.
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 64, "max_position_embeddings": 16384}
    experts = {"num_experts": EXPERTS, "num_experts_per_tok": CHOSEN, "moe_intermediate_size": 32}
    torch.manual_seed(seed)
    config = Qwen3MoeConfig(**sizes, **heads, **experts, norm_topk_prob=True, eos_token_id=None, **more)
    model = Qwen3MoeForCausalLM(config).eval()
    for name, parameter in model.named_parameters():
        if parameter.dim() > 1:
            parameter.data.normal_(0.0, 1.0 if name.endswith("gate.weight") else 0.1)
    model.save_pretrained(folder)
    write_character_tokenizer(LETTERS, VOCAB, folder)


@torch.inference_mode()
def own_routes(model: PreTrainedModel, ids: IntArray) -> RouteArray:
    """int16 [n, layers, experts of a token], by transformers' own forward of one text; each token's in order."""
    said = model(torch.from_numpy(ids.astype(np.int64))[None], output_router_logits=True).router_logits
    chosen = torch.stack([logits.topk(CHOSEN).indices.sort(-1).values for logits in said], dim=1)
    return chosen.numpy().astype(np.int16)
