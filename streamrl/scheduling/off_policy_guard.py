"""The guard of learning from rows that are far from the policy: it warns, and then has the run pause, where weights
leave few tokens, or where engine and learner are far apart. Pure.

The first looks at how unequal weights are, so it does not see what all of them have in common: an engine whose every
log-prob is off by the same, or weights that all lie at their cap. The second sees that too, and whatever the weights.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import inf
from operator import gt, lt
from typing import Final

from streamrl.config.schema.algorithm import AlgorithmConfig

PATIENCE: Final = 3
"""Steps in a row that a number is beyond its bound before the run pauses: one batch of old rows is no trend."""

_WHY: Final = (
    "the rows are too old, or engine and learner disagree: look at correction/lag_* and at mismatch/kl of each "
    "replica, and lower learner.max_staleness or learner.optimizer.lr"
)


class ShareGuard:
    """Looks at `correction/effective_share`, from 0 to 1, and at `mismatch/kl`, in nats, of each step.

    Example:
        guard = ShareGuard(config.learner.algorithm)
        notice = guard.check(step=7, metrics={"correction/effective_share": 0.4, "mismatch/kl": 0.02})
        if guard.pause:
            ...  # commit a checkpoint, end the run, and say `pause`
    """

    def __init__(self, algorithm: AlgorithmConfig) -> None:
        self._watched = [
            _Watched(
                metric="correction/effective_share",
                called="the share of its tokens that their weights are worth",
                absent=1.0,
                beyond=lt,
                side="under",
                warning=("least_effective_share", algorithm.least_effective_share),
                pausing=("pause_effective_share", algorithm.pause_effective_share),
            ),
            _Watched(
                metric="mismatch/kl",
                called="the distance of engine and learner in nats",
                absent=0.0,
                beyond=gt,
                side="over",
                warning=("most_mismatch_kl", algorithm.most_mismatch_kl or inf),
                pausing=("pause_mismatch_kl", algorithm.pause_mismatch_kl or inf),
            ),
        ]
        self.pause = ""
        """Why the run is to pause; "" while it is not."""

    def check(self, step: int, metrics: Mapping[str, float]) -> str:
        """What to tell of the step: a sentence for each number that passes its bound and did not in the step before,
        else "". metrics: of the step; a number that is not there is a good one."""
        told = [one.check(step, metrics) for one in self._watched]
        self.pause = self.pause or next((one.pause for one in self._watched if one.pause), "")
        return "; ".join(filter(None, told))


@dataclass(slots=True)
class _Watched:
    """One number. absent: what it is taken for in a step without it. beyond: whether it (first) is on the bad side of a
    bound. warning, pausing: the key of `learner.algorithm` and its bound."""

    metric: str
    called: str
    absent: float
    beyond: Callable[[float, float], bool]
    side: str
    warning: tuple[str, float]
    pausing: tuple[str, float]
    was_beyond: bool = False
    in_a_row: int = 0
    pause: str = ""

    def check(self, step: int, metrics: Mapping[str, float]) -> str:
        value = metrics.get(self.metric, self.absent)
        (key, bound), (pause_key, pause_bound) = self.warning, self.pausing
        what = f"{self.called} ({self.metric})"
        self.in_a_row = self.in_a_row + 1 if self.beyond(value, pause_bound) else 0
        if self.in_a_row == PATIENCE:
            self.pause = (
                f"paused at step {step}: for {PATIENCE} steps {what} was {self.side} learner.algorithm.{pause_key} = "
                f"{pause_bound:g}, now {value:.3g}; {_WHY}, which takes a run of its own (`--fresh`). `streamrl up` "
                "goes on with this one from its checkpoint"
            )
        was, self.was_beyond = self.was_beyond, self.beyond(value, bound)
        if was or not self.was_beyond:
            return ""
        return f"step {step}: {what} is {value:.3g}, {self.side} learner.algorithm.{key} = {bound:g}; {_WHY}"
