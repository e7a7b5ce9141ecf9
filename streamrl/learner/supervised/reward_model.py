"""A reward model on packs of pairs: its scores, and Bradley-Terry as an objective of `FsdpBackend`.

Guarantees what `preferences` does: both answers of a pair are in one pack, and the losses of packs add up to the mean
over all pairs, however they are cut. Rows are those of `preference_pairs.pair_rows`, with one target each: the model's
value there is the score of the row.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch

from streamrl.algorithms.aggregation import Denominators
from streamrl.algorithms.supervised import bradley_terry
from streamrl.learner.batch.packing import PackedBatch
from streamrl.learner.model.value_model import ValueModel
from streamrl.learner.sums import Sums
from streamrl.learner.supervised.preference_pairs import EncodedPair, pair_rows
from streamrl.learner.supervised.preferences import pack_pairs


@dataclass(frozen=True, slots=True)
class PairSums(Sums):
    """added: float64 [4], sums over pairs: loss, count, those in which the chosen answer has the higher score (a tie
    counts one half), how much higher it is. greatest: float64 [1], the largest |score|."""

    loss_name: ClassVar[str] = "loss"

    def metrics(self) -> dict[str, float]:
        loss, count, agreed, distance = self.added.tolist()
        count = max(count, 1.0)
        facts = {"accuracy": agreed / count, "distance": distance / count, "score_abs_max": self.greatest.item()}
        return {self.loss_name: loss, **facts}


def reward_model_loss(
    model: ValueModel, pack: PackedBatch, total: Denominators, centre: float = 0.0
) -> tuple[torch.Tensor, PairSums]:
    """(loss, sums) of one pack of whole pairs: its part of the mean over the batch's pairs. See
    `supervised.bradley_terry`.

    pack: of `pack_scored`. total: counts over the whole batch, of which the rows are twice the pairs.
    """
    scores_R = model(pack)
    assert pack.outcomes is not None
    chosen_P, rejected_P = scores_R[::2], scores_R[1::2]
    margin_P = pack.outcomes[::2] - pack.outcomes[1::2]
    loss = bradley_terry(chosen_P, rejected_P, margin_P, centre).sum() / max(total.rows / 2, 1)
    return loss, _sums(loss.detach(), scores_R.detach())


def compare(scores_R: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(distance_P, agreed_P), float64 [P], of the scores of whole pairs, float32 [2 P]: how much higher that of the
    chosen answer is, and 1 where it is higher, one half where they are equal, 0 elsewhere."""
    distance_P = (scores_R[::2] - scores_R[1::2]).double()
    return distance_P, (distance_P > 0).double() + 0.5 * (distance_P == 0).double()


def _sums(loss: torch.Tensor, scores_R: torch.Tensor) -> PairSums:
    distance_P, agreed_P = compare(scores_R)
    counts = [loss.double(), distance_P.new_tensor(float(len(distance_P))), agreed_P.sum(), distance_P.sum()]
    greatest = scores_R.abs().max().double() if len(scores_R) else distance_P.new_zeros(())
    return PairSums(torch.stack(counts), greatest[None])


def pack_scored(pairs: Sequence[EncodedPair], max_tokens: int) -> list[PackedBatch]:
    """Packs of whole pairs, in order, each of at most `max_tokens`; `outcomes` has the rewards of `pair_rows`.

    Raises ConfigError for a pair that does not fit.
    """
    rows = pair_rows(pairs)
    rewards_N = torch.from_numpy(rows.rewards).float()
    packs, start = [], 0
    for one in pack_pairs(rows, max_tokens):
        end = start + one.num_targets
        packs.append(replace(one, outcomes=rewards_N[start:end]))
        start = end
    return packs
