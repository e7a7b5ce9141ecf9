"""What the gateway asks of the run's queue, for however many clients.

A call that waits at the queue takes one of its places for calls, and replicas, the reward stage and the learner need
theirs: clients that had a waiting call each could stop the training.

Guarantees: who asks for the ends of prompts is answered as soon as one of them has ended, also where that was before it
asked. However many ask, one call waits at the queue; none does before the first one asks.
"""

import asyncio
from collections.abc import Awaitable, Sequence
from typing import Any

import ray
from ray.actor import ActorHandle

from streamrl.buffers.index.submitted.submissions import Outcome
from streamrl.errors import StreamRLError
from streamrl.gateway.refusal import Refusal
from streamrl.services.actors.deaths import cause_of

CALLS_AT_ONCE = 32
"""Of one kind, at the queue; further ones wait here. An answer waits for the disk, and a full disk may keep it long."""


async def answer_of_queue(call: Awaitable[Any]) -> Any:
    """What the queue answers. Raises Refusal when it cannot."""
    try:
        return await call
    except Refusal:
        raise
    except (ray.exceptions.RayError, StreamRLError) as error:
        why = cause_of(error)
        told = str(why) if isinstance(why, StreamRLError) else "its queue is being started again"
        raise Refusal(503, "run_not_ready", f"the run's queue does not answer: {told}; send it again") from error


class PromptEndings:
    """See the module. queue: the run's.

    Example:
        outcomes = await service.ended([3, 4])        # of one of them at least
    """

    def __init__(self, queue: ActorHandle) -> None:
        self._queue = queue
        self._places = asyncio.Semaphore(CALLS_AT_ONCE)
        self._news: dict[int, set[asyncio.Event]] = {}
        """Of each prompt, of those who wait for its end."""
        self._listening: asyncio.Task[None] | None = None

    async def ended(self, items: Sequence[int]) -> list[Outcome]:
        """Those that have ended, as soon as one has; [] once the run ends. Raises Refusal when the queue does not
        answer."""
        listening, news = self._listener(), asyncio.Event()
        for item in items:
            self._news.setdefault(item, set()).add(news)
        try:
            # The look comes after the listening: what ends between them is heard of.
            while not (found := await self._fetch_outcomes(items)) and not listening.done():
                await news.wait()
                news.clear()
            if not found and not listening.cancelled():
                listening.result()  # it may say why nobody hears of ends any more
            return found
        finally:
            for item in items:
                self._news[item].discard(news)
                if not self._news[item]:
                    del self._news[item]

    async def close(self) -> None:
        if self._listening is not None:
            self._listening.cancel()
            await asyncio.gather(self._listening, return_exceptions=True)

    async def _fetch_outcomes(self, items: Sequence[int]) -> list[Outcome]:
        async with self._places:
            found: list[Outcome] = await answer_of_queue(self._queue.ended.remote(list(items)))
        return found

    def _listener(self) -> "asyncio.Task[None]":
        """The one that hears of ends; another one when the queue of the last one was away."""
        if self._listening is None or self._listening.done():
            self._listening = asyncio.create_task(self._listen(), name="ends of prompts")
        return self._listening

    async def _listen(self) -> None:
        """Tell those who wait of each end, until the queue is closed; and of its own end."""
        count = 0
        try:
            while ends := await answer_of_queue(self._queue.ends.remote(count)):
                count += len(ends)
                self._deliver(ends)
        finally:
            self._deliver(list(self._news))

    def _deliver(self, items: Sequence[int]) -> None:
        for item in items:
            for news in self._news.get(item, ()):
                news.set()
