"""A chunk of a policy.

Guarantees: a pack in, and out of the last chunk log-probs and entropy of its targets, as `PolicyModel` gives them.
"""

from typing import Any

import torch
from megatron.core.tensor_parallel.mappings import (
    copy_to_tensor_model_parallel_region,
    gather_from_sequence_parallel_region,
)
from megatron.core.transformer import TransformerConfig
from transformers import PretrainedConfig

from streamrl.learner.batch.packing import PackedBatch
from streamrl.learner.megatron.chunks.chunk import Chunk
from streamrl.learner.megatron.chunks.vocabulary import OwnRows, spread_logprobs
from streamrl.learner.megatron.ranks import MegatronRanks


class PolicyChunk(Chunk):
    """See the module."""

    def __init__(
        self, config: TransformerConfig, model: PretrainedConfig, ranks: MegatronRanks, number: int, **own: Any
    ) -> None:
        """own: `rotary`, `padding` and `adapted`, as `Chunk` has them."""
        super().__init__(config, model, ranks, number, tied=model.tie_word_embeddings, **own)
        layout = ranks.layout
        each = layout.padded_vocabulary(model.vocab_size) // layout.tensor
        self._rows = OwnRows(
            first=ranks.tensor_rank * each,
            count=layout.own_vocabulary(model.vocab_size, ranks.tensor_rank),
            group=ranks.gatherers.tensor if layout.tensor > 1 else None,
        )

    def forward(
        self, pack: PackedBatch, temperature: float, entropy_gradient: bool = False
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        """Of the last chunk (logprobs_K, entropy_K); of another one hidden states, [T, 1, H]."""
        stretch = self.stretch_of(pack)
        hidden = self.hidden(pack, stretch)
        if not self.post_process:
            return hidden
        if stretch is None:
            return self._logprobs(hidden, pack.predictors, pack.targets, temperature, entropy_gradient)
        found = self._logprobs(hidden, stretch.predictors, stretch.targets, temperature, entropy_gradient)
        return stretch.of_all_targets(found[0]), stretch.of_all_targets(found[1])

    def _logprobs(
        self,
        hidden: torch.Tensor,
        predictors: torch.Tensor,
        targets: torch.Tensor,
        temperature: float,
        entropy_gradient: bool,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        tied = self.share_embeddings_and_output_weights
        weight = self.shared_embedding_or_output_weight() if tied else self.output_layer.weight
        # Behind either, each rank has the gradient of its own rows: summed over the ranks on the way back.
        if self.config.sequence_parallel:
            hidden_KH = gather_from_sequence_parallel_region(hidden)[predictors, 0]
        else:
            hidden_KH = copy_to_tensor_model_parallel_region(hidden[predictors, 0])
        return spread_logprobs(hidden_KH, weight, targets, temperature, self._rows, entropy_gradient)
