"""A list of events that readers follow: each reads from where it stands, and waits at the end."""

import asyncio
import time
from typing import Any

Event = dict[str, Any]

KEPT = 10_000
"""Events kept for a reader that comes late; older ones are in the run folder."""


class EventLog:
    """Numbered events. One event loop uses it.

    Example:
        log.add({"kind": "phase", "name": "warmup"})
        events = await log.after(0)
    """

    def __init__(self) -> None:
        self._events: list[Event] = []
        self._first = 0
        self._changed = asyncio.Event()
        self._closed = False

    def add(self, event: Event) -> None:
        """Append, with the wall clock in `time_ns`."""
        self._events.append({**event, "time_ns": time.time_ns()})
        if len(self._events) > KEPT:
            self._first += KEPT // 2
            del self._events[: KEPT // 2]
        self._wake()

    def close(self) -> None:
        """Tell every reader that there will be no more."""
        self._closed = True
        self._wake()

    async def after(self, number: int) -> tuple[int, list[Event]]:
        """(number to ask for next, events from `number` on). Waits for one; no events: the log is closed."""
        while number >= self._first + len(self._events) and not self._closed:
            await self._changed.wait()
        start = max(number, self._first)
        events = self._events[start - self._first :]
        return start + len(events), events

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
