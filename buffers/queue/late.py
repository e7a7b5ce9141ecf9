"""What becomes of running groups that the next batch could not wait for: dropped for good, or generated again. Pure."""

from typing import Final, Literal

from streamrl.buffers.index.replay_index import ReplayIndex
from streamrl.buffers.ledger.records import Dropped, Withdrawn

LATE: Final = "late"
"""Reason of a group that was dropped because the next batch could not wait for it (`late = "drop"`)."""


def give_up(
    index: ReplayIndex, how: Literal["wait", "drop", "reissue"], numbers: list[int], step: int
) -> Dropped | Withdrawn:
    """Take late groups out of the way of the batch of `step`; the record that says so."""
    if how == "drop":
        for number in numbers:
            index.drop(number, LATE)
        return Dropped(numbers, LATE)
    for number in numbers:
        index.withdraw(number, step)
    return Withdrawn(numbers, step)
