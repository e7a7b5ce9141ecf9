"""How many of the groups that came to an end were filtered (`learner.filter`), step by step. Pure."""

from typing import Any

from streamrl.algorithms.group_filter import FILTERED


class FilteredShare:
    """Example:
    share = shares.since_last(counts)       # counts: `QueueCounts` as plain values
    """

    def __init__(self) -> None:
        self._filtered = 0
        self._kept = 0

    def since_last(self, counts: dict[str, Any]) -> float:
        """The share of those since the last call that were filtered; 0.0 where none came to an end."""
        filtered = sum(counts["groups_dropped"].get(reason, 0) for reason in FILTERED)
        kept = sum(counts[f"groups_{state}"] for state in ("ready", "leased", "trained"))
        # A group that was kept and then lost with its node is not among them any more.
        more, others = filtered - self._filtered, max(0, kept - self._kept)
        self._filtered, self._kept = filtered, kept
        return more / (more + others) if more else 0.0
