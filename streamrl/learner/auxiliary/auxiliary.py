"""An auxiliary model, trained beside the policy over the same ranks, gives each token its own advantage.

    scores of the batch's tokens  ->  advantages  ->  updates of the policy  ->  updates of the auxiliary model

A critic and an implicit reward model are such models. Guarantees for each of them: the scores of a step are made by the
weights that the step before left, so no row is scored by a model that has learned from it; what holds for the backend
that trains it holds here, under names of its own in the state; a score that is not finite stops all ranks before
anything is applied, and its row is named. Knows nothing of the policy, and not which backend it is (`on_fsdp`,
`streamrl.learner.megatron.auxiliary`).
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, ClassVar, NamedTuple

import torch

from streamrl.algorithms.advantages.groups import DoubleArray
from streamrl.errors import DataError, NonFiniteError
from streamrl.learner.backend import LearnerBackend, StatefulBackend
from streamrl.learner.batch.mini_batches import MiniBatch
from streamrl.learner.batch.packing import PackedBatch
from streamrl.learner.batch.scored_batch import Part, ScoredTokens
from streamrl.learner.finite import require_finite_tokens
from streamrl.learner.objectives import Objective
from streamrl.learner.parallel.process_group import LearnerGroup
from streamrl.learner.sums import Sums

Scores = Callable[[Sequence[PackedBatch]], list[torch.Tensor]]
"""Collective. float32 [K] for each pack, on the CPU: what the model gives for its targets."""


class AuxiliaryObjective(NamedTuple):
    """What such a model learns. loss: an objective of a backend. sums: the kind of what it adds up. of_values: whether
    the model gives a value for a target, as `ValueModel` does, or log-probs, as `PolicyModel` does."""

    loss: Objective
    sums: type[Sums]
    of_values: bool


class AuxiliaryParts(NamedTuple):
    """What it is made of, on one rank. backend: trains it. scores: under the weights as they are. sum_over_rows:
    collective, the sum over ranks that have different rows, on each rank. group: all ranks."""

    backend: StatefulBackend
    scores: Scores
    sum_over_rows: Callable[[torch.Tensor], torch.Tensor]
    group: LearnerGroup


class AuxiliaryModel(ABC):
    """One rank's part.

    Example:
        auxiliary = critic_on_fsdp(ShardedCritic(decoder, group, torch.float32), config, total_steps=100)
        metrics = step_of_both(backend, auxiliary, mini_batches, parts, epochs=1)
    """

    name: ClassVar[str]
    """Before the names of its state and of its metrics, and in checkpoints."""
    called: ClassVar[str]
    """In messages."""
    advantage: ClassVar[str]
    """The `learner.algorithm.advantage` that it makes."""
    score: ClassVar[str]
    """What it gives for a token, in messages."""

    def __init__(self, parts: AuxiliaryParts) -> None:
        self._backend, self._scores, self._sum_over_rows, self._group = parts

    @property
    def state_bytes(self) -> int:
        """As `StatefulBackend.state_bytes`."""
        return self._backend.state_bytes

    @abstractmethod
    def add_advantages(
        self, mini_batches: Sequence[MiniBatch], parts: Sequence[Sequence[Part]]
    ) -> tuple[list[MiniBatch], dict[str, float]]:
        """Collective. The mini-batches of a whole step with advantages and what the model learns from, and metrics.

        parts: of each mini-batch and share the rows that were packed. Raises NonFiniteError, on every rank, for a
        score that is not finite: which row's it is says the rank that has it.
        """

    def step_batch(self, mini_batches: Sequence[MiniBatch], epochs: int = 1) -> dict[str, float]:
        """Collective. The model's updates of one step, as `LearnerBackend.step_batch`, on what `add_advantages` gave.

        Returns the metrics of its objective, `<name>/grad_norm`, `<name>/lr` and the seconds of `time/optimizer`. What
        else there is of it, as of its routers, is behind its name, too.
        """
        try:
            metrics = self._backend.step_batch(mini_batches, epochs)
        except NonFiniteError as error:
            whose = f"of the {self.called}, behind the policy's of this step; its rate is {self._rate}"
            raise NonFiniteError(f"{error} ({whose})") from error
        del metrics["time/forward_backward"]
        return {self._own_name(name): value for name, value in metrics.items()}

    def state_tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Collective. As `LearnerBackend.state_tensors`, each name behind the auxiliary model's."""
        for name, tensor in self._backend.state_tensors():
            yield f"{self.name}/{name}", tensor

    def state_extra(self) -> dict[str, Any]:
        """As `LearnerBackend.state_extra`."""
        return self._backend.state_extra()

    def load_state(self, tensor: Callable[[str], torch.Tensor], extra: dict[str, Any] | None) -> None:
        """As `LearnerBackend.load_state`. extra: None where the state has no such model, which is refused."""
        if extra is None:
            raise DataError(
                f'the learner state has no {self.called}, and learner.algorithm.advantage = "{self.advantage}" needs '
                "one: it is of a run with another advantage"
            )
        self._backend.load_state(lambda name: tensor(f"{self.name}/{name}"), extra)

    def _own_name(self, metric: str) -> str:
        if metric == "time/optimizer" or metric.startswith(f"{self.name}/"):
            return metric
        renamed = {"grad/norm": "grad_norm", "learner/lr": "lr"}
        return f"{self.name}/{renamed.get(metric, metric)}"

    def _require_finite(self, judged: Iterable[ScoredTokens]) -> None:
        """Collective, as `require_finite_tokens`."""
        what = f"learner step {self._backend.steps_done + 1}: {self.score}"
        way_out = f"Resume from the last checkpoint with a lower {self._rate}"
        require_finite_tokens(judged, self._group, what, way_out)

    @property
    def _rate(self) -> str:
        return f"learner.{self.name}.optimizer.lr"

    def _over_ranks(self, sums: DoubleArray) -> DoubleArray:
        device = self._group.device
        return self._sum_over_rows(torch.tensor(sums, device=device)).cpu().numpy()


def step_of_both(
    policy: LearnerBackend,
    auxiliary: AuxiliaryModel,
    mini_batches: Sequence[MiniBatch],
    parts: Sequence[Sequence[Part]],
    epochs: int,
) -> dict[str, float]:
    """Collective. One step of both on the same batch; metrics of both. parts: as for `add_advantages`."""
    mini_batches, facts = auxiliary.add_advantages(mini_batches, parts)
    metrics = policy.step_batch(mini_batches, epochs)
    learned = auxiliary.step_batch(mini_batches, epochs)
    metrics["time/optimizer"] += learned.pop("time/optimizer")
    return metrics | learned | facts
