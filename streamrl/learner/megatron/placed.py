"""A Hugging Face model placed on the ranks of a layout, as a policy or a critic: this rank's chunks, and their weights.

Knows nothing of optimizers.
"""

from copy import deepcopy
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads
from megatron.core.transformer import TransformerConfig
from torch import nn
from transformers import PreTrainedModel

from streamrl.config.schema.learner import MegatronConfig
from streamrl.errors import ConfigError
from streamrl.learner.megatron.chunks.chunk import Chunk
from streamrl.learner.megatron.chunks.policy import PolicyChunk
from streamrl.learner.megatron.chunks.value import ValueChunk
from streamrl.learner.megatron.cuts import Sizes
from streamrl.learner.megatron.families import OUTPUT, VALUE, Family, family_of
from streamrl.learner.megatron.plan import make_plan
from streamrl.learner.megatron.ranks import MegatronRanks
from streamrl.learner.megatron.settings import gradient_settings, layer_settings
from streamrl.learner.megatron.weights import ModelWeights


class Placed(NamedTuple):
    """settings: what megatron-core is told of the layers. chunks: of this rank, on its device. weights: bring those of
    all ranks together."""

    settings: TransformerConfig
    chunks: list[Chunk]
    weights: ModelWeights


def place(
    model: PreTrainedModel,
    families: dict[str, Family],
    megatron: MegatronConfig,
    dtype: torch.dtype,
    ranks: MegatronRanks,
    *,
    of_values: bool = False,
    adapted: bool = False,
) -> Placed:
    """Collective. model: on the CPU, the same weights on every rank; it is read, and no part of it is kept. dtype: of
    the chunks. of_values: whether it is a critic, whose head begins at zero; its tensors are called as those of
    `ShardedCritic`. adapted: whether its layers are to get adapters. Raises ConfigError for a model that has no
    mapping, or that megatron-core refuses."""
    family = family_of(model.config, families)
    settings = _configured(layer_settings(model.config, family, megatron, dtype, ranks.group.device))
    chunks, weights = _chunks(model, family, settings, ranks, of_values, adapted)
    for chunk in chunks:
        chunk.to(ranks.group.device)
    return Placed(settings, chunks, weights)


def with_gradients(placed: Placed, megatron: MegatronConfig) -> list[nn.Module]:
    """Collective. The chunks, each with buffers for its gradients."""
    gradients = DistributedDataParallelConfig(**gradient_settings(megatron))
    return [DistributedDataParallel(placed.settings, gradients, chunk) for chunk in placed.chunks]


def _chunks(
    model: PreTrainedModel,
    family: Family,
    settings: TransformerConfig,
    ranks: MegatronRanks,
    of_values: bool,
    adapted: bool,
) -> tuple[list[Chunk], ModelWeights]:
    """This rank's model chunks with their weights, and what brings those of all ranks together."""
    config, names = model.config, dict(model.named_parameters())
    if of_values:
        names = {name: param for name, param in names.items() if name not in OUTPUT.tensors}
        names[VALUE.tensors[0]] = nn.Parameter(torch.zeros(1, settings.hidden_size, dtype=settings.params_dtype))
    experts = settings.num_moe_experts or 0
    plan = make_plan(family, list(names), ranks.layout, num_layers=settings.num_layers, num_experts=experts)
    if of_values:
        plan = tuple(replace(one, tensors=tuple(map(_in_decoder, one.tensors))) for one in plan)
        names = {_in_decoder(name): param for name, param in names.items()}
    # As transformers has them: positions, and a token whose embedding learns nothing.
    own = {
        "rotary": deepcopy(model.base_model.rotary_emb).to(ranks.group.device),
        "padding": model.get_input_embeddings().padding_idx,
        "adapted": adapted,
    }
    kind = ValueChunk if of_values else PolicyChunk
    chunks: list[Chunk] = [kind(settings, config, ranks, number, **own) for number in range(ranks.layout.virtual)]
    groups = config.num_key_value_heads
    sizes = Sizes(groups, config.num_attention_heads // groups, config.vocab_size)
    shapes = {name: param.shape for name, param in names.items()}
    weights = ModelWeights(plan, shapes, sizes, chunks, ranks)
    weights.load(lambda name: names[name].detach())
    weights.mark()
    return chunks, weights


def _in_decoder(name: str) -> str:
    """A tensor's name in a critic, whose decoder is a model of its own."""
    return name.removeprefix("model.")


def _configured(settings: dict[str, Any]) -> TransformerConfig:
    """Raises ConfigError for what megatron-core refuses."""
    try:
        return TransformerConfig(**settings, finalize_model_grads_func=_finalize)
    except (ValueError, AssertionError) as error:
        raise ConfigError(f"megatron-core refuses this model or layout: {error}") from error


def _finalize(chunks: list[nn.Module], num_tokens: torch.Tensor | None = None, **settings: Any) -> None:
    """Sum gradients over the ranks, and divide them by nothing: losses hold the counts of the batch."""
    finalize_model_grads(chunks, None, **settings)
