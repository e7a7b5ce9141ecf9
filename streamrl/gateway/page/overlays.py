"""What is known of each token of a rollout beside its log-prob, in the form in which the page is told it. Pure.

    targets of the row + what the learner kept of them  -->  entropy, mismatch, mask and advantage of each token

Where the learner kept nothing, what follows from the row alone is told, and never a guess.
"""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from streamrl.observability.token_figures import CLIPPED, REJECTED, TRUNCATED, RowFigures

DIGITS: Final = 6
"""Decimals of nats that are told: float32 has hardly more."""
_MASKS: Final = ((REJECTED, "rejected"), (CLIPPED, "clipped"), (TRUNCATED, "truncated"))
"""Of several flags the first counts."""


def overlay(
    sampled: Sequence[bool], targets: Sequence[bool], logprobs: Sequence[float], figures: RowFigures | None
) -> dict[str, Any]:
    """Lists have an entry for each token from the first sampled one on, null where there is none.

    sampled: whether the engine sampled it. targets: whether the learner predicts it. logprobs: of the engine. figures:
    of the targets; None where nothing is kept. Raises ValueError for figures of another number of targets.

    Returns `entropy` and `mismatch` (trainer log-prob minus the engine's), nats, null where nothing is kept; `mask`,
    spans of what became of the tokens; and, where it is kept, `advantage`, one number where all targets have the same.
    """
    if figures is None:
        return {"entropy": None, "mismatch": None, "mask": _spans(["sampled" if one else "given" for one in sampled])}
    if not len(figures.logprobs):
        left_out = _spans(["left_out" if one else "given" for one in sampled])
        return {"entropy": None, "mismatch": None, "mask": left_out}
    places = np.flatnonzero(targets)
    mismatches = figures.logprobs.astype(np.float64) - np.array(logprobs)[places]
    masks = ["left_out" if one else "given" for one in sampled]
    for place, flags in zip(places.tolist(), figures.flags.tolist(), strict=True):
        masks[place] = next((name for flag, name in _MASKS if flags & flag), "trained")
    return {
        "entropy": _spread(figures.entropies, places, len(sampled)),
        "mismatch": _spread(mismatches, places, len(sampled)),
        "mask": _spans(masks),
        "advantage": _advantage(figures, places, len(sampled)),
    }


def _advantage(figures: RowFigures, places: np.ndarray, count: int) -> float | list[float | None]:
    first = float(figures.advantages[0])
    if (figures.advantages == first).all():
        return round(first, DIGITS)
    return _spread(figures.advantages, places, count)


def _spread(values: np.ndarray, places: np.ndarray, count: int) -> list[float | None]:
    """The values at their places among `count` tokens."""
    spread: list[float | None] = [None] * count
    for place, value in zip(places.tolist(), np.asarray(values, np.float64).round(DIGITS).tolist(), strict=True):
        spread[place] = value
    return spread


def _spans(names: Sequence[str]) -> list[list[Any]]:
    """[start, name] of each stretch of equal names."""
    return [[place, name] for place, name in enumerate(names) if not place or names[place - 1] != name]
