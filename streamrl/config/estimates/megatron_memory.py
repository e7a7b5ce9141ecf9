"""What each rank of a layout of megatron-core keeps in its GPU's memory. Pure arithmetic over a model's sizes.

It counts tensors: weights, gradients, float32 weights and moments of the optimizer, what the backward needs of packs
under way, and the log-probs of one piece of the vocabulary's. Of a model with adapters these alone have gradients and
moments. What an allocator cannot use is not counted;
`DEVICE_BYTES` is for that, and for what CUDA and NCCL take.

Activations are those that a layer's backward reads, counted as Korthikanti et al. 2022 do, for RMSNorm, a gated MLP and
attention that keeps no scores.
"""

from collections.abc import Iterator
from typing import NamedTuple

from streamrl.config.estimates.megatron import MegatronLayout
from streamrl.config.estimates.model_facts import ModelFacts
from streamrl.config.estimates.sizes import ADAPTER_BYTES, DTYPE_BYTES, adapter_parameters, averages
from streamrl.config.schema.run import Config

_FLOAT32 = 4
_MOMENTS = 2 * _FLOAT32
DEVICE_BYTES = 3 * 2**30  # CUDA's context, communicators of NCCL, workspaces, and what lies between tensors
_LOGITS_AT_ONCE = 2**22  # as `streamrl.learner.megatron.chunks.vocabulary` takes them
_LOGITS_COPIES = 4  # the logits, their softmax and the gradients of both


class RankMemory(NamedTuple):
    """Bytes of the rank of a stage that keeps most. parameters: elements of the policy here."""

    stage: int
    parameters: int
    weights: int
    gradients: int
    optimizer: int
    activations: int

    @property
    def total(self) -> int:
        return self.weights + self.gradients + self.optimizer + self.activations + DEVICE_BYTES


class _Parts(NamedTuple):
    """Elements of parameters. dense: all but the experts, which have data parallel ranks of their own."""

    dense: int
    experts: int


def rank_memory(config: Config, model: ModelFacts) -> list[RankMemory]:
    """Of each stage, for a layout that fits the model (`estimates.megatron.model_fits`)."""
    layout = MegatronLayout.of(config.learner.megatron, config.learner.num_workers)
    return [_of_stage(config, model, layout, stage) for stage in range(layout.pipeline)]


def _of_stage(config: Config, model: ModelFacts, layout: MegatronLayout, stage: int) -> RankMemory:
    megatron, size = config.learner.megatron, DTYPE_BYTES[config.model.dtype]
    parts = _parameters(model, layout, stage)
    count = parts.dense + parts.experts
    reduced = _FLOAT32 if megatron.precision == "float32" else size
    # A critic, or PRIME's model, is trained in the same layout, and counts as one of the policy's sizes.
    models = 2 if config.learner.algorithm.has_auxiliary_model else 1
    lora = config.learner.lora
    trained = models - (1 if lora.rank else 0)
    adapters = adapter_parameters(lora, model, layout.tensor) // layout.pipeline
    # Weights of the model are those of the optimizer where they are float32.
    kept = _MOMENTS + (0 if size == _FLOAT32 else 2 * _FLOAT32)
    dense_ranks, expert_ranks = (
        (layout.world_size // (layout.tensor * layout.pipeline), _expert_data_size(layout))
        if megatron.distributed_optimizer
        else (1, 1)
    )
    return RankMemory(
        stage=stage,
        parameters=count,
        weights=models * count * size + adapters * ADAPTER_BYTES + count * _reference_bytes(config),
        gradients=trained * count * reduced + adapters * ADAPTER_BYTES,
        optimizer=trained * kept * (-(-parts.dense // dense_ranks) + -(-parts.experts // expert_ranks))
        + _MOMENTS * -(-adapters // dense_ranks),
        activations=_activations(config, model, layout, stage),
    )


def _reference_bytes(config: Config) -> int:
    """Of a parameter of the reference policy, or of a teacher, which counts as one of the policy's sizes. A moving
    average is kept in float32 beside the weights of its forward."""
    if not config.learner.algorithm.has_reference:
        return 0
    return DTYPE_BYTES[config.model.dtype] + (_FLOAT32 if averages(config) else 0)


def _expert_data_size(layout: MegatronLayout) -> int:
    """Ranks that have the same experts, and other rows."""
    return layout.world_size // (layout.expert * layout.expert_tensor * layout.pipeline)


def _parameters(model: ModelFacts, layout: MegatronLayout, stage: int) -> _Parts:
    layers, hidden = model.num_layers // layout.pipeline, model.hidden_size
    attention = 2 * hidden * model.head_dim * (model.num_heads + model.num_kv_heads) // layout.tensor
    dense = attention + 2 * hidden + 2 * model.head_dim
    experts = 0
    if model.num_experts:
        dense += hidden * model.num_experts
        experts = model.num_experts * 3 * hidden * model.expert_size // (layout.expert * layout.expert_tensor)
    else:
        dense += 3 * hidden * model.intermediate_size // layout.tensor
    vocabulary = layout.padded_vocabulary(model.vocab_size) // layout.tensor * hidden
    ends = (stage == 0) + (stage == layout.pipeline - 1)
    if model.ties_embeddings and layout.pipeline == 1:
        ends = 1
    norm = hidden if stage == layout.pipeline - 1 else 0
    return _Parts(layers * dense + ends * vocabulary + norm, layers * experts)


def _activations(config: Config, model: ModelFacts, layout: MegatronLayout, stage: int) -> int:
    """Of the packs that a stage has done forwards of and no backward yet, and of the logits in its last one."""
    megatron, size = config.learner.megatron, DTYPE_BYTES[config.model.dtype]
    tokens, layers = -(-config.learner.micro_batch_tokens // layout.context), model.num_layers // layout.pipeline
    under_way = layout.pipeline - stage
    if layout.virtual > 1:
        # Interleaved: a stage is ahead by all chunks but one of each stage behind it, too.
        under_way += (layout.virtual - 1) * layout.pipeline // layout.virtual + 1
    spread = layout.tensor if megatron.sequence_parallel else 1
    between = size * model.hidden_size // spread
    whole = size * sum(_layer_elements(model, layout, spread))
    kept = between * layers * under_way + whole if megatron.recompute == "layers" else whole * layers * under_way
    logits = _LOGITS_COPIES * _FLOAT32 * _LOGITS_AT_ONCE if stage == layout.pipeline - 1 else 0
    return tokens * kept + logits


def _layer_elements(model: ModelFacts, layout: MegatronLayout, spread: int) -> Iterator[int]:
    """Elements that a layer's backward reads, for each token of a pack."""
    hidden = model.hidden_size
    yield 4 * hidden // spread  # both norms: what comes in, what goes out
    heads = 2 * model.num_heads + 2 * model.num_kv_heads
    yield heads * model.head_dim // layout.tensor  # queries, keys, values, and what attention gives
    if model.num_experts:
        # What the experts of a token get, make of it, and give, where tokens are shared out evenly.
        yield model.experts_per_token * (2 * hidden + 3 * model.expert_size) // (layout.expert_tensor * spread)
    else:
        yield 3 * model.intermediate_size // layout.tensor  # gate, up, and their product
