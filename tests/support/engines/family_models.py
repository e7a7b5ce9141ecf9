"""Tiny models of many families, made from their configurations. Windows are shorter than the texts of the tests."""

from typing import Any, NamedTuple

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

SMALL = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
MOE = {"num_experts_per_tok": 2, "moe_intermediate_size": 16}
LATENT = {
    "kv_lora_rank": 8,
    "q_lora_rank": 8,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 8,
    "num_key_value_heads": 4,
    "first_k_dense_replace": 1,
    "n_group": 1,
    "topk_group": 1,
}
DELTA = {
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
}
HYBRID = {"layer_types": ["linear_attention", "full_attention"] * 2, "num_hidden_layers": 4}
SHARED = {"shared_expert_intermediate_size": 16}
SPACE = {"mamba_d_head": 8, "mamba_n_groups": 1, "mamba_d_state": 8, "mamba_chunk_size": 8}
GRANITE = {
    "layer_types": ["mamba", "attention"] * 2,
    "num_hidden_layers": 4,
    "shared_intermediate_size": 32,
    "num_local_experts": 0,
}


class Family(NamedTuple):
    """kind: `model_type`. more: of its configuration. invariant: whether some way to multiply keeps rows of a
    pass independent of each other. trains: whether the learner takes it."""

    kind: str
    more: dict[str, Any]
    invariant: bool = True
    trains: bool = True


FAMILIES = {
    family.kind: family
    for family in (
        Family("mistral", {"sliding_window": 7}),
        Family("ministral", {"sliding_window": 6}),
        Family("gemma", {}),
        Family("gemma2", {"sliding_window": 6, "query_pre_attn_scalar": 8, "num_hidden_layers": 4}),
        Family("gemma3_text", {"sliding_window": 5, "query_pre_attn_scalar": 8, "num_hidden_layers": 6}),
        Family("phi3", {"sliding_window": 9}),
        Family("olmo2", {}),
        Family("olmo3", {"sliding_window": 6, "num_hidden_layers": 4}),
        Family("smollm3", {"num_hidden_layers": 4, "no_rope_layer_interval": 2}),
        Family("granite", {"logits_scaling": 2.0, "attention_multiplier": 0.3, "embedding_multiplier": 3.0}),
        Family("glm4", {}),
        Family("starcoder2", {"sliding_window": 6}),
        Family("seed_oss", {}),
        Family("exaone4", {"sliding_window": 6, "num_hidden_layers": 4}),
        Family("cohere2", {"sliding_window": 6, "num_hidden_layers": 4, "logit_scale": 0.3}),
        Family("qwen3_moe", {"num_experts": 4, "mlp_only_layers": [1], **MOE}),
        Family("gpt_oss", {"num_local_experts": 4, "sliding_window": 6, "num_hidden_layers": 4, **MOE}),
        Family("qwen3_5_text", {**DELTA, **HYBRID}, invariant=False),
        Family("qwen3_next", {**DELTA, **HYBRID, **MOE, **SHARED, "num_experts": 4}, invariant=False),
        Family("lfm2", {"layer_types": ["conv", "full_attention"] * 2, "num_hidden_layers": 4}),
        Family("mamba2", {"num_heads": 8, "head_dim": 8, "state_size": 8, "n_groups": 2, "chunk_size": 8}),
        Family("falcon_h1", {**SPACE, "mamba_d_ssm": 32, "mamba_n_heads": 4}),
        Family("granitemoehybrid", {**SPACE, "mamba_n_heads": 8, **GRANITE}),
        Family("deepseek_v3", {"n_routed_experts": 4, "n_shared_experts": 1, **MOE, **LATENT}, invariant=False),
    )
}


def family_model(kind: str, seed: int = 0, **more: Any) -> PreTrainedModel:
    """One of FAMILIES, with weights that make its tokens differ."""
    torch.manual_seed(seed)
    config = AutoConfig.for_model(kind, **{**SMALL, **FAMILIES[kind].more, **more})
    model: PreTrainedModel = AutoModelForCausalLM.from_config(config).eval()
    for parameter in model.parameters():
        if parameter.dim() > 1:
            parameter.data.normal_(0.0, 0.08)
    return model
