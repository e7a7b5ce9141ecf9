"""Phi-3 as a family that a user adds: its rows, and how its two fused tensors are cut. About 30 lines."""

from collections.abc import Sequence

import torch

from streamrl.learner.megatron.cuts import COLUMNS, FUSED_GATE_UP, HEADS, WHOLE, Sizes
from streamrl.learner.megatron.families import Family, Row


class FusedHeads:
    """All query heads, then all keys, then all values, in one tensor."""

    def part(self, wholes: Sequence[torch.Tensor], sizes: Sizes, rank: int, ranks: int) -> torch.Tensor:
        head = len(wholes[0]) // (sizes.groups * (sizes.queries + 2))
        lengths = [sizes.groups * sizes.queries * head, sizes.groups * head, sizes.groups * head]
        return HEADS.part(wholes[0].split(lengths), sizes, rank, ranks)

    def merge(self, parts: Sequence[torch.Tensor], sizes: Sizes) -> list[torch.Tensor]:
        return [torch.cat(HEADS.merge(parts, sizes))]


PHI3 = Family(
    (
        Row("input_layernorm.weight", ("input_layernorm.weight",), WHOLE),
        Row("self_attention.linear_qkv.weight", ("self_attn.qkv_proj.weight",), FusedHeads()),
        Row("self_attention.linear_proj.weight", ("self_attn.o_proj.weight",), COLUMNS),
        Row("pre_mlp_layernorm.weight", ("post_attention_layernorm.weight",), WHOLE),
        Row("mlp.linear_fc1.weight", ("mlp.gate_up_proj.weight",), FUSED_GATE_UP),
        Row("mlp.linear_fc2.weight", ("mlp.down_proj.weight",), COLUMNS),
    ),
    required={"hidden_act": "silu", "sliding_window": None},
)
