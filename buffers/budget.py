"""The queue's bytes: reserved at their worst when a group is issued, trimmed to what its rows turn out to
take.

Guaranteed: a rollout that was admitted always finds room, since its worst case was set aside; so delivering
it never waits. Pure.
"""

from dataclasses import dataclass


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

    def trim(self, reserved: int, used: int) -> None:
        """Replace a part of a reservation by the bytes that a row takes."""
        self.reserved -= reserved
        self.held += used

    def free(self, reserved: int, held: int) -> None:
        """Give back what a group had, reserved and held."""
        self.reserved -= reserved
        self.held -= held
