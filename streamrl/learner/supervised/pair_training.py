"""The loop of a training on preference pairs, on one rank: what a reward model and `dpo` have in common.

Guarantees: the same seed, pairs, settings and number of threads give the same weights to the bit; what is held out is
never trained on, and looked at before the first step, every `eval_every` and behind the last. Knows nothing of files
but the one that holds the process group's meeting.
"""

import math
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, NamedTuple

import numpy as np
import torch
from msgspec import Meta

from streamrl.config.schema.learner import OptimizerConfig
from streamrl.config.schema.table import NonNegative, Positive, PositiveFloat, Table
from streamrl.learner.parallel.process_group import LearnerGroup, open_group
from streamrl.learner.supervised.preference_pairs import EncodedPair
from streamrl.learner.supervised.warmup import batch_items

MICRO_BATCH_TOKENS = 8192
"""Tokens of one forward and backward, or those of the longest pair."""


class PairTraining(Table, frozen=True):
    """Settings, as the options of the commands have them."""

    steps: Positive = 200
    batch_size: Positive = 64
    lr: PositiveFloat = 1e-5
    held_out: Annotated[float, Meta(gt=0.0, lt=1.0)] = 0.1
    eval_every: Positive = 20
    seed: NonNegative = 0
    threads: Positive = 1

    def optimizer(self) -> OptimizerConfig:
        """A short warm-up, and a linear decay to the last step."""
        return OptimizerConfig(lr=self.lr, warmup_steps=min(10, self.steps), decay="linear")


class PairProgress(NamedTuple):
    """A look at what is held out: the step (0 is before the first), the mean loss of the steps since the look before
    (NaN at step 0), the share of held-out pairs whose chosen answer is the higher one, by how much on average."""

    step: int
    loss: float
    accuracy: float
    distance: float


class PairRun:
    """One training. update: one step on some pairs, of which it gives the loss. look: of what is held out, by how much
    each chosen answer is the higher one, and 1, one half (a tie) or 0, float64 [P] both."""

    def __init__(
        self,
        settings: PairTraining,
        train: Sequence[EncodedPair],
        update: Callable[[Sequence[EncodedPair]], float],
        look: Callable[[], tuple[torch.Tensor, torch.Tensor]],
    ) -> None:
        self._settings = settings
        self._train = train
        self._update = update
        self._look_at = look

    def run(self, report: Callable[[PairProgress], None]) -> PairProgress:
        """All steps; `report` sees every look, of which the last is returned. Raises NonFiniteError."""
        settings, losses = self._settings, list[float]()
        progress = self._evaluate(0, losses)
        report(progress)
        order = batch_items(np.arange(len(self._train)), settings.batch_size, settings.seed)
        for step in range(1, settings.steps + 1):
            losses.append(self._update([self._train[index] for index in next(order)]))
            if step % settings.eval_every == 0 or step == settings.steps:
                progress = self._evaluate(step, losses)
                report(progress)
                losses = []
        return progress

    def _evaluate(self, step: int, losses: Sequence[float]) -> PairProgress:
        distance_P, agreed_P = self._look_at()
        loss = sum(losses) / len(losses) if losses else math.nan
        return PairProgress(step, loss, agreed_P.mean().item(), distance_P.mean().item())


def longest_pack(pairs: Sequence[EncodedPair]) -> int:
    """Tokens that a pack may have. A token more for each row: where a score is read."""
    return max(MICRO_BATCH_TOKENS, *(2 * pair.num_tokens + 2 for pair in pairs))


@contextmanager
def one_rank(threads: int) -> Iterator[LearnerGroup]:
    """This process is a group of one rank meanwhile, and computes with so many threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    with tempfile.TemporaryDirectory(prefix="srl-pairs-") as folder:
        group = open_group(0, 1, Path(folder) / "store", device=torch.device("cpu"))
        try:
            yield group
        finally:
            group.close()
            torch.set_num_threads(before)
