"""How often a part may be started again before its death ends the run. Pure.

What kills a part each time is not bad luck, so deaths in a row are counted. A part is forgiven when it had come into
service and the run trained a step that it had not trained before: then it does work, and was killed. The first restart
comes at once; before each further one there is a pause, in which what is missing may come back.
"""

RESTARTS = 3
"""Restarts of one part in a row, after which its death ends the run."""


def back_off_s(number: int) -> float:
    """Seconds before a restart of this number, from 1: 0, 1, 2, 4 and so on."""
    return 2.0 ** (number - 2) if number > 1 else 0.0


class RestartBudget:
    """Deaths in a row, by the name of the part.

    Example:
        budget.served("rollout-0", newest_step)          # it is up
        number = budget.died("rollout-0", newest_step)   # None: that was once too often
    """

    def __init__(self, limit: int = RESTARTS) -> None:
        self.limit = limit
        self._deaths: dict[str, int] = {}
        self._served_at: dict[str, int] = {}

    def served(self, name: str, newest_step: int) -> None:
        """The part does its work from now on. newest_step: the highest step that the run ever trained."""
        self._served_at[name] = newest_step

    def excuse(self, name: str) -> None:
        """What killed the part each time was found and is gone: its deaths count no more."""
        self._deaths.pop(name, None)

    def died(self, name: str, newest_step: int) -> int | None:
        """The number of the restart that follows, from 1; None when there may be none."""
        served_at = self._served_at.pop(name, None)
        if served_at is not None and newest_step > served_at:
            self._deaths[name] = 0
        self._deaths[name] = self._deaths.get(name, 0) + 1
        return self._deaths[name] if self._deaths[name] <= self.limit else None
