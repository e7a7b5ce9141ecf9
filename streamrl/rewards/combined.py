"""Several rewards as one: their weighted sum.

Guarantees that each is kept as a component under its own name, that one which failed fails the whole with its name in
the reason, never as a 0, and that one which has no say on an item is left out of its sum.
"""

from collections.abc import Sequence

from streamrl.rewards.base import RewardItem, shorten
from streamrl.rewards.scorer import Scorer
from streamrl.types import Score, ScoreStatus


class CombinedScorer:
    """parts: by name, each with its weight."""

    def __init__(self, parts: dict[str, tuple[Scorer, float]]) -> None:
        self._parts = parts

    def score(self, items: Sequence[RewardItem]) -> list[Score]:
        """One score for each item, in order."""
        by_name = {name: scorer.verdicts(items) for name, (scorer, _) in self._parts.items()}
        return [self._sum({name: given[place] for name, given in by_name.items()}) for place in range(len(items))]

    def close(self) -> None:
        for scorer, _ in self._parts.values():
            scorer.close()

    def _sum(self, verdicts: dict[str, Score | None]) -> Score:
        total, components, infos = 0.0, {}, []
        for name, verdict in verdicts.items():
            if verdict is None:
                continue
            if verdict.status is not ScoreStatus.OK or verdict.reward is None:
                return Score.failed(shorten(f"{name}: {verdict.reason}"))
            total += self._parts[name][1] * verdict.reward
            components[name] = verdict.reward
            infos.append(verdict.info)
        if not components:
            return Score.failed("no reward function has a say on this completion: each returned None")
        return Score.ok(total, components, next(filter(None, infos), ""))
