"""Trains a reward model on preference pairs, on one rank.

Guarantees what `pair_training` does. The head begins at zero, so before the first update every score is 0, the loss
ln 2 and the accuracy one half.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import torch
from transformers import PreTrainedModel

from streamrl.algorithms.aggregation import Denominators
from streamrl.config.schema.table import NonNegativeFloat
from streamrl.learner.batch.packing import PackedBatch
from streamrl.learner.fsdp import FsdpBackend
from streamrl.learner.model.value_model import HEAD, ShardedCritic, decoder_of
from streamrl.learner.supervised.pair_training import PairProgress, PairRun, PairTraining, longest_pack, one_rank
from streamrl.learner.supervised.preference_pairs import EncodedPair
from streamrl.learner.supervised.reward_model import compare, pack_scored, reward_model_loss


class RewardTraining(PairTraining, frozen=True):
    """Settings, as the options of `streamrl reward-model` have them."""

    centre: NonNegativeFloat = 0.0


class RewardTrainer:
    """One training.

    Example:
        with trainer(load_model(folder, "float32"), settings, *split_pairs(pairs, 0.1)) as training:
            training.run(print)
            weights = dict(training.weights())
    """

    def __init__(
        self,
        model: ShardedCritic,
        settings: RewardTraining,
        train: Sequence[EncodedPair],
        held_out: Sequence[EncodedPair],
    ) -> None:
        self._model = model
        self._max_tokens = longest_pack([*train, *held_out])
        self._held_out = pack_scored(held_out, self._max_tokens)
        objective = partial(reward_model_loss, centre=settings.centre)
        self._backend = FsdpBackend(model, objective, settings.optimizer(), settings.steps)
        self._run = PairRun(settings, train, self._update, lambda: compare(self.scores(self._held_out)))

    def run(self, report: Callable[[PairProgress], None]) -> PairProgress:
        """All steps; `report` sees every look, of which the last is returned. Raises NonFiniteError."""
        return self._run.run(report)

    def weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Whole float32 weights under the names of a Hugging Face sequence classifier."""
        for name, whole in self._model.iter_hf_weights():
            yield (name if name == HEAD else f"model.{name}"), whole

    @torch.no_grad()
    def scores(self, packs: Sequence[PackedBatch]) -> torch.Tensor:
        """float32 [R], of all rows of the packs."""
        return torch.cat([self._model.module(one) for one in packs])

    def _update(self, pairs: Sequence[EncodedPair]) -> float:
        total = Denominators(2 * len(pairs), 2 * len(pairs))
        return self._backend.step(pack_scored(pairs, self._max_tokens), total)["loss"]


@contextmanager
def trainer(
    model: PreTrainedModel,
    settings: RewardTraining,
    train: Sequence[EncodedPair],
    held_out: Sequence[EncodedPair],
) -> Iterator[RewardTrainer]:
    """A trainer that begins with the decoder of `model`, which it takes over; see `one_rank`. Raises ConfigError for a
    model that cannot be packed."""
    with one_rank(settings.threads) as group:
        yield RewardTrainer(ShardedCritic(decoder_of(model), group, torch.float32), settings, train, held_out)
