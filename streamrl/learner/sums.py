"""The sums that a step's metrics are made of, over packs and ranks."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

import torch

from streamrl.learner.batch.token_facts import TokenFacts
from streamrl.learner.sources import PER_SOURCE, SOURCES, source_means

LAGS = 9
"""Ages that are counted apart: 0 to 7 steps, and all above."""

_PLAIN = 8
_PER_LAG = 5
_BY_SOURCE = _PLAIN + LAGS * _PER_LAG


@dataclass(frozen=True, slots=True)
class Sums:
    """What adds up over packs and ranks.

    added: float64 [8 + 9 * 5 + 64 * 5], sums over targets: loss, count, entropy, ratio, clipped, kl, reference kl,
    count of those that have one; then for each age count, weight, squared weight, truncated, rejected; then for each
    source as `by_source`. greatest: float64 [1], the largest |trainer - rollout| log-prob.
    """

    added: torch.Tensor
    greatest: torch.Tensor
    loss_name: ClassVar[str] = "loss/policy"
    """What the first of the sums is called among the metrics."""
    num_added: ClassVar[int] = _BY_SOURCE + PER_SOURCE * SOURCES

    def plus(self, other: Self) -> Self:
        return type(self)(self.added + other.added, torch.maximum(self.greatest, other.greatest))

    @classmethod
    def zero(cls, device: torch.device) -> Self:
        """Of no pack."""
        zeros = torch.zeros(cls.num_added + 1, dtype=torch.float64, device=device)
        return cls(zeros[:-1], zeros[-1:])

    def metrics(self) -> dict[str, float]:
        """The batch's means, under the names of `metrics.jsonl`. Call it on sums over everything."""
        loss, count, entropy, ratio, clipped, kl, reference_kl, referred = self.added[:_PLAIN].tolist()
        count = max(count, 1.0)
        metrics = {
            "loss/policy": loss,
            "loss/entropy": entropy / count,
            "ratio/mean": ratio / count,
            "ratio/clip_fraction": clipped / count,
            "mismatch/kl": kl / count,
            "mismatch/logprob_abs_max": self.greatest.item(),
        }
        if referred:
            metrics["loss/kl"] = reference_kl / referred
        corrections = self._corrections()
        return metrics | source_means(self.added[_BY_SOURCE:], corrected=bool(corrections)) | corrections

    def _corrections(self) -> dict[str, float]:
        """Weights and rejections, over all targets and by age; nothing where no target has a weight."""
        lags = self.added[_PLAIN:_BY_SOURCE].reshape(LAGS, _PER_LAG)
        count, weight, squares, truncated, rejected = lags.sum(0).tolist()
        if not count:
            return {}
        found = {
            "correction/weight_mean": weight / count,
            "correction/truncated": truncated / count,
            "correction/rejected": rejected / count,
            "correction/effective_share": weight**2 / (count * squares) if squares else 0.0,
        }
        for lag, (count, weight, _, truncated, rejected) in enumerate(lags.tolist()):
            if count:
                name = f"correction/lag_{lag}{'_up' if lag == LAGS - 1 else ''}"
                found[f"{name}/tokens"] = count
                found[f"{name}/weight_mean"] = weight / count
                found[f"{name}/truncated"] = truncated / count
                found[f"{name}/rejected"] = rejected / count
        return found


def mean_over_updates(updates: Sequence[Sums], epochs: int) -> dict[str, float]:
    """The metrics of a step, from each update's sums over its mini-batch: means over all tokens as often as they were
    trained on, counts of tokens once, the loss as the mean over the updates."""
    added = updates[0].added
    greatest = updates[0].greatest
    for update in updates[1:]:
        added, greatest = added + update.added, torch.maximum(greatest, update.greatest)
    kind = type(updates[0])
    return {**kind(added / epochs, greatest).metrics(), kind.loss_name: added[0].item() / len(updates)}


def nothing_done() -> dict[str, float]:
    """The metrics of a step that makes no update."""
    return dict.fromkeys(("loss/policy", "grad/norm", "learner/lr", "time/forward_backward", "time/optimizer"), 0.0)


def by_lag(facts: TokenFacts) -> torch.Tensor:
    """float64 [9 * 5], the part of `Sums.added` that is by age. As a product, since a scatter on a GPU has no order."""
    lag_K = facts.lags.clamp(0, LAGS - 1).long()
    member_KL = (lag_K[:, None] == torch.arange(LAGS, device=lag_K.device)).double()
    weights_K = facts.weights.double()
    columns = (torch.ones_like(weights_K), weights_K, weights_K**2, facts.truncated.double(), facts.rejected.double())
    return (member_KL.T @ torch.stack(columns, 1)).reshape(-1)
