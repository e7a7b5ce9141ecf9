"""The books of a stream: where every issued group is, at every moment.

Guaranteed: issued = running + waiting + trained + dropped(reason), after every entry; an entry that would
move a group from where it is not raises. It knows nothing of time, staleness or replicas.
"""

from collections import Counter
from enum import StrEnum

from streamrl.errors import ComponentError


class Place(StrEnum):
    """Where a group is. DROPPED has a reason beside it."""

    RUNNING = "running"
    WAITING = "waiting"
    TRAINED = "trained"
    DROPPED = "dropped"


class GroupBook:
    """One entry for each attempt at a group, named by a serial number of the caller's.

    Example:
        >>> book = GroupBook()
        >>> book.issue(0)
        >>> book.move(0, Place.RUNNING, Place.WAITING)
        >>> book.drop(0, Place.WAITING, "filtered")
        >>> book.issued, book.count(Place.DROPPED), dict(book.dropped)
        (1, 1, {'filtered': 1})
    """

    def __init__(self) -> None:
        self.issued = 0
        self.dropped: Counter[str] = Counter()
        self._places: dict[int, Place] = {}
        self._counts: Counter[Place] = Counter()

    def count(self, place: Place) -> int:
        """Groups that are at `place` now."""
        return self._counts[place]

    def issue(self, serial: int) -> None:
        """Enter a new attempt as running.

        Raises:
            ComponentError: the serial number was issued before.
        """
        if serial in self._places:
            raise ComponentError(f"group book: {serial} is issued twice; it is {self._places[serial]} already")
        self._places[serial] = Place.RUNNING
        self._counts[Place.RUNNING] += 1
        self.issued += 1

    def move(self, serial: int, source: Place, target: Place) -> None:
        """Move an attempt from one place to the next.

        Raises:
            ComponentError: it is not at `source`.
        """
        actual = self._places.get(serial)
        if actual is not source:
            raise ComponentError(
                f"group book: {serial} cannot go from {source} to {target}; it is {actual or 'unknown'}"
            )
        self._places[serial] = target
        self._counts[source] -= 1
        self._counts[target] += 1

    def drop(self, serial: int, source: Place, reason: str) -> None:
        """Move an attempt out of the stream, itemised by `reason`."""
        self.move(serial, source, Place.DROPPED)
        self.dropped[reason] += 1

    def check_closed(self) -> None:
        """Check that the books are closed (invariant 11); O(1).

        Raises:
            ComponentError: they are not.
        """
        counts = {place: self._counts[place] for place in Place}
        total = sum(counts.values())
        itemised = self.dropped.total()
        if not (self.issued == total == len(self._places)) or counts[Place.DROPPED] != itemised:
            raise ComponentError(
                f"group book: not closed: issued {self.issued}, entries {len(self._places)}, "
                f"by place {counts}, dropped by reason {dict(self.dropped)}"
            )
