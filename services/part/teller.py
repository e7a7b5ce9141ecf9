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


class Teller:
    """Used in one event loop.

    Example:
        teller = Teller(controller.report.remote)
        teller.tell("step", {"step": 7})
        await teller.told()
    """

    def __init__(self, deliver: Callable[[list[Event]], Awaitable[None]]) -> None:
        self._deliver = deliver
        self._untold: list[Event] = []
        self._telling: asyncio.Task[None] | None = None

    def tell(self, kind: str, facts: Mapping[str, Any]) -> None:
        """Never waits. Nothing more leaves once a delivery has failed; `told` says so."""
        self._untold.append((kind, facts))
        if self._telling is None or (self._telling.done() and _went_well(self._telling)):
            self._telling = asyncio.create_task(self._tell_all(), name="tell")

    async def told(self) -> None:
        """Wait until everything has arrived. Raises what a delivery has failed with."""
        telling = None
        while telling is not self._telling:  # more may be told before we hear that the last delivery came back
            telling = self._telling
            assert telling is not None
            await asyncio.wait({telling})
            telling.result()

    async def _tell_all(self) -> None:
        while self._untold:
            events, self._untold = self._untold, []
            await self._deliver(events)


def _went_well(task: asyncio.Task[None]) -> bool:
    return not task.cancelled() and task.exception() is None
