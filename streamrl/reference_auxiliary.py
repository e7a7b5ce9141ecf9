"""The auxiliary models of the reference loop, a critic or implicit rewards: they score the batch, then learn from it.

Plain PyTorch on one process, with the formulas of `streamrl.learner`; `reference` calls them.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import nn

from streamrl.algorithms.aggregation import Denominators
from streamrl.config import Config
from streamrl.config.schema.learner import OptimizerConfig
from streamrl.learner.auxiliary.gae_batch import ScoredPack, with_estimates
from streamrl.learner.auxiliary.implicit_rewards import TEMPERATURE, implicit_reward_loss
from streamrl.learner.auxiliary.prime import rewarded
from streamrl.learner.auxiliary.process_rewards import with_process_advantages
from streamrl.learner.auxiliary.value_loss import value_loss
from streamrl.learner.batch.mini_batch_cut import mini_batch_of
from streamrl.learner.batch.packing import PackedBatch
from streamrl.learner.batch.rows import select_rows
from streamrl.learner.batch.scored_batch import Part
from streamrl.learner.model.policy import PolicyModel
from streamrl.learner.model.value_model import ValueModel, decoder_of
from streamrl.learner.optim.optimizer import clip_gradients, make_optimizer
from streamrl.learner.optim.schedule import learning_rate
from streamrl.models.load import load_model
from streamrl.types import RolloutRows

Cut = tuple[list[PackedBatch], Denominators]
"""A mini-batch: its packs, and the counts over all of it."""


class PlainAuxiliaryModel(ABC):
    """A model, its optimizer, and what it makes of a step's batch."""

    def __init__(self, config: Config, model: nn.Module, optimizer: OptimizerConfig) -> None:
        self.config = config
        self.model = model
        self.settings = optimizer
        self.optimizer = make_optimizer(model.parameters(), optimizer)

    @abstractmethod
    def add_advantages(self, mini_batches: list[Cut], rows: RolloutRows) -> list[Cut]:
        """The batch with advantages, by the model as it is."""

    @abstractmethod
    def loss(self, one: PackedBatch, total: Denominators) -> torch.Tensor:
        """A pack's part of the loss of a mini-batch, with gradient."""

    def learn(self, step: int, mini_batches: list[Cut]) -> None:
        """The model's updates of one step, on what `add_advantages` gave."""
        learner = self.config.learner
        self.optimizer.set_learning_rate(learning_rate(step, self.settings, learner.steps))
        for _ in range(learner.ppo_epochs):
            for packs, total in mini_batches:
                self.update(packs, total)

    def update(self, packs: list[PackedBatch], total: Denominators) -> None:
        for one in packs:
            self.loss(one, total).backward()
        clip_gradients(list(self.model.parameters()), self.settings.max_grad_norm)
        self.optimizer.step()
        self.optimizer.zero_grad()

    def parts(self, mini_batches: list[Cut], rows: RolloutRows) -> Iterator[tuple[PackedBatch, Part]]:
        """Every pack, with the rows of its mini-batch."""
        mini_batch_N = mini_batch_of(rows.group, self.config.learner.mini_batches)
        for number, (packs, _) in enumerate(mini_batches):
            places = np.flatnonzero(mini_batch_N == number)
            part = Part(select_rows(rows, places), places)
            yield from ((one, part) for one in packs)


class PlainCritic(PlainAuxiliaryModel):
    """The critic of `learner.algorithm.advantage = "gae"`."""

    def __init__(self, config: Config, start: Path) -> None:
        """start: the folder that it begins with, where the configuration names none."""
        self.critic = config.learner.critic
        model = load_model(self.critic.path or start, config.model.dtype).to(torch.float32)  # type: ignore[arg-type]
        super().__init__(config, ValueModel(decoder_of(model)), self.critic.optimizer)

    @torch.no_grad()
    def add_advantages(self, mini_batches: list[Cut], rows: RolloutRows) -> list[Cut]:
        scored = [
            ScoredPack(replace(one, values=self.model(one)), part.rows.rewards)
            for one, part in self.parts(mini_batches, rows)
        ]
        (judged,), _ = with_estimates([scored], self.critic, total=lambda sums: sums)
        return again(judged, mini_batches)

    def loss(self, one: PackedBatch, total: Denominators) -> torch.Tensor:
        assert isinstance(self.model, ValueModel)
        return value_loss(self.model, one, total, self.critic.value_clip)[0]


class PlainImplicitRewards(PlainAuxiliaryModel):
    """The implicit reward model of `learner.algorithm.advantage = "prime"`."""

    def __init__(self, config: Config, start: Path, reference: PolicyModel) -> None:
        self.reference, self.prime = reference, config.learner.prime
        model = load_model(start, config.model.dtype).to(torch.float32)  # type: ignore[arg-type]
        super().__init__(config, PolicyModel(model), self.prime.optimizer)

    @torch.no_grad()
    def add_advantages(self, mini_batches: list[Cut], rows: RolloutRows) -> list[Cut]:
        judged = []
        for one, part in self.parts(mini_batches, rows):
            logprobs_K, reference_K = (model(one, TEMPERATURE)[0] for model in (self.model, self.reference))
            judged.append(rewarded(one, logprobs_K, reference_K, part, self.prime.beta))
        (packs,), _ = with_process_advantages([judged], self.prime, lambda sums: sums, rows.num_rows)
        return again(packs, mini_batches)

    def loss(self, one: PackedBatch, total: Denominators) -> torch.Tensor:
        assert isinstance(self.model, PolicyModel)
        return implicit_reward_loss(self.model, one, total, self.prime.beta)[0]


def make_plain_auxiliary_model(
    config: Config, start: Path, reference: PolicyModel | None
) -> PlainAuxiliaryModel | None:
    """None where the advantage needs none. start: the folder that the policy begins with."""
    algorithm = config.learner.algorithm
    if algorithm.has_critic:
        return PlainCritic(config, start)
    if algorithm.has_implicit_rewards:
        assert reference is not None
        return PlainImplicitRewards(config, start, reference)
    return None


def again(packs: list[PackedBatch], like: list[Cut]) -> list[Cut]:
    """The packs of a batch in its mini-batches, as they lie in `like`."""
    waiting = iter(packs)
    return [([next(waiting) for _ in own], total) for own, total in like]
