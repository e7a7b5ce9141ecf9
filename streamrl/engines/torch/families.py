"""Which Hugging Face decoders the engine can run exactly, and the shapes of their tensors.

Guaranteed: a configuration that passes `describe` is computed as transformers computes it. Whatever would make
the result differ (a sliding window that is on, layers with experts beside layers without, a rotary embedding that
changes with length, another activation, quantised weights) is refused by name, never approximated. Nothing here knows
weights or requests.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from transformers import PretrainedConfig

from streamrl.errors import ConfigError

EXPERTS = ("mixtral", "qwen3_moe")
"""The model types whose layers have experts in the place of an MLP."""

TYPES = ("llama", *EXPERTS, "qwen2", "qwen3")
"""All that there are."""

STATIC_ROPE = ("default", "linear", "llama3", "yarn")
"""Rotary embeddings whose frequencies do not depend on the length of what was read so far."""


@dataclass(frozen=True, slots=True)
class ModelShape:
    """What the decoder needs to know of a model. Sizes count elements; `tied` means head = embedding.

    num_experts: of each layer, 0 without any; intermediate_size is then that of one expert. experts_per_token: the best
    few that a token goes to. renormalised: whether their probabilities are scaled to a sum of 1.
    """

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
    num_experts: int = 0
    experts_per_token: int = 0
    renormalised: bool = False


def describe(config: PretrainedConfig) -> ModelShape:
    """The shape of a supported model. Raises ConfigError that names what is not supported, and what is."""
    kind = config.model_type
    if kind not in TYPES:
        raise ConfigError(
            f"the torch engine cannot run model type {kind!r}; it runs {', '.join(sorted(TYPES))} "
            "(decoders without a sliding window)"
        )
    _refuse_inexact(config)
    # Mixtral's configuration may have a key of another family's, which its layers do not read.
    attention_bias = kind != "mixtral" and bool(getattr(config, "attention_bias", False))
    return ModelShape(
        model_type=kind,
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        intermediate_size=config.moe_intermediate_size if kind == "qwen3_moe" else config.intermediate_size,
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
        qk_norm=kind in ("qwen3", "qwen3_moe"),
        **_experts(config),
    )


def _experts(config: PretrainedConfig) -> dict[str, Any]:
    """Fields of ModelShape. Mixtral always renormalises."""
    if config.model_type not in EXPERTS:
        return {}
    return {
        "num_experts": config.num_local_experts,
        "experts_per_token": config.num_experts_per_tok,
        "renormalised": getattr(config, "norm_topk_prob", True),
    }


def _refuse_inexact(config: PretrainedConfig) -> None:
    rope_type = config.rope_parameters["rope_type"]
    faults = []
    if "sliding_attention" in (getattr(config, "layer_types", None) or ()):
        faults.append("layer_types has 'sliding_attention' (full attention only: use_sliding_window = false)")
    if config.model_type in EXPERTS:
        faults += _inexact_experts(config)
    if rope_type not in STATIC_ROPE:
        faults.append(f"rope_type is {rope_type!r} (there are {', '.join(STATIC_ROPE)})")
    if config.hidden_act != "silu":
        faults.append(f"hidden_act is {config.hidden_act!r} (there is silu)")
    if getattr(config, "quantization_config", None) is not None:
        faults.append("quantization_config is set (there are plain float weights)")
    if faults:
        raise ConfigError(f"the torch engine cannot run this {config.model_type} model exactly: " + "; ".join(faults))


def _inexact_experts(config: PretrainedConfig) -> Iterator[str]:
    if config.sliding_window is not None:
        yield f"sliding_window is {config.sliding_window} (full attention only)"
    dense = getattr(config, "mlp_only_layers", None)
    if dense or getattr(config, "decoder_sparse_step", 1) != 1:
        yield "some layers have no experts (mlp_only_layers, decoder_sparse_step; there are models where all have)"


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
    }
    if not shape.num_experts:
        linears |= {
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
    if shape.num_experts:
        shapes["mlp.gate.weight"] = (shape.num_experts, hidden)
        shapes["mlp.experts.gate_up_proj"] = (shape.num_experts, 2 * inner, hidden)
        shapes["mlp.experts.down_proj"] = (shape.num_experts, hidden, inner)
    for name, (rows, columns, bias) in linears.items():
        shapes[f"{name}.weight"] = (rows, columns)
        if bias:
            shapes[f"{name}.bias"] = (rows,)
    return shapes
