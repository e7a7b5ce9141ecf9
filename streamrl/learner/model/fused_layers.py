"""Decoder layers whose forward is ours: as few passes over memory as their operations allow.

Guarantees: the layer's modules, their parameters and names stay, adapters in place of linear layers among them; what it
computes is what transformers' own forward does, up to rounding. Layers of another kind than those of FUSED keep theirs.
"""

from functools import partial
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from streamrl.config.schema.learner import ExecutionConfig
from streamrl.learner.attention.forms import Form
from streamrl.learner.attention.packed import attend_pack
from streamrl.learner.layers.layer_ops import LayerOps, triton_ops
from streamrl.learner.layers.shared_input import apply_all

FUSED = ("Qwen2DecoderLayer", "Qwen3DecoderLayer", "LlamaDecoderLayer")
"""Layers with a norm before attention and MLP, full rotary embedding, and a gate of silu."""


def ops_for(execution: ExecutionConfig, device: torch.device) -> LayerOps | None:
    """What layers are fused by; None where they are left as they are. Compiled layers have kernels of their own."""
    if execution.kernels == "torch" or execution.compile or device.type != "cuda":
        return None
    return triton_ops()


def fuse(model: PreTrainedModel, ops: LayerOps) -> None:
    """Give all layers of the decoder, and its last norm, a forward of `ops`; a model of other layers stays as it is."""
    decoder, text = model.base_model, model.config.get_text_config()
    if any(type(layer).__name__ not in FUSED for layer in decoder.layers) or text.hidden_act != "silu":
        return
    for layer in decoder.layers:
        layer.forward = partial(_layer, layer, ops)
    decoder.norm.forward = partial(_last_norm, decoder.norm, ops)


def _layer(
    layer: nn.Module,
    ops: LayerOps,
    hidden_states: torch.Tensor,
    *,
    position_embeddings: tuple[torch.Tensor, torch.Tensor],
    **settings: Any,
) -> torch.Tensor:
    """[1, T, hidden], as transformers' layer takes and gives. settings: what is not for the attention has no part."""
    before, behind = layer.input_layernorm, layer.post_attention_layernorm
    normed = ops.norm(hidden_states, before.weight, before.variance_epsilon)
    attended = _attention(layer.self_attn, ops, normed, position_embeddings, settings)
    hidden_states, normed = ops.add_norm(attended, hidden_states, behind.weight, behind.variance_epsilon)
    mlp = layer.mlp
    return hidden_states + mlp.down_proj(ops.gate(*apply_all((mlp.gate_proj, mlp.up_proj), normed)))


def _attention(
    attention: nn.Module,
    ops: LayerOps,
    normed: torch.Tensor,
    position_embeddings: tuple[torch.Tensor, torch.Tensor],
    settings: dict[str, Any],
) -> torch.Tensor:
    """[1, T, hidden]."""
    cos_TD, sin_TD = (angles[0] for angles in position_embeddings)
    query, key, value = (
        projected[0].unflatten(-1, (-1, attention.head_dim))
        for projected in apply_all((attention.q_proj, attention.k_proj, attention.v_proj), normed)
    )
    query = _rotated(ops, getattr(attention, "q_norm", None), query, cos_TD, sin_TD)
    key = _rotated(ops, getattr(attention, "k_norm", None), key, cos_TD, sin_TD)
    layout, stretch, kept = (settings.get(name) for name in ("segments", "stretch", "kept"))
    form = Form(getattr(attention, "sliding_window", None))
    attended_THD = attend_pack(query, key, value, layout, attention.scaling, stretch, kept, form)
    return attention.o_proj(attended_THD.flatten(1)[None])


def _rotated(
    ops: LayerOps, norm: nn.Module | None, x_THD: torch.Tensor, cos_TD: torch.Tensor, sin_TD: torch.Tensor
) -> torch.Tensor:
    if norm is None:
        return ops.rotate(x_THD, None, cos_TD, sin_TD, 0.0)
    return ops.rotate(x_THD, norm.weight, cos_TD, sin_TD, norm.variance_epsilon)


def _last_norm(norm: nn.Module, ops: LayerOps, hidden_states: torch.Tensor) -> torch.Tensor:
    return ops.norm(hidden_states, norm.weight, norm.variance_epsilon)
