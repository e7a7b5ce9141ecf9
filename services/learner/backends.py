"""What trains, by `learner.backend`: the ranks as they meet, the policy that is published, and the backend.

Each of the classes is one rank's; all of their methods are collectives. A backend's packages are imported where it is
chosen.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

import torch
from transformers import PreTrainedModel

from streamrl.config import Config
from streamrl.config.estimates.megatron import MegatronLayout
from streamrl.config.schema.learner import OptimizerConfig
from streamrl.learner.auxiliary.auxiliary import AuxiliaryObjective, AuxiliaryParts
from streamrl.learner.auxiliary.kl_penalty import referred
from streamrl.learner.auxiliary.on_fsdp import parts_on_fsdp
from streamrl.learner.backend import LearnerBackend, PublishedPolicy, StatefulBackend
from streamrl.learner.batch.packing import PackedBatch
from streamrl.learner.fsdp import FsdpBackend, on_policy
from streamrl.learner.model.sharding import ShardedPolicy
from streamrl.learner.model.value_model import ShardedCritic, decoder_of
from streamrl.learner.objectives import Objective
from streamrl.learner.parallel.meeting import Meeting
from streamrl.learner.parallel.process_group import LearnerGroup, open_group
from streamrl.learner.parallel.rank_mesh import RowRank
from streamrl.learner.references.averaged import AveragedPolicy
from streamrl.learner.references.frozen import FrozenPolicy
from streamrl.learner.token_watch import TokenWatch
from streamrl.models.dtypes import DTYPES
from streamrl.models.load import load_model
from streamrl.services.learner.policies import (
    adapter_settings,
    make_policy,
    make_reference,
    reference_folder,
    require_layout,
)

if TYPE_CHECKING:
    from streamrl.learner.megatron.references import MegatronReference

Supervised = Callable[[Objective, OptimizerConfig, int], AbstractContextManager[LearnerBackend]]
"""(objective, optimizer, steps that its rate decays over). While the context is open its backend trains the weights."""


class Referred(Protocol):
    """What a reference policy is asked for."""

    def __call__(self, packs: Sequence[PackedBatch], temperature: float) -> list[torch.Tensor]:
        """Collective. float32 [K] for each pack, on the CPU: log-probs of its targets."""
        ...


class Trained(NamedTuple):
    """policy: what is published. backend: trains it. referred: None where there is no reference. supervised: trains the
    same weights for another objective, before `backend` has taken a step."""

    policy: PublishedPolicy
    backend: StatefulBackend
    referred: Referred | None
    supervised: Supervised


class Ranks(Protocol):
    """One rank of those that train together."""

    group: LearnerGroup
    row_rank: RowRank

    def build(self, model: PreTrainedModel, watch: TokenWatch | None = None) -> Trained:
        """Collective. model: the same weights on every rank; it is taken over. watch: is told what the objective finds
        of each token, on ranks that answer."""
        ...

    def beside(
        self, model: PreTrainedModel, objective: AuxiliaryObjective, optimizer: OptimizerConfig
    ) -> AuxiliaryParts:
        """Collective. What trains a model beside the policy. model: as `build` has it; its head is not used where the
        objective is of values."""
        ...

    def sum_over_rows(self, tensor: torch.Tensor) -> torch.Tensor:
        """Collective. The sum over ranks that have different rows, on each rank."""
        ...

    def close(self) -> None:
        """End the group in this process."""
        ...


class FsdpRanks:
    """`Ranks` over FSDP2."""

    def __init__(self, config: Config, run: Path, rank: int, meeting: Path | Meeting) -> None:
        learner = config.learner
        self._config, self._run = config, run
        self.group = open_group(
            rank,
            learner.num_workers,
            meeting,
            device=torch.device(learner.device),
            timeout_s=config.deadlines.step_s,
            tensor_size=learner.tensor_parallel,
            sequence_size=learner.sequence_parallel,
        )
        self.row_rank = self.group.ranks.row_rank(rank)

    def build(self, model: PreTrainedModel, watch: TokenWatch | None = None) -> Trained:
        policy = make_policy(model, self._config, self.group)
        has_reference = self._config.learner.algorithm.has_reference
        held = make_reference(self._run, self._config, self.group) if has_reference else None

        def supervised(
            objective: Objective, optimizer: OptimizerConfig, steps: int
        ) -> AbstractContextManager[LearnerBackend]:
            return nullcontext(FsdpBackend(policy, objective, optimizer, steps))

        asked = None if held is None else partial(referred, held, group=self.group)
        return Trained(policy, self._make_backend(policy, held, watch), asked, supervised)

    def beside(
        self, model: PreTrainedModel, objective: AuxiliaryObjective, optimizer: OptimizerConfig
    ) -> AuxiliaryParts:
        arguments = self.group, DTYPES[self._config.model.dtype], self._config.learner.execution
        sharded = (
            ShardedCritic(decoder_of(model), *arguments) if objective.of_values else ShardedPolicy(model, *arguments)
        )
        return parts_on_fsdp(sharded, objective, optimizer, self._config.learner.steps)

    def sum_over_rows(self, tensor: torch.Tensor) -> torch.Tensor:
        return self.group.sum(tensor)

    def close(self) -> None:
        self.group.close()

    def _make_backend(self, policy: ShardedPolicy, held: FrozenPolicy | None, watch: TokenWatch | None) -> FsdpBackend:
        learner = self._config.learner
        return on_policy(
            policy,
            optimizer=learner.optimizer,
            algorithm=learner.algorithm,
            total_steps=learner.steps,
            temperature=self._config.rollout.sampling.temperature,
            reference=held,
            average=held if isinstance(held, AveragedPolicy) else None,
            idle_steps=learner.critic.warmup_steps,
            watch=watch,
            router_aux_loss_coef=learner.router_aux_loss_coef,
            router_replay=learner.router_replay,
        )


class MegatronRanks:
    """`Ranks` over megatron-core, in the layout of `learner.megatron`."""

    def __init__(self, config: Config, run: Path, rank: int, meeting: Path | Meeting) -> None:
        from streamrl.learner.megatron.installed import require_megatron

        device = torch.device(config.learner.device)
        require_megatron(device)
        from streamrl.learner.megatron.ranks import open_ranks

        self._config, self._run = config, run
        layout = MegatronLayout.of(config.learner.megatron, config.learner.num_workers)
        timeout_s = config.deadlines.step_s
        self._ranks = open_ranks(rank, meeting, layout, device=device, timeout_s=timeout_s)
        self.group, self.row_rank = self._ranks.group, self._ranks.row_rank

    def build(self, model: PreTrainedModel, watch: TokenWatch | None = None) -> Trained:
        from streamrl.learner.megatron.backend import build

        learner = self._config.learner
        reference = self._reference() if learner.algorithm.has_reference else None
        backend = build(
            model,
            megatron=learner.megatron,
            optimizer=learner.optimizer,
            algorithm=learner.algorithm,
            total_steps=learner.steps,
            temperature=self._config.rollout.sampling.temperature,
            ranks=self._ranks,
            dtype=DTYPES[self._config.model.dtype],
            watch=watch,
            reference=reference,
            adapters=adapter_settings(model, self._config),
            idle_steps=learner.critic.warmup_steps,
            router_aux_loss_coef=learner.router_aux_loss_coef,
            router_replay=learner.router_replay,
        )
        asked = None if reference is None else reference.logprobs
        return Trained(backend.policy, backend, asked, backend.supervised)

    def beside(
        self, model: PreTrainedModel, objective: AuxiliaryObjective, optimizer: OptimizerConfig
    ) -> AuxiliaryParts:
        from streamrl.learner.megatron.auxiliary import parts_on_megatron

        return parts_on_megatron(
            model,
            objective,
            optimizer,
            self._config.learner.steps,
            megatron=self._config.learner.megatron,
            ranks=self._ranks,
            dtype=DTYPES[self._config.model.dtype],
        )

    def _reference(self) -> "MegatronReference":
        from streamrl.learner.megatron.references import AveragedReference, MegatronReference

        model, settings = self._config.model, self._config.learner.algorithm.reference
        folder = reference_folder(self._run, self._config)
        if settings.path is not None:
            require_layout(self._config, folder, "learner.algorithm.reference.path")
        layout = self._config.learner.megatron
        arguments = (lambda: load_model(folder, model.dtype)), self._ranks, layout, DTYPES[model.dtype]
        if settings.kind == "average":
            return AveragedReference(*arguments, every=settings.every, decay=settings.decay)
        return MegatronReference(*arguments)

    def sum_over_rows(self, tensor: torch.Tensor) -> torch.Tensor:
        return self._ranks.sum_of_reports(tensor)

    def close(self) -> None:
        self._ranks.close()


BACKENDS: dict[str, Callable[[Config, Path, int, Path | Meeting], Ranks]] = {
    "fsdp": FsdpRanks,
    "megatron": MegatronRanks,
}
"""By `learner.backend`: (configuration, run folder, rank, where the ranks meet)."""
