"""The score of a reward model, alone or added to that of a rule.

Guarantees one score for each item, in order, and that a failure of either is a failure of the item, with the reason,
the rule's first. Both parts are kept as components: the model's as `reward_model`, the rule's as `rule`, or by names
that it gives itself.
"""

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from streamrl.config.known import REWARD_MODEL
from streamrl.errors import StreamRLError
from streamrl.rewards.base import RewardItem, to_score
from streamrl.rewards.combined import CombinedScorer
from streamrl.rewards.scorer import Scorer
from streamrl.types import IntArray, Score, ScoreStatus

TOTAL = "reward"
"""The component that is the reward itself."""
RULE = "rule"
"""The component of a rule that gives one number."""


class ScoresRows(Protocol):
    """What `streamrl.rewards.model.RewardModel` offers."""

    def score(self, rows: Sequence[IntArray]) -> list[float | StreamRLError]: ...


class WeightedScorer:
    """`rule + weight * model`, or `weight * model` without a rule."""

    def __init__(self, model: ScoresRows, weight: float, rule: Scorer | CombinedScorer | None = None) -> None:
        self._model = model
        self._weight = weight
        self._rule = rule

    def score(self, items: Sequence[RewardItem]) -> list[Score]:
        """One score for each item, in order."""
        verdicts = [Score.ok(0.0) for _ in items] if self._rule is None else self._rule.score(items)
        scores = self._model.score([_row(item) for item in items])
        return [self._added(verdict, score) for verdict, score in zip(verdicts, scores, strict=True)]

    def close(self) -> None:
        if self._rule is not None:
            self._rule.close()

    def _added(self, verdict: Score, score: float | StreamRLError) -> Score:
        if verdict.status is not ScoreStatus.OK:
            return verdict
        if isinstance(score, StreamRLError):
            return to_score(score)
        parts = self._parts(verdict)
        if REWARD_MODEL in parts:
            return Score.failed(f"component {REWARD_MODEL!r} is the reward model's; give yours another name")
        total = (verdict.reward or 0.0) + self._weight * score
        return to_score({**parts, REWARD_MODEL: score, TOTAL: total})

    def _parts(self, verdict: Score) -> dict[str, float]:
        """The rule's components."""
        if self._rule is None:
            return {}
        given = {name: value for name, value in verdict.components.items() if name != TOTAL}
        return given or {RULE: verdict.reward or 0.0}


def _row(item: RewardItem) -> IntArray:
    """int32 [n], the tokens of prompt and completion."""
    return np.frombuffer(item.prompt_ids + item.token_ids, dtype="<i4")
