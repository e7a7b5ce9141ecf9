"""Clients that wait for a version: one call to the weight store waits for all of them.

Guarantees: who asks for a newer version than it knows is answered as soon as there is one, or after a bounded time with
what there is. However many clients wait, one call waits at the store; none does before the first client asks.
"""

import asyncio

import ray
from ray.actor import ActorHandle

from streamrl.buffers.queue.signals import Signal
from streamrl.gateway.refusal import Refusal
from streamrl.services.gateway.guard import PATIENCE
from streamrl.types import Version


class VersionService:
    """See the module. store: the run's weight store. hold_s: see `Patience`.

    Example:
        version = await service.newest(after=6)       # of step 7 or more; after `hold_s` of whatever step
    """

    def __init__(self, store: ActorHandle, hold_s: float = PATIENCE.hold_s) -> None:
        self._store = store
        self._hold_s = hold_s
        self._newest: Version | None = None
        self._changed = Signal()
        self._listening: asyncio.Task[None] | None = None

    async def newest(self, after: int) -> Version | None:
        """The newest version, None before the first; waits as long as it is of step `after` or less. Raises Refusal
        when the run ends, or its weight store is started again."""
        deadline = asyncio.get_running_loop().time() + self._hold_s
        if self._listening is None:
            self._listening = asyncio.create_task(self._listen(), name="versions")
        try:
            async with asyncio.timeout_at(deadline):
                while self._newest is None or self._newest.step <= after:
                    self._check(self._listening)
                    await self._changed.wait()
        except TimeoutError:
            pass
        return self._newest

    async def close(self) -> None:
        if self._listening is not None:
            self._listening.cancel()
            await asyncio.gather(self._listening, return_exceptions=True)

    async def _listen(self) -> None:
        """Hear of each version, until the store is closed."""
        try:
            while (version := await self._store.newer_step.remote(self._newest)) is not None:
                self._newest = Version(*version)
                self._changed.notify()
        finally:
            self._changed.notify()

    def _check(self, listening: "asyncio.Task[None]") -> None:
        """Raises Refusal when nobody hears of versions any more: with its store the gateway ends."""
        if not listening.done():
            return
        failed = None if listening.cancelled() else listening.exception()
        if failed is not None and not isinstance(failed, ray.exceptions.RayError):
            raise failed
        raise Refusal(503, "run_not_ready", "the run ends, or its weight store is started again; ask again soon")
