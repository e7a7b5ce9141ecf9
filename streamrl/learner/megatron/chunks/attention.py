"""What megatron-core's layers compute attention and norms with here: rotary embedding by the pack's positions, and
attention over its segments, as the FSDP backend has it.

So packs, with prompts that rows share, mean the same to both backends, on a CPU and by the kernels that a GPU has. The
layers hand a pack's layout on as `packed_seq_params`.
"""

from dataclasses import dataclass

import torch
from megatron.core.packed_seq_params import PackedSeqParams
from megatron.core.transformer import TransformerConfig
from torch import nn

from streamrl.learner.attention.packed import attend_pack
from streamrl.learner.batch.attention_layout import SegmentLayout
from streamrl.learner.layers.layer_ops import norm, rotate
from streamrl.learner.megatron.chunks.routers import PackRouting
from streamrl.learner.parallel.sequence_parallel import Stretch


@dataclass
class PackLayout(PackedSeqParams):
    """A pack on its way through the layers. layout: which tokens attend to which. cos, sin: [T, head_dim]. routing: of
    layers with experts. stretch: what this rank has of a pack that is spread over several; T are its tokens then."""

    layout: SegmentLayout | None = None
    cos: torch.Tensor | None = None
    sin: torch.Tensor | None = None
    routing: PackRouting | None = None
    stretch: Stretch | None = None


class PackedAttention(nn.Module):
    """In the place of megatron-core's core attention, over the heads of this rank."""

    def __init__(self, config: TransformerConfig, *, softmax_scale: float | None = None, **_settings: object) -> None:
        super().__init__()
        self.scale = softmax_scale

    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None,
        packed_seq_params: PackLayout | None = None,
        **_settings: object,
    ) -> torch.Tensor:
        """query: [T, 1, heads, head_dim]; key, value: [T, 1, groups, head_dim]. Returns [T, 1, heads x head_dim]."""
        pack = packed_seq_params
        if pack is None or attention_mask is not None:
            raise ValueError("packed attention needs a PackLayout and no attention_mask")
        query_THD, key_THD = (rotate(x[:, 0], None, pack.cos, pack.sin, 0.0) for x in (query, key))
        found_THD = attend_pack(query_THD, key_THD, value[:, 0], pack.layout, self.scale, pack.stretch)
        return found_THD.flatten(1)[:, None]


class RmsNorm(nn.Module):
    """With the roundings of transformers' norms. Over tokens that are spread over the tensor ranks its weight's
    gradient is summed over them."""

    def __init__(self, config: TransformerConfig, hidden_size: int, eps: float = 1e-5, **_settings: object) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(hidden_size, dtype=config.params_dtype))
        self.weight.sequence_parallel = config.sequence_parallel

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return norm(x, self.weight, self.eps)
