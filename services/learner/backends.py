"""What trains, by `learner.backend`: the ranks as they meet, the policy that is published, and the backend.

Each of the classes is one rank's; all of their methods are collectives. A backend's packages are imported where it is
chosen.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch
from transformers import PreTrainedModel

from streamrl.config import Config
from streamrl.config.estimates import sizes as limits
from streamrl.config.estimates.megatron import MegatronLayout
from streamrl.learner.fsdp import FsdpBackend, on_policy
from streamrl.learner.model.sharding import ShardedPolicy
from streamrl.learner.parallel.process_group import LearnerGroup, open_group
from streamrl.learner.references.averaged import AveragedPolicy
from streamrl.learner.references.frozen import FrozenPolicy
from streamrl.models.load import DTYPES, load_model
from streamrl.models.vocabulary import require_same_vocabulary
from streamrl.services.run.layout import model_folder, start_folder


class Trained(NamedTuple):
    """policy: what is published, a `PublishedPolicy`. backend: a `LearnerBackend` with `state_bytes`. held: the
    reference policy; None where there is none."""

    policy: Any
    backend: Any
    held: FrozenPolicy | None


class Ranks(Protocol):
    """One rank of those that train together. data_rank: whose rows it has."""

    group: LearnerGroup
    data_rank: int

    def build(self, model: PreTrainedModel) -> Trained:
        """Collective. model: the same weights on every rank; it is taken over."""
        ...

    def close(self) -> None:
        """End the group in this process."""
        ...


class FsdpRanks:
    """`Ranks` over FSDP2."""

    def __init__(self, config: Config, run: Path, rank: int, store_path: Path) -> None:
        learner = config.learner
        self._config, self._run = config, run
        self.group = open_group(
            rank,
            learner.num_workers,
            store_path,
            device=torch.device(learner.device),
            timeout_s=config.deadlines.step_s,
            tensor_size=learner.tensor_parallel,
            sequence_size=learner.sequence_parallel,
        )
        self.data_rank = self.group.data_rank

    def build(self, model: PreTrainedModel) -> Trained:
        policy = self._make_policy(model)
        held = self._reference() if self._config.learner.algorithm.has_reference else None
        return Trained(policy, self._make_backend(policy, held), held)

    def close(self) -> None:
        self.group.close()

    def _make_policy(self, model: PreTrainedModel) -> ShardedPolicy:
        learner, dtype = self._config.learner, DTYPES[self._config.model.dtype]
        lora, execution = learner.lora, learner.execution
        if not lora.rank:
            return ShardedPolicy(model, self.group, dtype, execution)
        # Not above: it needs a package that only those have who train adapters.
        from streamrl.learner.model.adapters import AdapterPolicy, AdapterSettings, linear_layers

        targets = lora.targets or tuple(linear_layers(model))
        settings = AdapterSettings(lora.rank, limits.lora_alpha(lora), targets, self._config.seed)
        return AdapterPolicy(model, self.group, dtype, settings, execution)

    def _make_backend(self, policy: ShardedPolicy, held: FrozenPolicy | None) -> FsdpBackend:
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
        )

    def _reference(self) -> FrozenPolicy:
        """The policy that the trained one is held to, or that teaches it; loaded when it is first called."""
        dtype, reference = self._config.model.dtype, self._config.learner.algorithm.reference
        folder = start_folder(self._run, self._config)
        if reference.path is not None:
            folder = Path(reference.path).expanduser()
            require_same_vocabulary(model_folder(self._run, self._config), folder)
        execution = self._config.learner.execution
        arguments = (lambda: load_model(folder, dtype)), self.group, DTYPES[dtype], execution
        if reference.kind == "average":
            return AveragedPolicy(*arguments, every=reference.every, decay=reference.decay)
        return FrozenPolicy(*arguments)


class MegatronRanks:
    """`Ranks` over megatron-core, in the layout of `learner.megatron`."""

    def __init__(self, config: Config, run: Path, rank: int, store_path: Path) -> None:
        from streamrl.learner.megatron.installed import require_megatron

        device = torch.device(config.learner.device)
        require_megatron(device)
        from streamrl.learner.megatron.ranks import open_ranks

        self._config = config
        layout = MegatronLayout.of(config.learner.megatron, config.learner.num_workers)
        timeout_s = config.deadlines.step_s
        self._ranks = open_ranks(rank, store_path, layout, device=device, timeout_s=timeout_s)
        self.group, self.data_rank = self._ranks.group, self._ranks.data_rank

    def build(self, model: PreTrainedModel) -> Trained:
        from streamrl.learner.megatron.backend import build

        learner = self._config.learner
        backend = build(
            model,
            megatron=learner.megatron,
            optimizer=learner.optimizer,
            algorithm=learner.algorithm,
            total_steps=learner.steps,
            temperature=self._config.rollout.sampling.temperature,
            ranks=self._ranks,
            dtype=DTYPES[self._config.model.dtype],
        )
        return Trained(backend.policy, backend, None)

    def close(self) -> None:
        self._ranks.close()


BACKENDS: dict[str, Callable[[Config, Path, int, Path], Ranks]] = {"fsdp": FsdpRanks, "megatron": MegatronRanks}
"""By `learner.backend`: (configuration, run folder, rank, the file at which the ranks meet)."""
