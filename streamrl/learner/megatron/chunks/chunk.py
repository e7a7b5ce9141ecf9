"""One chunk of a model's layers on megatron-core, with what is before the first. Heads are subclasses'.

Where tokens are spread over the tensor ranks, or over ranks that attend with a part of the heads, a pack has a multiple
of their number.
"""

from collections.abc import Callable

import torch
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import (
    get_gpt_layer_local_spec,
    get_gpt_layer_with_transformer_engine_spec,
)
from megatron.core.transformer import TransformerConfig
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules
from transformers import PretrainedConfig

from streamrl.learner.batch.packing import PackedBatch
from streamrl.learner.megatron.chunks.attention import PackedAttention, PackLayout, RmsNorm
from streamrl.learner.megatron.chunks.routers import ChunkRouters
from streamrl.learner.megatron.ranks import MegatronRanks
from streamrl.learner.parallel.sequence_parallel import Stretch

Rotary = Callable[[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]
"""A Hugging Face model's rotary embedding: (any tensor of the dtype and device, positions) to cos and sin."""


def layer_specs(
    config: TransformerConfig, count: int, device: torch.device, adapted: bool
) -> TransformerBlockSubmodules:
    """`count` layers: of Transformer Engine on a GPU, of megatron-core's own modules on a CPU. Attention over packs is
    streamrl's on both, and so are the norms on a CPU, which megatron-core has for whole sequences alone. adapted:
    whether each linear layer is to be given what it multiplies, so that adapters are given the same."""
    experts = {"num_experts": config.num_moe_experts, "moe_grouped_gemm": config.moe_grouped_gemm}
    if device.type == "cuda":
        from megatron.core.extensions.transformer_engine import TEColumnParallelLinear, TENorm

        spec = get_gpt_layer_with_transformer_engine_spec(qk_layernorm=config.qk_layernorm, **experts)
        layer, attention = spec.submodules, spec.submodules.self_attention.submodules
        attention.core_attention = PackedAttention
        if adapted:  # the norms are layers of their own, in the place of parts of the products behind them
            layer.input_layernorm = layer.pre_mlp_layernorm = TENorm
            attention.linear_qkv = TEColumnParallelLinear
            if config.num_moe_experts is None:
                layer.mlp.submodules.linear_fc1 = TEColumnParallelLinear
        return TransformerBlockSubmodules(layer_specs=[spec] * count, layer_norm=TENorm)
    spec = get_gpt_layer_local_spec(qk_layernorm=config.qk_layernorm, normalization="RMSNorm", **experts)
    layer, attention = spec.submodules, spec.submodules.self_attention.submodules
    layer.input_layernorm = layer.pre_mlp_layernorm = RmsNorm
    attention.core_attention = PackedAttention
    if config.qk_layernorm:
        attention.q_layernorm = attention.k_layernorm = RmsNorm
    return TransformerBlockSubmodules(layer_specs=[spec] * count, layer_norm=RmsNorm)


class Chunk(GPTModel):
    """See the module. `number` counts the chunks of this rank. padding: the token whose embedding learns nothing. tied:
    whether the output layer is the embedding. adapted: as `layer_specs` has it."""

    def __init__(
        self,
        config: TransformerConfig,
        model: PretrainedConfig,
        ranks: MegatronRanks,
        number: int,
        *,
        rotary: Rotary,
        padding: int | None,
        tied: bool,
        adapted: bool = False,
    ) -> None:
        layout, stage = ranks.layout, ranks.stage
        layers = layout.layers(config.num_layers, stage, number)
        super().__init__(
            config=config,
            transformer_layer_spec=layer_specs(config, len(layers), ranks.group.device, adapted),
            vocab_size=layout.padded_vocabulary(model.vocab_size),
            max_sequence_length=model.max_position_embeddings,
            pre_process=stage == 0 and number == 0,
            post_process=stage == layout.pipeline - 1 and number == layout.virtual - 1,
            share_embeddings_and_output_weights=tied,
            position_embedding_type="none",
            vp_stage=number if layout.virtual > 1 else None,
        )
        self._padding = padding
        self._tensor_rank = ranks.tensor_rank
        self._rotary = (rotary,)  # in a tuple, so that it is no module of this one
        self._sequence = ranks.sequence
        self.routers: ChunkRouters | None = None
        if config.num_moe_experts is not None:
            spread = config.tensor_model_parallel_size if config.sequence_parallel else 1
            rank = ranks.tensor_rank if config.sequence_parallel else 0
            if self._sequence is not None:
                rank, spread = self._sequence.rank * spread + rank, self._sequence.size * spread
            self.routers = ChunkRouters(list(self.decoder.layers), config.num_layers, rank=rank, ranks=spread)

    def stretch_of(self, pack: PackedBatch) -> Stretch | None:
        """What this rank has of a pack's tokens; None for all of them."""
        return None if self._sequence is None else self._sequence.stretch(pack)

    def hidden(self, pack: PackedBatch, stretch: Stretch | None) -> torch.Tensor:
        """[T, 1, H] behind this chunk's layers, or this rank's part of T."""
        tokens = slice(None) if stretch is None else stretch.tokens
        ids, position_ids = pack.ids[tokens], pack.position_ids[tokens]
        cos, sin = self._rotary[0](self._like(), position_ids[None])
        routing = None if self.routers is None else self.routers.begin(pack)
        layout = PackLayout(
            qkv_format="sbhd", layout=pack.layout, cos=cos[0], sin=sin[0], routing=routing, stretch=stretch
        )
        first = self._embedded(ids, position_ids) if self.pre_process else None
        if first is not None and torch.is_grad_enabled() and self.config.recompute_granularity == "full":
            first.requires_grad_()  # behind an embedding that is not trained layers would be computed again for nothing
        hidden: torch.Tensor = self.decoder(hidden_states=first, attention_mask=None, packed_seq_params=layout)
        return hidden

    def _embedded(self, ids: torch.Tensor, position_ids: torch.Tensor) -> torch.Tensor:
        """[T, 1, H], or the part of T of this one of the tensor ranks."""
        embedded = self.embedding(input_ids=ids[None], position_ids=position_ids[None])
        if self._padding is None:
            return embedded
        is_padding = ids == self._padding
        if self.config.sequence_parallel:
            is_padding = is_padding.chunk(self.config.tensor_model_parallel_size)[self._tensor_rank]
        return torch.where(is_padding[:, None, None], embedded.detach(), embedded)

    def _like(self) -> torch.Tensor:
        return torch.empty(0, dtype=self.config.params_dtype, device=next(self.parameters()).device)
