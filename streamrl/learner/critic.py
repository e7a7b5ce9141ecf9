"""The critic of PPO: a model and an optimizer of its own, over the ranks of the policy.

    values of the batch's tokens  ->  advantages and returns  ->  updates of the policy  ->  the critic's own

Guarantees: the values of a step are those of the weights that the step before left, however many updates it has; what
holds for `FsdpBackend` holds for the critic: the result does not depend on the cut into packs and ranks, bits agree on
two shares, and a restored one goes on bit-equal. Advantages are whitened over the batch, so `judge` takes all
mini-batches of a step at once. Knows nothing of the policy.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch

from streamrl.algorithms.groups import DoubleArray
from streamrl.clock import Clock
from streamrl.config.learner_tables import CriticConfig
from streamrl.errors import DataError, NonFiniteError
from streamrl.learner.estimates import ScoredPack, with_estimates
from streamrl.learner.fsdp import FsdpBackend
from streamrl.learner.mini_batches import MiniBatch
from streamrl.learner.packing import PackedBatch
from streamrl.learner.value_model import ShardedCritic
from streamrl.learner.values import value_loss
from streamrl.types import RolloutRows

PREFIX = "critic/"
"""Before the names of the policy's state, and its metrics."""

_RENAMED = {"grad/norm": "critic/grad_norm", "learner/lr": "critic/lr"}


class Critic:
    """One rank's part.

    Example:
        critic = Critic(ShardedCritic(decoder, group, torch.float32), config, total_steps=100)
        metrics = step_of_both(backend, critic, mini_batches, rows, epochs=1)
    """

    def __init__(
        self, model: ShardedCritic, config: CriticConfig, total_steps: int, clock: Clock | None = None
    ) -> None:
        """total_steps: where the decay of the critic's rate ends."""
        self._model = model
        self._config = config
        objective = partial(value_loss, clip=config.value_clip)
        self._backend = FsdpBackend(model, objective, config.optimizer, total_steps, clock=clock)

    @property
    def num_parameters(self) -> int:
        """Elements, over all ranks."""
        return self._model.num_parameters

    def judge(
        self, mini_batches: Sequence[MiniBatch], rows: Sequence[Sequence[RolloutRows]]
    ) -> tuple[list[MiniBatch], dict[str, float]]:
        """Collective. The mini-batches of a whole step with advantages, values and returns; `critic/value_mean` and
        `critic/explained_variance`.

        rows: of each mini-batch and share the rows that were packed. Raises NonFiniteError, on every rank, for a value
        that is not finite: which row's it is says the rank that has it.
        """
        valued = [
            [self._valued(packs, part) for packs, part in zip(mini_batch.shares, parts, strict=True)]
            for mini_batch, parts in zip(mini_batches, rows, strict=True)
        ]
        self._require_finite(valued, rows)
        by_share = [[scored for packs in share for scored in packs] for share in zip(*valued, strict=True)]
        judged, facts = with_estimates(by_share, self._config, self._over_ranks)
        waiting = [iter(packs) for packs in judged]
        found = []
        for mini_batch in mini_batches:
            shares = [[next(packs) for _ in own] for packs, own in zip(waiting, mini_batch.shares, strict=True)]
            found.append(MiniBatch(shares, mini_batch.total))
        return found, facts

    def step_batch(self, mini_batches: Sequence[MiniBatch], epochs: int = 1) -> dict[str, float]:
        """Collective. The critic's updates of one step, as `FsdpBackend.step_batch`. Returns `critic/loss`,
        `critic/clip_fraction`, `critic/grad_norm`, `critic/lr` and the seconds of `time/optimizer`."""
        metrics = self._backend.step_batch(mini_batches, epochs)
        del metrics["time/forward_backward"]
        return {_RENAMED.get(name, name): value for name, value in metrics.items()}

    @torch.no_grad()
    def values(self, packs: Sequence[PackedBatch]) -> list[torch.Tensor]:
        """Collective. float32 [K] for each pack, on the CPU."""
        device = self._model.group.device
        found = [self._model.module(pack.to(device)).cpu() for pack in self._backend.padded(packs)]
        return found[: len(packs)]

    def state_tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Collective. As `LearnerBackend.state_tensors`, each name behind `critic/`."""
        for name, tensor in self._backend.state_tensors():
            yield PREFIX + name, tensor

    def state_extra(self) -> dict[str, Any]:
        """As `LearnerBackend.state_extra`."""
        return self._backend.state_extra()

    def load_state(self, tensor: Callable[[str], torch.Tensor], extra: dict[str, Any] | None) -> None:
        """As `LearnerBackend.load_state`. extra: None where the state has no critic, which is refused."""
        if extra is None:
            raise DataError(
                'the learner state has no critic, and learner.algorithm.advantage = "gae" needs one: it is of a run '
                "with another advantage"
            )
        self._backend.load_state(lambda name: tensor(PREFIX + name), extra)

    def _valued(self, packs: Sequence[PackedBatch], rows: RolloutRows) -> list[ScoredPack]:
        found = zip(packs, self.values(packs), strict=True)
        return [ScoredPack(replace(pack, values=values), rows.rewards) for pack, values in found]

    def _require_finite(
        self, valued: Sequence[Sequence[Sequence[ScoredPack]]], rows: Sequence[Sequence[RolloutRows]]
    ) -> None:
        """One collective for the step: a rank that raised alone would leave the others waiting."""
        bad = [
            what
            for shares, parts in zip(valued, rows, strict=True)
            for packs, part in zip(shares, parts, strict=True)
            for scored in packs
            if (what := bad_value(scored.pack, part))
        ]
        if self._over_ranks(np.array([float(len(bad))]))[0]:
            where = bad[0] if bad else "another rank has the row, and names it"
            step = self._backend.steps_done + 1
            raise NonFiniteError(
                f"learner step {step}: a value of the critic is not finite: {where}; nothing was applied. Resume from "
                "the last checkpoint with a lower learner.critic.optimizer.lr"
            )

    def _over_ranks(self, sums: DoubleArray) -> DoubleArray:
        group = self._model.group
        return group.sum(torch.tensor(sums, device=group.device)).cpu().numpy()


def step_of_both(
    policy: FsdpBackend,
    critic: Critic,
    mini_batches: Sequence[MiniBatch],
    rows: Sequence[Sequence[RolloutRows]],
    epochs: int,
) -> dict[str, float]:
    """Collective. One step of both on the same batch; metrics of both. rows: as `Critic.judge` takes them."""
    mini_batches, facts = critic.judge(mini_batches, rows)
    metrics = policy.step_batch(mini_batches, epochs)
    learned = critic.step_batch(mini_batches, epochs)
    metrics["time/optimizer"] += learned.pop("time/optimizer")
    return metrics | learned | facts


def bad_value(pack: PackedBatch, rows: RolloutRows) -> str:
    """The first value of `pack` that is not finite, with its row, the replica and the version that sampled it; "" when
    there is none."""
    assert pack.values is not None
    bad_K = (~torch.isfinite(pack.values)).numpy()
    if not bad_K.any():
        return ""
    row = int(pack.rows[np.flatnonzero(bad_K)[0]])
    steps = rows.token_steps[rows.offsets[row] : rows.offsets[row + 1]]
    replica = rows.replica[row] if rows.replica else "a replica without name"
    value, group, sample = pack.values[bad_K][0].item(), rows.group[row], rows.sample_index[row]
    return f"{value} in group {group}, sample {sample}, of {replica} under version step {steps.max(initial=-1)}"
