"""Waking those who wait: the one way in which the queue lets a call sleep."""

import asyncio


class Signal:
    """Something may have changed. Whoever waits looks again, and waits again if it had not.

    Look and `wait` without another await in between: then no wake-up is lost.
    """

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def notify(self) -> None:
        """Wake everyone who waits now."""
        event, self._event = self._event, asyncio.Event()
        event.set()

    async def wait(self) -> None:
        """Until the next `notify`."""
        await self._event.wait()
