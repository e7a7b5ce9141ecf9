"""What a part tells the controller: in the order in which it happened, each thing once.

    part  --tell-->  what is untold  --one call under way at a time-->  controller

An actor that runs coroutines may start two calls of one caller in either order, so a second call leaves only when the
first came back; what is told meanwhile goes with it.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

Event = tuple[str, Mapping[str, Any]]
"""Kind, facts."""


class EventSender:
    """Used in one event loop.

    Example:
        event_sender = EventSender(controller.report.remote)
        event_sender.send("step", {"step": 7})
        await event_sender.flush()
    """

    def __init__(self, deliver: Callable[[list[Event]], Awaitable[None]]) -> None:
        self._deliver = deliver
        self._unsent: list[Event] = []
        self._sending: asyncio.Task[None] | None = None

    def send(self, kind: str, facts: Mapping[str, Any]) -> None:
        """Never waits. Nothing more leaves once a delivery has failed; `flush` raises it."""
        self._unsent.append((kind, facts))
        if self._sending is None or (self._sending.done() and _went_well(self._sending)):
            self._sending = asyncio.create_task(self._send_all(), name="send events")

    async def flush(self) -> None:
        """Wait until everything has arrived. Raises what a delivery has failed with."""
        sending = None
        while sending is not self._sending:  # more may come before the last delivery is known to be back
            sending = self._sending
            assert sending is not None
            await asyncio.wait({sending})
            sending.result()

    async def _send_all(self) -> None:
        while self._unsent:
            events, self._unsent = self._unsent, []
            await self._deliver(events)


def _went_well(task: asyncio.Task[None]) -> bool:
    return not task.cancelled() and task.exception() is None
