"""The guard of learning from old rows: it warns, and then has the run pause, where weights leave few tokens. Pure."""

from typing import Final

from streamrl.config.learner_tables import AlgorithmConfig

PATIENCE: Final = 3
"""Steps in a row that the share is too low before the run pauses: one batch of old rows is no trend."""

_WHY: Final = (
    "the rows are too old, or engine and learner disagree: look at correction/lag_* and mismatch/kl, and lower "
    "learner.max_staleness or learner.optimizer.lr"
)


class ShareGuard:
    """Looks at `correction/effective_share` of each step, from 0 to 1.

    Example:
        guard = ShareGuard(config.learner.algorithm)
        notice = guard.look(step=7, share=0.4)
        if guard.pause:
            ...  # commit a checkpoint, end the run, and say `pause`
    """

    def __init__(self, algorithm: AlgorithmConfig) -> None:
        self._least = algorithm.least_effective_share
        self._pause_below = algorithm.pause_effective_share
        self._share = 1.0
        self._low_in_a_row = 0
        self.pause = ""
        """Why the run is to pause; "" while it is not."""

    def look(self, step: int, share: float) -> str:
        """What to tell of the step: one sentence each time that the share falls under `least_effective_share`, else
        ""."""
        before, self._share = self._share, share
        self._low_in_a_row = self._low_in_a_row + 1 if share < self._pause_below else 0
        if self._low_in_a_row >= PATIENCE and not self.pause:
            self.pause = (
                f"paused at step {step}: for {PATIENCE} steps the weights of its tokens were worth less than "
                f"learner.algorithm.pause_effective_share = {self._pause_below:g} of them, now {share:.0%}; {_WHY}, "
                "which takes a run of its own (`--fresh`). `streamrl up` goes on with this one from its checkpoint"
            )
        if share >= self._least or before < self._least:
            return ""
        return (
            f"step {step}: the weights of its tokens are worth {share:.0%} of them, under "
            f"learner.algorithm.least_effective_share = {self._least:g}; {_WHY}"
        )
