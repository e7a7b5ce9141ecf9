"""How many episodes may fail before a run stops. Pure."""

from collections import deque

from streamrl.errors import ComponentError


class FailureBudget:
    """Stops a run whose environment fails: looks at the newest `window` episodes, once there are so many. limit: the
    share of failures that is too much. name: of the environment.

    Example:
        budget = FailureBudget("my_game:Game", window=256, limit=0.2)
        budget.add("")
        budget.add("my_game:Game.step gave no answer in 30 s")
    """

    def __init__(self, name: str, window: int, limit: float) -> None:
        self._name = name
        self._limit = limit
        self._recent: deque[str] = deque(maxlen=window)

    def add(self, failure: str) -> None:
        """Of an episode that ended: why it failed, "" where it did not. Raises ComponentError when more than the limit
        failed, with the newest reason."""
        self._recent.append(failure)
        failed = [one for one in self._recent if one]
        window = self._recent.maxlen or 0
        if len(self._recent) == window and len(failed) > self._limit * window:
            raise ComponentError(
                f"environment {self._name!r}: {len(failed)} of the last {window} episodes failed, more than "
                f"reward.max_failed = {self._limit:g} allows; the last: {failed[-1]}"
            )
