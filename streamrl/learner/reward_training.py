"""Trains a reward model on preference pairs, on one rank.

Guarantees: the same seed, pairs, settings and number of threads give the same weights to the bit; what is held out is
never trained on. The head begins at zero, so before the first update every score is 0, the loss ln 2 and the accuracy
one half. Knows nothing of files but the one that holds the process group's meeting.
"""

import math
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated, NamedTuple

import numpy as np
import torch
from msgspec import Meta
from transformers import PreTrainedModel

from streamrl.algorithms.aggregation import Denominators
from streamrl.config.learner_tables import OptimizerConfig
from streamrl.config.table import NonNegative, NonNegativeFloat, Positive, PositiveFloat, Table
from streamrl.learner.fsdp import FsdpBackend
from streamrl.learner.packing import PackedBatch
from streamrl.learner.preference_pairs import EncodedPair
from streamrl.learner.process_group import open_group
from streamrl.learner.reward_model import compare, pack_scored, reward_model_loss
from streamrl.learner.value_model import HEAD, ShardedCritic, decoder_of
from streamrl.learner.warmup import batch_items

MICRO_BATCH_TOKENS = 8192
"""Tokens of one forward and backward, or those of the longest pair."""


class RewardTraining(Table, frozen=True):
    """Settings, as the options of `streamrl reward-model` have them."""

    steps: Positive = 200
    batch_size: Positive = 64
    lr: PositiveFloat = 1e-5
    held_out: Annotated[float, Meta(gt=0.0, lt=1.0)] = 0.1
    eval_every: Positive = 20
    centre: NonNegativeFloat = 0.0
    seed: NonNegative = 0
    threads: Positive = 1


class RewardProgress(NamedTuple):
    """A look at what is held out: the step (0 is before the first), the mean loss of the steps since the look before
    (NaN at step 0), the share of held-out pairs whose chosen answer has the higher score, by how much on average."""

    step: int
    loss: float
    accuracy: float
    distance: float


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
        self._settings = settings
        self._train = train
        # A token more for each row: where its score is read.
        self._max_tokens = max(MICRO_BATCH_TOKENS, *(2 * pair.num_tokens + 2 for pair in [*train, *held_out]))
        self._held_out = pack_scored(held_out, self._max_tokens)
        optimizer = OptimizerConfig(lr=settings.lr, warmup_steps=min(10, settings.steps), decay="linear")
        objective = partial(reward_model_loss, centre=settings.centre)
        self._backend = FsdpBackend(model, objective, optimizer, settings.steps)

    def run(self, report: Callable[[RewardProgress], None]) -> RewardProgress:
        """All steps; `report` sees every look, of which the last is returned. Raises NonFiniteError."""
        settings, losses = self._settings, list[float]()
        progress = self._look(0, losses)
        report(progress)
        order = batch_items(np.arange(len(self._train)), settings.batch_size, settings.seed)
        for step in range(1, settings.steps + 1):
            pairs = [self._train[index] for index in next(order)]
            total = Denominators(2 * len(pairs), 2 * len(pairs))
            losses.append(self._backend.step(pack_scored(pairs, self._max_tokens), total)["loss"])
            if step % settings.eval_every == 0 or step == settings.steps:
                progress = self._look(step, losses)
                report(progress)
                losses = []
        return progress

    def weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Whole float32 weights under the names of a Hugging Face sequence classifier."""
        for name, whole in self._model.iter_hf_weights():
            yield (name if name == HEAD else f"model.{name}"), whole

    @torch.no_grad()
    def scores(self, packs: Sequence[PackedBatch]) -> torch.Tensor:
        """float32 [R], of all rows of the packs."""
        return torch.cat([self._model.module(one) for one in packs])

    def _look(self, step: int, losses: Sequence[float]) -> RewardProgress:
        scores_R = self.scores(self._held_out)
        distance_P, agreed_P = compare(scores_R)
        loss = sum(losses) / len(losses) if losses else math.nan
        return RewardProgress(step, loss, agreed_P.mean().item(), distance_P.mean().item())


@contextmanager
def trainer(
    model: PreTrainedModel,
    settings: RewardTraining,
    train: Sequence[EncodedPair],
    held_out: Sequence[EncodedPair],
) -> Iterator[RewardTrainer]:
    """A trainer that begins with the decoder of `model`, which it takes over; this process is a group of one rank
    meanwhile, and computes with `settings.threads` threads. Raises ConfigError for a model that cannot be packed."""
    threads = torch.get_num_threads()
    torch.set_num_threads(settings.threads)
    with tempfile.TemporaryDirectory(prefix="srl-reward-model-") as folder:
        group = open_group(0, 1, Path(folder) / "store", device=torch.device("cpu"))
        try:
            sharded = ShardedCritic(decoder_of(model), group, torch.float32)
            yield RewardTrainer(sharded, settings, train, held_out)
        finally:
            group.close()
            torch.set_num_threads(threads)
