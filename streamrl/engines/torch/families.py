"""Which Hugging Face decoders the engine can run exactly, and the shapes of their tensors.

Guaranteed: a configuration that passes `describe` is computed as transformers computes it. Whatever would make
the result differ (a sliding window that is on, experts, a rotary embedding that changes with length, another
activation, quantised weights) is refused by name, never approximated. Nothing here knows weights or requests.
"""

from dataclasses import dataclass

import torch
from transformers import PretrainedConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding
from transformers.models.qwen2.modeling_qwen2 import Qwen2RotaryEmbedding
from transformers.models.qwen3.modeling_qwen3 import Qwen3RotaryEmbedding

from streamrl.errors import ConfigError

ROTARY = {"llama": LlamaRotaryEmbedding, "qwen2": Qwen2RotaryEmbedding, "qwen3": Qwen3RotaryEmbedding}
"""The model types that there are, each with the class that computes its rotary embedding."""

STATIC_ROPE = ("default", "linear", "llama3", "yarn")
"""Rotary embeddings whose frequencies do not depend on the length of what was read so far."""


@dataclass(frozen=True, slots=True)
class ModelShape:
    """What the decoder needs to know of a model. Sizes count elements; `tied` means head = embedding."""

    model_type: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    context: int
    tied: bool
    qkv_bias: bool
    output_bias: bool
    mlp_bias: bool
    qk_norm: bool


def describe(config: PretrainedConfig) -> ModelShape:
    """The shape of a supported model. Raises ConfigError that names what is not supported, and what is."""
    kind = config.model_type
    if kind not in ROTARY:
        raise ConfigError(
            f"the torch engine cannot run model type {kind!r}; it runs {', '.join(sorted(ROTARY))} "
            "(dense decoders without a sliding window)"
        )
    _refuse_inexact(config)
    attention_bias = bool(getattr(config, "attention_bias", False))
    return ModelShape(
        model_type=kind,
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_layers=config.num_hidden_layers,
        num_heads=config.num_attention_heads,
        num_kv_heads=config.num_key_value_heads,
        head_dim=getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads,
        rms_norm_eps=config.rms_norm_eps,
        context=config.max_position_embeddings,
        tied=config.tie_word_embeddings,
        qkv_bias=kind == "qwen2" or attention_bias,
        output_bias=kind != "qwen2" and attention_bias,
        mlp_bias=kind == "llama" and config.mlp_bias,
        qk_norm=kind == "qwen3",
    )


def _refuse_inexact(config: PretrainedConfig) -> None:
    rope_type = config.rope_parameters["rope_type"]
    faults = []
    if "sliding_attention" in (getattr(config, "layer_types", None) or ()):
        faults.append("layer_types has 'sliding_attention' (full attention only: use_sliding_window = false)")
    if rope_type not in STATIC_ROPE:
        faults.append(f"rope_type is {rope_type!r} (there are {', '.join(STATIC_ROPE)})")
    if config.hidden_act != "silu":
        faults.append(f"hidden_act is {config.hidden_act!r} (there is silu)")
    if getattr(config, "quantization_config", None) is not None:
        faults.append("quantization_config is set (there are plain float weights)")
    if faults:
        raise ConfigError(f"the torch engine cannot run this {config.model_type} model exactly: " + "; ".join(faults))


def tensor_shapes(shape: ModelShape) -> dict[str, tuple[int, ...]]:
    """Every Hugging Face parameter name of the model with its shape; without `lm_head.weight` when tied."""
    hidden = shape.hidden_size
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (shape.vocab_size, hidden)}
    for layer in range(shape.num_layers):
        for name, size in _layer_shapes(shape).items():
            shapes[f"model.layers.{layer}.{name}"] = size
    shapes["model.norm.weight"] = (hidden,)
    if not shape.tied:
        shapes["lm_head.weight"] = (shape.vocab_size, hidden)
    return shapes


def _layer_shapes(shape: ModelShape) -> dict[str, tuple[int, ...]]:
    hidden, inner = shape.hidden_size, shape.intermediate_size
    query, key = shape.num_heads * shape.head_dim, shape.num_kv_heads * shape.head_dim
    linears = {
        "self_attn.q_proj": (query, hidden, shape.qkv_bias),
        "self_attn.k_proj": (key, hidden, shape.qkv_bias),
        "self_attn.v_proj": (key, hidden, shape.qkv_bias),
        "self_attn.o_proj": (hidden, query, shape.output_bias),
        "mlp.gate_proj": (inner, hidden, shape.mlp_bias),
        "mlp.up_proj": (inner, hidden, shape.mlp_bias),
        "mlp.down_proj": (hidden, inner, shape.mlp_bias),
    }
    shapes: dict[str, tuple[int, ...]] = {
        "input_layernorm.weight": (hidden,),
        "post_attention_layernorm.weight": (hidden,),
    }
    if shape.qk_norm:
        shapes |= {f"self_attn.{name}_norm.weight": (shape.head_dim,) for name in ("q", "k")}
    for name, (rows, columns, bias) in linears.items():
        shapes[f"{name}.weight"] = (rows, columns)
        if bias:
            shapes[f"{name}.bias"] = (rows,)
    return shapes


def rope_tables(
    config: PretrainedConfig, length: int, dtype: torch.dtype, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """cos and sin of positions 0..length-1, each [length, head_dim], from the model's own rotary class.

    The first half of sin is negated: then `x * cos + swap_halves(x) * sin` is transformers'
    `x * cos + rotate_half(x) * sin`, to the bit, without a negation for each layer.
    """
    rotary = ROTARY[config.model_type](config)
    cos, sin = rotary(torch.empty(0, dtype=dtype), torch.arange(length)[None])
    half = sin.shape[-1] // 2
    signed = torch.cat((-sin[0, :, :half], sin[0, :, half:]), dim=-1)
    return cos[0].to(device).contiguous(), signed.to(device).contiguous()
