"""The place of a part that may be replaced while others ask for it. One event loop uses it."""

import asyncio

from ray.actor import ActorHandle


class ActorSlot:
    """Holds the handle of the part that serves now, or nobody.

    Example:
        slot.take(handle)               # whoever keeps the part
        handle = await slot.get()       # whoever needs it: waits for one
        slot.leave(handle)              # whoever finds it dead
    """

    def __init__(self) -> None:
        self._handle: ActorHandle | None = None
        self._taken = asyncio.Event()

    def take(self, handle: ActorHandle) -> None:
        self._handle = handle
        self._taken.set()

    def leave(self, handle: ActorHandle) -> None:
        """Clear the slot, unless another one has taken it already."""
        if self._handle is handle:
            self._handle = None
            self._taken.clear()

    async def get(self) -> ActorHandle:
        """The part that serves now; waits for one."""
        while self._handle is None:
            await self._taken.wait()
        return self._handle
