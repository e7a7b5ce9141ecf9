"""Trains a policy on preference pairs by direct preference optimisation, on one rank.

Guarantees what `pair_training` does. The reference is the policy as it begins, so before the first update the loss is
ln 2, every margin 0 and the accuracy one half.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Annotated

import torch
from msgspec import Meta
from transformers import PreTrainedModel

from streamrl.algorithms.aggregation import Denominators
from streamrl.config.schema.table import PositiveFloat
from streamrl.learner.fsdp import FsdpBackend
from streamrl.learner.model.sharding import ShardedPolicy
from streamrl.learner.references.frozen import FrozenPolicy
from streamrl.learner.supervised.pair_training import PairProgress, PairRun, PairTraining, longest_pack, one_rank
from streamrl.learner.supervised.preference_pairs import EncodedPair, answer_rows
from streamrl.learner.supervised.preferences import dpo_loss, implicit_rewards, pack_pairs
from streamrl.learner.supervised.reward_model import compare


class DpoTraining(PairTraining, frozen=True):
    """Settings, as the options of `streamrl dpo` have them."""

    lr: PositiveFloat = 1e-6
    beta: PositiveFloat = 0.1
    label_smoothing: Annotated[float, Meta(ge=0.0, lt=0.5)] = 0.0


class DpoTrainer:
    """One training.

    Example:
        with trainer(lambda: load_model(folder, "float32"), settings, *split_pairs(pairs, 0.1)) as training:
            training.run(print)
            weights = dict(training.weights())
    """

    def __init__(
        self,
        policy: ShardedPolicy,
        reference: FrozenPolicy,
        settings: DpoTraining,
        train: Sequence[EncodedPair],
        held_out: Sequence[EncodedPair],
    ) -> None:
        self._policy = policy
        self._reference = reference
        self._beta = settings.beta
        self._max_tokens = longest_pack([*train, *held_out])
        self._held_out = pack_pairs(answer_rows(held_out), self._max_tokens)
        smoothing = settings.label_smoothing
        objective = partial(dpo_loss, reference=reference, beta=settings.beta, label_smoothing=smoothing)
        self._backend = FsdpBackend(policy, objective, settings.optimizer(), settings.steps)
        self._run = PairRun(settings, train, self._update, self._evaluate)

    def run(self, report: Callable[[PairProgress], None]) -> PairProgress:
        """All steps; `report` sees every look, of which the last is returned. Raises NonFiniteError."""
        return self._run.run(report)

    def weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Whole float32 weights by their Hugging Face names."""
        return self._policy.iter_hf_weights()

    def _update(self, pairs: Sequence[EncodedPair]) -> float:
        total = Denominators(2 * len(pairs), 2 * len(pairs))
        return self._backend.step(pack_pairs(answer_rows(pairs), self._max_tokens), total)["loss/policy"]

    def _evaluate(self) -> tuple[torch.Tensor, torch.Tensor]:
        parts = [implicit_rewards(self._policy.module, one, self._reference, self._beta) for one in self._held_out]
        return compare(torch.cat(parts))


@contextmanager
def trainer(
    load: Callable[[], PreTrainedModel],
    settings: DpoTraining,
    train: Sequence[EncodedPair],
    held_out: Sequence[EncodedPair],
) -> Iterator[DpoTrainer]:
    """A trainer of the model that `load` gives, called twice: the second one is the reference. See `one_rank`. Raises
    ConfigError for a model that cannot be packed."""
    with one_rank(settings.threads) as group:
        policy, reference = ShardedPolicy(load(), group, torch.float32), FrozenPolicy(load, group, torch.float32)
        yield DpoTrainer(policy, reference, settings, train, held_out)
