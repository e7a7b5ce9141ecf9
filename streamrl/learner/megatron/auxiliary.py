"""Models beside the policy on megatron-core, in its layout: a critic, or another policy."""

from functools import partial

import torch
from transformers import PreTrainedModel

from streamrl.config.schema.learner import MegatronConfig, OptimizerConfig
from streamrl.learner.auxiliary.auxiliary import AuxiliaryObjective, AuxiliaryParts
from streamrl.learner.auxiliary.implicit_rewards import TEMPERATURE
from streamrl.learner.megatron.backend import MegatronBackend
from streamrl.learner.megatron.families import FAMILIES
from streamrl.learner.megatron.optimizer import MegatronAdamW
from streamrl.learner.megatron.pipeline import values_of
from streamrl.learner.megatron.placed import place, with_gradients
from streamrl.learner.megatron.policy import MegatronPolicy
from streamrl.learner.megatron.ranks import MegatronRanks


def parts_on_megatron(
    model: PreTrainedModel,
    objective: AuxiliaryObjective,
    optimizer: OptimizerConfig,
    total_steps: int,
    *,
    megatron: MegatronConfig,
    ranks: MegatronRanks,
    dtype: torch.dtype,
) -> AuxiliaryParts:
    """Collective. model: as `streamrl.learner.megatron.backend.build` has it; its head is not used for an objective of
    values. total_steps: where the decay of its rate ends. Raises ConfigError for a model that has no mapping."""
    placed = place(model, FAMILIES, megatron, dtype, ranks, of_values=objective.of_values)
    wrapped = with_gradients(placed, megatron)
    backend = MegatronBackend(
        wrapped,
        placed.weights,
        objective.loss,
        optimizer,
        total_steps,
        ranks=ranks,
        policy=MegatronPolicy(placed.weights, ranks, dtype, model.config.hidden_size),
        adamw=MegatronAdamW(wrapped, optimizer, distributed=megatron.distributed_optimizer, dtype=dtype),
        temperature=TEMPERATURE,
        sums=objective.sums,
    )
    scores = partial(values_of, wrapped, ranks=ranks) if objective.of_values else backend.logprobs
    return AuxiliaryParts(backend, scores, ranks.sum_of_reports, ranks.group)
