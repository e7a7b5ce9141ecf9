"""What the episodes of a run come to from step to step, from the counters that its replicas tell. Pure."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

PREFIX: Final = "environment_"
"""Of the counters in a replica's status."""
PER_EPISODE: Final = ("turns", "tool_calls", "forks")


class EpisodeFigures:
    """Takes the status of the replicas as it comes, and gives the figures of the episodes that ended since then.

    Example:
        >>> figures = EpisodeFigures()
        >>> figures.take([{"name": "rollout-0", "environment_episodes": 4, "environment_turns": 10}])
        >>> figures.since()
        {'environment/episodes': 4, 'environment/turns': 2.5}
        >>> figures.since()
        {}
    """

    def __init__(self) -> None:
        self._known: dict[str, Mapping[str, int]] = {}
        self._new: Counter[str] = Counter()

    def take(self, replicas: Sequence[Mapping[str, Any]]) -> None:
        """Counters are of a process: one that is lower than before is of another one."""
        for replica in replicas:
            counts = {name.removeprefix(PREFIX): n for name, n in replica.items() if name.startswith(PREFIX)}
            known = self._known.get(replica["name"], {})
            anew = any(count < known.get(name, 0) for name, count in counts.items())
            for name, count in counts.items():
                self._new[name] += count - (0 if anew else known.get(name, 0))
            self._known[replica["name"]] = counts

    def since(self) -> dict[str, float]:
        """Of the episodes that ended since it was asked last: how many, the means of `PER_EPISODE`, and the sums of the
        other counters. Empty where none ended."""
        new, self._new = self._new, Counter()
        episodes = new.get("episodes", 0)
        if not episodes:
            self._new.update({name: count for name, count in new.items() if count})
            return {}
        return {
            f"environment/{name}": count / episodes if name in PER_EPISODE else count for name, count in new.items()
        }
