"""The table of model families: where each Megatron parameter is in a Hugging Face model, and what the layers are like.

To add one, write its rows and settings here (`FAMILIES`), and its name in `streamrl.config.known.MEGATRON_TYPES`: about
30 lines, or five where its layers are like another's. A model is refused whose weights the rows do not cover, or whose
configuration asks for what they leave out.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from transformers import PretrainedConfig

from streamrl.errors import ConfigError
from streamrl.learner.megatron.cuts import COLUMNS, FUSED_GATE_UP, GATE_UP, HEADS, VOCABULARY, WHOLE, Cut


@dataclass(frozen=True, slots=True)
class Row:
    """One Megatron parameter. param: its name in a layer of the local specification. tensors: the Hugging Face names in
    a layer that it is made of. of_experts: each expert has one (`{expert}` in the name), which is the same entry of a
    Hugging Face tensor with all of them."""

    param: str
    tensors: tuple[str, ...]
    cut: Cut
    of_experts: bool = False


def _nothing(config: PretrainedConfig) -> dict[str, Any]:
    return {}


@dataclass(frozen=True, slots=True)
class Family:
    """layer: of each layer. settings: of megatron-core's TransformerConfig, by the model's configuration. required:
    values of the configuration without which the layers are of another kind; an absent key is fine."""

    layer: tuple[Row, ...]
    settings: Callable[[PretrainedConfig], dict[str, Any]] = _nothing
    required: Mapping[str, Any] = field(default_factory=dict)


EMBEDDING = Row("embedding.word_embeddings.weight", ("model.embed_tokens.weight",), VOCABULARY)
FINAL_NORM = Row("decoder.final_layernorm.weight", ("model.norm.weight",), WHOLE)
OUTPUT = Row("output_layer.weight", ("lm_head.weight",), VOCABULARY)
TIED_OUTPUT = Row("output_layer.weight", EMBEDDING.tensors, VOCABULARY)
"""Of a last stage that is not the first: the embedding again."""
VALUE = Row("output_layer.weight", ("score.weight",), WHOLE)
"""Of a critic, in the place of an output layer."""

_QKV = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
ATTENTION = (
    Row("input_layernorm.weight", ("input_layernorm.weight",), WHOLE),
    Row("self_attention.linear_qkv.weight", tuple(f"{name}.weight" for name in _QKV), HEADS),
    Row("self_attention.linear_proj.weight", ("self_attn.o_proj.weight",), COLUMNS),
    Row("pre_mlp_layernorm.weight", ("post_attention_layernorm.weight",), WHOLE),
)
QKV_BIAS = (Row("self_attention.linear_qkv.bias", tuple(f"{name}.bias" for name in _QKV), HEADS),)
QK_NORM = (
    Row("self_attention.q_layernorm.weight", ("self_attn.q_norm.weight",), WHOLE),
    Row("self_attention.k_layernorm.weight", ("self_attn.k_norm.weight",), WHOLE),
)
MLP = (
    Row("mlp.linear_fc1.weight", ("mlp.gate_proj.weight", "mlp.up_proj.weight"), GATE_UP),
    Row("mlp.linear_fc2.weight", ("mlp.down_proj.weight",), COLUMNS),
)
EXPERTS = (
    Row("mlp.router.weight", ("mlp.gate.weight",), WHOLE),
    Row("mlp.experts.local_experts.{expert}.linear_fc1.weight", ("mlp.experts.gate_up_proj",), FUSED_GATE_UP, True),
    Row("mlp.experts.local_experts.{expert}.linear_fc2.weight", ("mlp.experts.down_proj",), COLUMNS, True),
)

_PLAIN = {"hidden_act": "silu", "attention_bias": False, "mlp_bias": False}


def experts(config: PretrainedConfig, inner_size: int, renormalised: bool) -> dict[str, Any]:
    """Settings of layers whose router takes the softmax over all experts and gives each token the best few.
    renormalised: whether their weights add up to 1."""
    return {
        "num_moe_experts": config.num_local_experts,
        "moe_router_topk": config.num_experts_per_tok,
        "moe_ffn_hidden_size": inner_size,
        # A softmax over the chosen ones alone is the one over all of them, renormalised.
        "moe_router_pre_softmax": not renormalised,
    }


FAMILIES: dict[str, Family] = {
    "llama": Family(ATTENTION + MLP, required=_PLAIN),
    "qwen2": Family(ATTENTION + QKV_BIAS + MLP, lambda config: {"add_qkv_bias": True}, {"hidden_act": "silu"}),
    "qwen3": Family(ATTENTION + QK_NORM + MLP, lambda config: {"qk_layernorm": True}, _PLAIN),
    "qwen3_moe": Family(
        ATTENTION + QK_NORM + EXPERTS,
        lambda config: {
            "qk_layernorm": True,
            **experts(config, config.moe_intermediate_size, config.norm_topk_prob),
        },
        {**_PLAIN, "decoder_sparse_step": 1, "mlp_only_layers": []},
    ),
    "mixtral": Family(
        ATTENTION + EXPERTS,
        lambda config: experts(config, config.intermediate_size, True),
        {**_PLAIN, "sliding_window": None},
    ),
}
"""By `model_type`. `streamrl.config.known.MEGATRON_TYPES` has the same names."""


def family_of(config: PretrainedConfig, families: Mapping[str, Family] = FAMILIES) -> Family:
    """Raise ConfigError for a model that the table has no place for, with what would be needed."""
    family = families.get(config.model_type)
    if family is None:
        raise ConfigError(
            f'learner.backend = "megatron" has no mapping for models of type {config.model_type!r}, only for '
            f"{', '.join(sorted(families))}; add its rows to streamrl/learner/megatron/families.py, or set "
            'learner.backend = "fsdp"'
        )
    found = {key: getattr(config, key, value) for key, value in family.required.items()}
    wrong = [f"{key} = {found[key]!r}, not {value!r}" for key, value in family.required.items() if found[key] != value]
    kinds = set(getattr(config, "layer_types", None) or ()) - {"full_attention"}
    wrong += [f"layers with {kind!r}" for kind in sorted(kinds)]
    if wrong:
        raise ConfigError(
            f'learner.backend = "megatron" does not compute this model of type {config.model_type!r} as it asks to be: '
            f'it has {"; ".join(wrong)}; set learner.backend = "fsdp"'
        )
    return family
