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
from streamrl.learner.segments import Run, SegmentLayout
from streamrl.learner.sequence_parallel import Stretch
from streamrl.learner.varlen import Kernel, Lengths, capability_of, installed_kernels, kernel, kernel_for

NAME = "streamrl_packed"


def attach(model: PreTrainedModel) -> None:
    """Make `model` attend by `packed_attention`. Raises ConfigError for an attention that it cannot
    express."""
    text = model.config.get_text_config()
    for key in ("attn_logit_softcapping", "sliding_window"):
        if getattr(text, key, None) is not None and getattr(text, f"use_{key}", True):
            raise ConfigError(
                f"the learner cannot pack this model: {key} = {getattr(text, key)} in its config.json; "
                "use a model with full causal attention (Qwen2, Qwen3, Llama)"
            )
    AttentionInterface.register(NAME, packed_attention)
    AttentionMaskInterface.register(NAME, _no_mask)
    model.set_attn_implementation(NAME)


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
    **_kwargs: object,
) -> tuple[torch.Tensor, None]:
    """Causal attention inside each segment and over its prefix. No dropout, which would need the same mask
    twice. Never compiled: each pack has a layout of its own, and would be compiled anew.

    query: [1, heads, T, head_dim]; key, value: [1, kv_heads, T, head_dim]. Returns [1, T, heads, head_dim]. stretch:
    what this rank has of a pack that is spread over several; T are its tokens then. Raises ValueError when called
    without `segments`, or with a mask.
    """
    if segments is None or attention_mask is not None:
        raise ValueError("packed attention needs `segments` and no attention_mask; call the model by PolicyModel")
    parts = tuple(x[0].transpose(0, 1) for x in (query, key, value))
    if stretch is None:
        return _attend_all(*parts, segments, scaling)[None], None
    return stretch.to_tokens(_attend_all(*stretch.to_heads(*parts), segments, scaling))[None], None


def _attend_all(
    query_THD: torch.Tensor,
    key_THD: torch.Tensor,
    value_THD: torch.Tensor,
    segments: SegmentLayout,
    scaling: float | None,
) -> torch.Tensor:
    """[T, heads, head_dim], the outputs of all tokens."""
    name = kernel_for(capability_of(query_THD.device), query_THD.shape[-1], query_THD.dtype, installed_kernels)
    if name != "segments":
        return attend_at_once(kernel(name), query_THD, key_THD, value_THD, segments, scaling)
    return torch.cat([_attend(run, query_THD, key_THD, value_THD, segments, scaling) for run in segments.runs])


def _attend(
    run: Run,
    query_THD: torch.Tensor,
    key_THD: torch.Tensor,
    value_THD: torch.Tensor,
    segments: SegmentLayout,
    scaling: float | None,
) -> torch.Tensor:
    """[count * q_len, heads, head_dim], the outputs of one run."""
    tokens = run.count * run.q_len
    alone = run.q_len == run.k_len
    if alone:
        keys, values = (x.narrow(0, run.q_start, tokens) for x in (key_THD, value_THD))
    else:
        index = segments.kv_index.narrow(0, run.kv_start, run.count * run.k_len)
        keys, values = (x.index_select(0, index) for x in (key_THD, value_THD))
    queries = query_THD.narrow(0, run.q_start, tokens)
    output = F.scaled_dot_product_attention(
        _by_segment(queries, run.count),
        _by_segment(keys, run.count),
        _by_segment(values, run.count),
        attn_mask=None if alone or run.q_len == 1 else _bottom_right(run, queries.device),
        is_causal=alone and run.q_len > 1,
        scale=scaling,
        enable_gqa=query_THD.shape[1] != key_THD.shape[1],
    )
    return output.transpose(1, 2).reshape(tokens, *query_THD.shape[1:])


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
    if any(run.q_len != run.k_len for run in segments.runs):
        key_THD, value_THD = (x.index_select(0, segments.kv_index) for x in (key_THD, value_THD))
    lengths = Lengths(segments.cu_q, segments.cu_k, segments.max_q, segments.max_k)
    return attend(query_THD, key_THD, value_THD, lengths, scaling)
