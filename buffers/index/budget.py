"""The queue's bytes: reserved at their worst when a group is issued, trimmed to what its rows turn out to
take.

Guaranteed: a rollout that was admitted always finds room, since its worst case was set aside; so delivering
it never waits. Pure.
"""

from dataclasses import dataclass
from typing import Final

EARLY_SHARE: Final = 0.7
"""Of the limit, held by rows that only a checkpoint lets go: one is taken before its time then."""


@dataclass(slots=True)
class ByteBudget:
    """limit: bytes in all. reserved: for rollouts that run. held: by rows that no checkpoint covers yet."""

    limit: int
    reserved: int = 0
    held: int = 0

    def fits(self, num_bytes: int) -> int:
        """How many reservations of `num_bytes` there is room for."""
        return max(0, (self.limit - self.reserved - self.held) // num_bytes)

    def reserve(self, num_bytes: int) -> None:
        self.reserved += num_bytes

    def wants_checkpoint(self, trained: int, step_bytes: int) -> bool:
        """Whether a checkpoint should cover the `trained` bytes now, those held by trained rows.

        At 70% of the limit; earlier where the rest could not hold a step of `step_bytes`, for which the learner would
        wait for ever.
        """
        return trained > min(EARLY_SHARE * self.limit, self.limit - step_bytes)

    def trim(self, reserved: int, used: int) -> None:
        """Replace a part of a reservation by the bytes that a row takes."""
        self.reserved -= reserved
        self.held += used

    def free(self, reserved: int, held: int) -> None:
        """Give back what a group had, reserved and held."""
        self.reserved -= reserved
        self.held -= held
