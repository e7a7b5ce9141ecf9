"""A chunk of a critic.

Guarantees: a pack in, and out of the last chunk the values of its targets, as `ValueModel` gives them.
"""

from typing import Any

import torch
from megatron.core.tensor_parallel.mappings import gather_from_sequence_parallel_region
from megatron.core.transformer import TransformerConfig
from torch import nn
from transformers import PretrainedConfig

from streamrl.learner.batch.packing import PackedBatch
from streamrl.learner.megatron.chunks.chunk import Chunk
from streamrl.learner.megatron.ranks import MegatronRanks


class ValueHead(nn.Module):
    """The whole head on each tensor rank. Each has the hidden states of all targets, so each has the whole gradient; of
    ranks that have other tokens of a pack, that of its own."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1, config.hidden_size, dtype=config.params_dtype))

    def forward(self, hidden_KH: torch.Tensor) -> torch.Tensor:
        """float32 [K], also of hidden states in bfloat16: there values of about 1 would come in steps of 1/128."""
        return torch.mv(hidden_KH.float(), self.weight[0].float())


class ValueChunk(Chunk):
    """See the module."""

    def __init__(
        self, config: TransformerConfig, model: PretrainedConfig, ranks: MegatronRanks, number: int, **own: Any
    ) -> None:
        """own: `rotary`, `padding` and `adapted`, as `Chunk` has them."""
        super().__init__(config, model, ranks, number, tied=False, **own)
        if self.post_process:
            self.output_layer = ValueHead(config)

    def forward(self, pack: PackedBatch, temperature: float = 1.0) -> torch.Tensor:
        """Of the last chunk float32 [K], of another one hidden states, [T, 1, H]. temperature: has no part."""
        stretch = self.stretch_of(pack)
        hidden = self.hidden(pack, stretch)
        if not self.post_process:
            return hidden
        if self.config.sequence_parallel:
            hidden = gather_from_sequence_parallel_region(hidden, tensor_parallel_output_grad=False)
        predictors = pack.predictors if stretch is None else stretch.predictors
        values: torch.Tensor = self.output_layer(hidden[predictors, 0])
        return values if stretch is None else stretch.of_all_targets(values)
