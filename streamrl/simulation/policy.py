"""The decisions of the stream as the simulator asks for them; by default the product's own rules.

A variant, to compare or to show that it fails, overrides one method. A policy sees only
counts and candidates.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from streamrl.scheduling.staleness import Admission, Candidate, Late, late_groups, select_batch


class Counts(NamedTuple):
    """What admission may know. `lost` counts dropped groups; `learner_step` is the step the learner holds."""

    serving_step: int
    learner_step: int
    trained: int
    waiting: int
    running: int
    lost: int


class StreamPolicy:
    """`streamrl.scheduling.staleness` as it is."""

    def __init__(self, admission: Admission, late: Late = "wait") -> None:
        self.admission = admission
        self.late = late

    def capacity(self, counts: Counts) -> int:
        """Groups that the asking replica may start now."""
        return self.admission.capacity(
            serving_step=counts.serving_step,
            trained=counts.trained,
            waiting=counts.waiting,
            running=counts.running,
        )

    def select(self, step: int, ready: Sequence[Candidate], running: Iterable[Candidate]) -> list[int] | None:
        """The batch of `step`, or None: wait."""
        return select_batch(step, self.admission.groups_per_step, ready, running)

    def late_ones(self, step: int, ready: Sequence[Candidate], running: Iterable[Candidate]) -> list[int]:
        """Running groups to cancel so that the batch of `step` need not wait."""
        if self.late == "wait":
            return []
        return late_groups(step, self.admission.groups_per_step, ready, running)
