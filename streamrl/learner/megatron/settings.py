"""What megatron-core is told of a model and of its gradients, from the Hugging Face model's configuration and the
layout. Plain values: megatron-core itself is not asked here.
"""

from typing import Any

import torch
import torch.nn.functional as F
from transformers import PretrainedConfig

from streamrl.config.schema.learner import MegatronConfig
from streamrl.learner.megatron.families import Family

_RECOMPUTE: dict[str, dict[str, Any]] = {
    "none": {},
    "attention": {"recompute_granularity": "selective", "recompute_modules": ["core_attn"]},
    "layers": {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1},
}
_EXPERTS = {
    "moe_router_load_balancing_type": "none",
    "moe_aux_loss_coeff": 0.0,
    "moe_router_dtype": "fp32",
}


def head_dim(config: PretrainedConfig) -> int:
    return int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)


def layer_settings(
    config: PretrainedConfig, family: Family, megatron: MegatronConfig, dtype: torch.dtype, device: torch.device
) -> dict[str, Any]:
    """Of megatron-core's TransformerConfig."""
    of_family = family.settings(config)
    experts = {**_EXPERTS, "moe_grouped_gemm": device.type == "cuda"} if "num_moe_experts" in of_family else {}
    return {**_layers(config), **_layout(megatron), **_computed(dtype, device), **experts, **of_family}


def _layers(config: PretrainedConfig) -> dict[str, Any]:
    return {
        "num_layers": config.num_hidden_layers,
        "hidden_size": config.hidden_size,
        "ffn_hidden_size": config.intermediate_size,
        "num_attention_heads": config.num_attention_heads,
        "num_query_groups": config.num_key_value_heads,
        "kv_channels": head_dim(config),
        "normalization": "RMSNorm",
        "layernorm_epsilon": config.rms_norm_eps,
        "gated_linear_unit": True,
        "activation_func": F.silu,
        "add_bias_linear": False,
        "hidden_dropout": 0.0,
        "attention_dropout": 0.0,
    }


def _layout(megatron: MegatronConfig) -> dict[str, Any]:
    several = megatron.virtual_pipeline > 1
    return {
        "tensor_model_parallel_size": megatron.tensor_parallel,
        "pipeline_model_parallel_size": megatron.pipeline_parallel,
        "virtual_pipeline_model_parallel_size": megatron.virtual_pipeline if several else None,
        "context_parallel_size": megatron.context_parallel,
        "expert_model_parallel_size": megatron.expert_parallel,
        "expert_tensor_parallel_size": megatron.expert_tensor_parallel,
        "sequence_parallel": megatron.sequence_parallel,
        # Where two ranks send each other forward and backward in one message, they take one for the other.
        "overlap_p2p_comm": several,
        "batch_p2p_comm": not several,
        # Packs differ in length, and plain stages tell each other; interleaved ones would mix that up, too.
        "variable_seq_lengths": not several,
        **_RECOMPUTE[megatron.recompute],
    }


def _computed(dtype: torch.dtype, device: torch.device) -> dict[str, Any]:
    return {
        "params_dtype": dtype,
        "pipeline_dtype": dtype,
        "bf16": dtype == torch.bfloat16,
        # Weights are loaded.
        "use_cpu_initialization": device.type == "cpu",
        "perform_initialization": False,
        # Of tokens to experts; the other one refuses packs that differ in length, also where there are no experts.
        "moe_token_dispatcher_type": "alltoall",
        # A pack's loss is its share of the batch's: losses add up over packs and ranks, and none is a mean.
        "calculate_per_token_loss": True,
        # These need kernels of apex or Transformer Engine.
        "gradient_accumulation_fusion": False,
        "persist_layer_norm": False,
        "bias_activation_fusion": False,
        "bias_dropout_fusion": False,
        "masked_softmax_fusion": False,
    }


def gradient_settings(megatron: MegatronConfig) -> dict[str, Any]:
    """Of megatron-core's DistributedDataParallelConfig."""
    return {
        "use_distributed_optimizer": megatron.distributed_optimizer,
        "grad_reduce_in_fp32": megatron.precision == "float32",
        "overlap_grad_reduce": False,
    }
