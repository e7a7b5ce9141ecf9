"""Auxiliary models on FSDP2."""

from collections.abc import Sequence
from functools import partial

import torch

from streamrl.clock import Clock
from streamrl.config.schema.learner import CriticConfig, OptimizerConfig, PrimeConfig
from streamrl.learner.auxiliary.auxiliary import AuxiliaryObjective, AuxiliaryParts
from streamrl.learner.auxiliary.critic import Critic, critic_objective
from streamrl.learner.auxiliary.implicit_rewards import TEMPERATURE
from streamrl.learner.auxiliary.kl_penalty import TokenDivergences, referred
from streamrl.learner.auxiliary.prime import ImplicitRewardModel, prime_objective
from streamrl.learner.batch.packing import PackedBatch
from streamrl.learner.fsdp import FsdpBackend
from streamrl.learner.model.sharding import ShardedPolicy
from streamrl.learner.model.value_model import ShardedCritic
from streamrl.learner.objectives import Reference


def parts_on_fsdp(
    model: ShardedPolicy,
    objective: AuxiliaryObjective,
    optimizer: OptimizerConfig,
    total_steps: int,
    clock: Clock | None = None,
) -> AuxiliaryParts:
    """model: a `ShardedCritic` for an objective of values. total_steps: where the decay of its rate ends."""
    backend = FsdpBackend(model, objective.loss, optimizer, total_steps, temperature=TEMPERATURE, clock=clock)
    scores = partial(_values, backend) if objective.of_values else backend.logprobs
    return AuxiliaryParts(backend, scores, backend.group.sum, backend.group)


@torch.no_grad()
def _values(backend: FsdpBackend, packs: Sequence[PackedBatch]) -> list[torch.Tensor]:
    device = backend.group.device
    return [backend.policy.module(pack.to(device)).cpu() for pack in backend.padded(packs)][: len(packs)]


def critic_on_fsdp(
    model: ShardedCritic,
    config: CriticConfig,
    total_steps: int,
    clock: Clock | None = None,
    divergences: TokenDivergences | None = None,
) -> Critic:
    """total_steps, divergences: as `parts_on_fsdp` and `Critic` have them."""
    return Critic(
        parts_on_fsdp(model, critic_objective(config), config.optimizer, total_steps, clock), config, divergences
    )


def implicit_rewards_on_fsdp(
    model: ShardedPolicy, reference: Reference, config: PrimeConfig, total_steps: int, clock: Clock | None = None
) -> ImplicitRewardModel:
    """reference: a policy that stands still, collective as `FrozenPolicy` is."""
    parts = parts_on_fsdp(model, prime_objective(config), config.optimizer, total_steps, clock)
    return ImplicitRewardModel(parts, partial(referred, reference, temperature=TEMPERATURE, group=parts.group), config)
