"""Events that a reader has not taken yet. Pure.

Guarantees: never more than `most` of them; of the kinds of which only the newest counts there is one at most; when
there are too many the oldest goes, whatever it is. So a reader that is slow loses what is past, and costs no memory.
"""

import itertools


class Backlog:
    """newest_only: kinds of which the newest counts.

    Example:
        backlog = Backlog(most=512, newest_only=frozenset({"status"}))
        backlog.add("status", b"...")
        backlog.take()
    """

    def __init__(self, most: int, newest_only: frozenset[str]) -> None:
        self._most = most
        self._newest_only = newest_only
        self._events: dict[str, bytes] = {}
        """By kind where only the newest counts, else by number; in the order in which they came."""
        self._numbers = itertools.count()

    def __len__(self) -> int:
        return len(self._events)

    def add(self, kind: str, event: bytes) -> None:
        key = kind if kind in self._newest_only else f"#{next(self._numbers)}"
        self._events.pop(key, None)
        if len(self._events) >= self._most:
            del self._events[next(iter(self._events))]
        self._events[key] = event

    def all(self) -> list[bytes]:
        """In order; they stay."""
        return list(self._events.values())

    def take(self) -> list[bytes]:
        """In order; they go."""
        events, self._events = self.all(), {}
        return events
