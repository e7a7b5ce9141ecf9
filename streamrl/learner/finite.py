"""Finite or not at all: the gates that a number passes before it may change or leave the learner."""

import math
from collections.abc import Iterable, Mapping

import torch

from streamrl.errors import NonFiniteError
from streamrl.learner.batch.scored_batch import ScoredTokens, bad_score
from streamrl.learner.parallel.process_group import LearnerGroup


def require_finite(metrics: Mapping[str, float], where: str) -> None:
    """Raise NonFiniteError that names every value of an update which is NaN or infinite, and `where`."""
    bad = {name: value for name, value in metrics.items() if not math.isfinite(value)}
    if bad:
        found = ", ".join(f"{name} = {value}" for name, value in sorted(bad.items()))
        raise NonFiniteError(
            f"{where}: {found}; this update was not applied. A lower rate of its optimizer, or a look at the rewards "
            "and rollout log-probs of this batch, is the way on"
        )


def require_finite_tokens(judged: Iterable[ScoredTokens], group: LearnerGroup, what: str, way_out: str) -> None:
    """Collective, once for all of a step, before its first update: a rank that raised alone would leave the others
    waiting. Raise NonFiniteError, on every rank, for a number of a token that is not finite; the rank that has the row
    names it, its replica and the version that sampled it. what: such a number, with the step.
    """
    bad = next(filter(None, map(bad_score, judged)), "")
    if group.max_int(int(bool(bad))):
        where = bad or "another rank has the row, and names it"
        raise NonFiniteError(f"{what} is not finite: {where}; nothing of the step was applied. {way_out}")


def require_finite_weight(name: str, tensor: torch.Tensor) -> None:
    """Raise NonFiniteError when `tensor` holds a NaN or an infinity."""
    if not bool(torch.isfinite(tensor).all()):
        bad = int((~torch.isfinite(tensor)).sum())
        raise NonFiniteError(
            f"weight {name}: {bad} of {tensor.numel()} elements are not finite; it is not published. "
            "Resume from the last checkpoint with a lower learner.optimizer.lr"
        )
