"""Trajectories that clients made and scored, and what became of each. Pure.

    WAITING -> GATHERED       enough of one group's name are there: they are a group of the training
          \\-> DECLINED       with a reason: no group will be made of it

Guaranteed: a key names one trajectory for ever; those of a name are gathered in the order in which they came, each
once. What was said of one that waits is kept; of one that does not, where it went.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

import msgspec
import numpy as np

from streamrl.buffers.ledger.records import Offered
from streamrl.buffers.rows.records import ACCEPTED, Records, unpack
from streamrl.errors import DataError


class OfferState(StrEnum):
    """Where an offered trajectory is."""

    WAITING = "waiting"
    GATHERED = "gathered"
    DECLINED = "declined"


class Standing(msgspec.Struct, frozen=True, array_like=True):
    """What became of an offered trajectory. group: its group's number, -1 without one. waiting: how many of its group's
    name wait, itself among them. digest: of what was said of it. reason: of one that was declined."""

    item: int
    state: OfferState
    group: int
    waiting: int
    digest: int
    reason: str = ""


@dataclass(slots=True)
class _Offer:
    name: str
    digest: int
    state: OfferState = OfferState.WAITING
    group: int = -1
    reason: str = ""


class OfferedTrajectories:
    """See the module.

    Example:
        offered = OfferedTrajectories()
        item = offered.add(Offered("task-17", "a", ...))
        for items in offered.full(group_size): ...
    """

    def __init__(self) -> None:
        self._offers: list[_Offer] = []
        self._by_key: dict[str, int] = {}
        self._told: dict[int, Offered] = {}
        """Of those that wait, in the order in which they came."""
        self._waiting: dict[str, list[int]] = {}
        self._arrived: dict[str, int] = {}
        self.waiting_bytes = 0
        """Of the rows and verdicts of those that wait."""

    def __len__(self) -> int:
        return len(self._offers)

    @property
    def num_waiting(self) -> int:
        return len(self._told)

    def add(self, told: Offered) -> int:
        """Take one whose key is a new one; its number."""
        item = self._by_key[told.key] = len(self._offers)
        self._offers.append(_Offer(told.group, told.digest))
        self._told[item] = told
        self._waiting.setdefault(told.group, []).append(item)
        self._arrived[told.group] = self.arrived(told.group) + 1
        self.waiting_bytes += num_bytes(told)
        return item

    def arrived(self, name: str) -> int:
        """How many of this name ever came."""
        return self._arrived.get(name, 0)

    def of_key(self, key: str) -> Standing | None:
        """None for one that nobody offered."""
        item = self._by_key.get(key)
        return None if item is None else self.standing(item)

    def standing(self, item: int) -> Standing:
        one = self._offers[item]
        waiting = len(self._waiting.get(one.name, ()))
        return Standing(item, one.state, one.group, waiting, one.digest, one.reason)

    def told(self, item: int) -> Offered:
        """What was said of one that waits. Raises DataError for one that does not."""
        if item not in self._told:
            raise DataError(f"trajectory {item} does not wait; there are {len(self)}")
        return self._told[item]

    def waiting(self) -> Iterator[tuple[int, Offered]]:
        """(number, what was said) of those that wait, in the order in which they came."""
        return iter(list(self._told.items()))

    def full(self, group_size: int) -> list[list[int]]:
        """The names of which enough wait: of each the first `group_size`, the name that was full first in front."""
        found = [items[:group_size] for items in self._waiting.values() if len(items) >= group_size]
        return sorted(found, key=lambda items: items[-1])

    def gathered(self, items: Sequence[int], group: int) -> None:
        """They are the samples of a group now."""
        for item in items:
            self._leave(item)
            self._offers[item].state, self._offers[item].group = OfferState.GATHERED, group

    def declined(self, items: Sequence[int], reason: str) -> None:
        for item in items:
            self._leave(item)
            self._offers[item].state, self._offers[item].reason = OfferState.DECLINED, reason

    def _leave(self, item: int) -> None:
        told = self.told(item)
        del self._told[item]
        self.waiting_bytes -= num_bytes(told)
        self._waiting[told.group].remove(item)
        if not self._waiting[told.group]:
            del self._waiting[told.group]


def num_bytes(told: Offered) -> int:
    """Of its rows and its verdicts, in their logs."""
    return told.frame.length + told.score_frame.length


def rows_of(told: Offered) -> Records:
    """Its branches, type ACCEPTED."""
    return unpack(ACCEPTED, told.rows)


def oldest_step(rows: Records) -> int:
    """The lowest step that sampled into any of these rows, type ACCEPTED; -1 where none did."""
    steps = rows["oldest_step"][rows["oldest_step"] >= 0]
    return int(np.min(steps)) if len(steps) else -1
