"""Attention over packs, registered with transformers under one name.

transformers hands keyword arguments of the model's call on to the attention function, so the pack's layout
travels as `segments=`. Guarantees: tokens of different segments never see each other, except the shared
prompt; no mask of T x T is ever made. The model must be called with `use_cache=False` and no
`attention_mask` (transformers 5 is silently wrong on packed rows otherwise): `policy.PolicyModel` does.

On CPU each run of equal segments is one SDPA call. On CUDA, for 16-bit tensors, all segments are one call
of the kernel that `varlen` finds; where it finds none, the GPU takes the CPU's way.
"""

import torch
import torch.nn.functional as F
from torch import nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel

from streamrl.errors import ConfigError
from streamrl.learner.attention.forms import Form, attend_formed
from streamrl.learner.attention.row_mixers import mix_by_segment
from streamrl.learner.attention.torch_varlen import KeptAttention
from streamrl.learner.attention.varlen import Kernel, Lengths, capability_of, installed_kernels, kernel, kernel_for
from streamrl.learner.batch.attention_layout import Run, SegmentLayout
from streamrl.learner.parallel.sequence_parallel import Stretch

NAME = "streamrl_packed"
PLAIN = Form()


def attach(model: PreTrainedModel) -> None:
    """Make `model` attend by `packed_attention`. Raises ConfigError for one whose attention cannot be replaced."""
    AttentionInterface.register(NAME, packed_attention)
    AttentionMaskInterface.register(NAME, _no_mask)
    try:
        model.set_attn_implementation(NAME)
    except ValueError as error:
        kind = model.config.model_type
        raise ConfigError(f"the learner cannot pack models of type {kind!r}: {error}; use another model") from error
    mix_by_segment(model, model.base_model)


def _no_mask(*_args: object, **_kwargs: object) -> None:
    return None


@torch.compiler.disable
def packed_attention(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    segments: SegmentLayout | None = None,
    stretch: Stretch | None = None,
    kept: KeptAttention | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    **_kwargs: object,
) -> tuple[torch.Tensor, None]:
    """Causal attention inside each segment and over its prefix. No dropout, which would need the same mask
    twice. Never compiled: each pack has a layout of its own, and would be compiled anew.

    query: [1, heads, T, head_dim]; key, value: [1, kv_heads, T, head_dim]. Returns [1, T, heads, head_dim]. stretch:
    what this rank has of a pack that is spread over several; T are its tokens then. kept: what the layer has of it
    already when it is computed again. sliding_window, softcap, s_aux: as a layer asks for them (`forms.Form`). Raises
    ValueError when called without `segments`, or with a mask.
    """
    if attention_mask is not None:
        raise ValueError("packed attention needs `segments` and no attention_mask; call the model by PolicyModel")
    parts = (x[0].transpose(0, 1) for x in (query, key, value))
    form = Form(sliding_window, softcap, s_aux)
    return attend_pack(*parts, segments, scaling, stretch, kept, form)[None], None


def attend_pack(
    query_THD: torch.Tensor,
    key_THD: torch.Tensor,
    value_THD: torch.Tensor,
    segments: SegmentLayout | None,
    scaling: float | None,
    stretch: Stretch | None = None,
    kept: KeptAttention | None = None,
    form: Form = PLAIN,
) -> torch.Tensor:
    """[T, heads, head_dim], as `packed_attention`. query_THD: [T, heads, head_dim]; key_THD, value_THD: [T, kv_heads,
    head_dim]."""
    if segments is None:
        raise ValueError("packed attention needs `segments` and no attention_mask; call the model by PolicyModel")
    if stretch is None:
        return _attend_all(query_THD, key_THD, value_THD, segments, scaling, kept, form)
    if form.sinks is not None:
        raise ConfigError(
            "learner.sequence_parallel: a model with attention sinks cannot be spread by its heads; set 1"
        )
    of_heads = stretch.to_heads(query_THD, key_THD, value_THD)
    return stretch.to_tokens(_attend_all(*of_heads, segments, scaling, kept, form))


def _attend_all(
    query_THD: torch.Tensor,
    key_THD: torch.Tensor,
    value_THD: torch.Tensor,
    segments: SegmentLayout,
    scaling: float | None,
    kept: KeptAttention | None,
    form: Form,
) -> torch.Tensor:
    """[T, heads, head_dim], the outputs of all tokens."""
    if form.binds(segments.max_k):
        runs = [_attend(run, query_THD, key_THD, value_THD, segments, scaling, form) for run in segments.runs]
        return torch.cat(runs)
    name = kernel_for(capability_of(query_THD.device), query_THD.shape[-1], query_THD.dtype, installed_kernels)
    if name != "segments" and value_THD.shape[-1] == query_THD.shape[-1]:
        return attend_at_once(kernel(name, kept), query_THD, key_THD, value_THD, segments, scaling)
    return torch.cat([_attend(run, query_THD, key_THD, value_THD, segments, scaling, PLAIN) for run in segments.runs])


def _attend(
    run: Run,
    query_THD: torch.Tensor,
    key_THD: torch.Tensor,
    value_THD: torch.Tensor,
    segments: SegmentLayout,
    scaling: float | None,
    form: Form,
) -> torch.Tensor:
    """[count * q_len, heads, value_dim], the outputs of one run."""
    tokens = run.count * run.q_len
    alone = run.q_len == run.k_len
    if alone:
        keys, values = (x.narrow(0, run.q_start, tokens) for x in (key_THD, value_THD))
    else:
        index = segments.kv_index.narrow(0, run.kv_start, run.count * run.k_len)
        keys, values = (x.index_select(0, index) for x in (key_THD, value_THD))
    queries = query_THD.narrow(0, run.q_start, tokens)
    parts = [_by_segment(x, run.count) for x in (queries, keys, values)]
    if form.binds(run.k_len):
        scale = scaling if scaling is not None else query_THD.shape[-1] ** -0.5
        formed = attend_formed(*parts, scale, form)
        return formed.transpose(1, 2).reshape(tokens, query_THD.shape[1], -1)
    output = F.scaled_dot_product_attention(
        *parts,
        attn_mask=None if alone or run.q_len == 1 else _bottom_right(run, queries.device),
        is_causal=alone and run.q_len > 1,
        scale=scaling,
        enable_gqa=query_THD.shape[1] != key_THD.shape[1],
    )
    return output.transpose(1, 2).reshape(tokens, query_THD.shape[1], -1)


def _by_segment(x_THD: torch.Tensor, count: int) -> torch.Tensor:
    """[count, heads, length, head_dim], a view."""
    return x_THD.unflatten(0, (count, -1)).transpose(1, 2)


def _bottom_right(run: Run, device: torch.device) -> torch.Tensor:
    """bool [q_len, k_len]: query i sees the prefix and the segment's own tokens up to i."""
    ones = torch.ones(run.q_len, run.k_len, dtype=torch.bool, device=device)
    return ones.tril(run.k_len - run.q_len)


def attend_at_once(
    attend: Kernel,
    query_THD: torch.Tensor,
    key_THD: torch.Tensor,
    value_THD: torch.Tensor,
    segments: SegmentLayout,
    scaling: float | None,
) -> torch.Tensor:
    """[T, heads, head_dim] by one call for all segments."""
    if segments.shares_keys:
        key_THD, value_THD = (x.index_select(0, segments.kv_index) for x in (key_THD, value_THD))
    lengths = Lengths(segments.cu_q, segments.cu_k, segments.max_q, segments.max_k)
    return attend(query_THD, key_THD, value_THD, lengths, scaling)
