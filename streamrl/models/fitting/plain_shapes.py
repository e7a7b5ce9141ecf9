"""Whether a folder has just the weights of a dense decoder whose form is known here: without torch, in milliseconds.

Guarantees that a yes is what transformers would say, too. A no says nothing: `weights_fit` looks closely.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from streamrl.config.estimates.weight_files import Shape, Unreadable, read_object, tensor_shapes
from streamrl.config.known import MODEL_TYPES

_SIZES: Final = (
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "vocab_size",
    "max_position_embeddings",
)
_HEAD: Final = "lm_head.weight"


def fits_plainly(folder: Path) -> bool:
    """Whether the names and shapes of all tensors in `folder` are those that its config.json wants."""
    try:
        config, found = read_object(folder / "config.json"), tensor_shapes(folder)
    except Unreadable:
        return False
    if not _is_plain(config):
        return False
    wanted = dict(_shapes(config))
    if config["tie_word_embeddings"] and _HEAD not in found:
        del wanted[_HEAD]
    return found == wanted


def _is_plain(config: Mapping[str, Any]) -> bool:
    """Whether all that the shapes follow from is said, and nothing that this file does not know."""
    rope, kinds = config.get("rope_parameters") or {}, config.get("layer_types")
    return (
        config.get("model_type") in MODEL_TYPES
        and all(type(config.get(key)) is int and config[key] > 0 for key in _SIZES)
        and type(config.get("tie_word_embeddings")) is bool
        and config["hidden_size"] % config["num_attention_heads"] == 0
        and config.get("hidden_act") == "silu"
        and (type(config.get("head_dim")) is int or config["model_type"] != "qwen3")
        and not any(config.get(key) for key in ("attention_bias", "mlp_bias", "rope_scaling", "quantization_config"))
        and isinstance(config.get("rms_norm_eps"), float)
        and (kinds is None or kinds == ["full_attention"] * config["num_hidden_layers"])
        and isinstance(rope, dict)
        and rope.get("rope_type", "default") == "default"
    )


def _shapes(config: Mapping[str, Any]) -> Iterator[tuple[str, Shape]]:
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    heads = config["num_attention_heads"]
    head = config.get("head_dim") or hidden // heads
    queries, keys = heads * head, config["num_key_value_heads"] * head
    yield "model.embed_tokens.weight", (config["vocab_size"], hidden)
    yield _HEAD, (config["vocab_size"], hidden)
    yield "model.norm.weight", (hidden,)
    for layer in range(config["num_hidden_layers"]):
        for name, shape in {
            "input_layernorm": (hidden,),
            "post_attention_layernorm": (hidden,),
            "self_attn.q_proj": (queries, hidden),
            "self_attn.k_proj": (keys, hidden),
            "self_attn.v_proj": (keys, hidden),
            "self_attn.o_proj": (hidden, queries),
            "mlp.gate_proj": (inner, hidden),
            "mlp.up_proj": (inner, hidden),
            "mlp.down_proj": (hidden, inner),
        }.items():
            yield f"model.layers.{layer}.{name}.weight", shape
        if config["model_type"] == "qwen2":
            for name, size in (("q", queries), ("k", keys), ("v", keys)):
                yield f"model.layers.{layer}.self_attn.{name}_proj.bias", (size,)
        if config["model_type"] == "qwen3":
            for name in ("q", "k"):
                yield f"model.layers.{layer}.self_attn.{name}_norm.weight", (head,)
