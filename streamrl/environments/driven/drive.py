"""An engine behind coroutines: what an episode awaits, an engine answers that somebody else steps."""

import asyncio
import itertools
import threading
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from streamrl.engines.base import Engine
from streamrl.types import GenerationRequest, GenerationResult

T = TypeVar("T")


class TurnRequests:
    """Requests of the coroutines of one event loop, for an engine. woken: called when there are new ones.

    `generate` and `give` are of the loop's thread, `take` of the one that steps the engine.
    """

    def __init__(self, woken: Callable[[], None]) -> None:
        self._woken = woken
        self._numbers = itertools.count()
        self._waiting: dict[str, asyncio.Future[GenerationResult]] = {}
        self._new: list[GenerationRequest] = []
        self._lock = threading.Lock()

    @property
    def some(self) -> bool:
        """Whether there are new ones."""
        return bool(self._new)

    async def generate(self, request: GenerationRequest) -> GenerationResult:
        """`streamrl.environments.play.Generate`."""
        name = f"{request.request_id}#{next(self._numbers)}"
        answered: asyncio.Future[GenerationResult] = asyncio.get_running_loop().create_future()
        self._waiting[name] = answered
        with self._lock:
            self._new.append(replace(request, request_id=name))
        self._woken()
        return await answered

    def take(self) -> list[GenerationRequest]:
        """The new ones."""
        with self._lock:
            new, self._new = self._new, []
        return new

    def give(self, results: Sequence[GenerationResult]) -> None:
        """What an engine's step returned; nobody may wait for some of it any more."""
        for result in results:
            waiting = self._waiting.pop(result.request_id, None)
            if waiting is not None and not waiting.done():
                waiting.set_result(result)


async def driven(engine: Engine, work: Callable[[TurnRequests], Coroutine[Any, Any, T]]) -> T:
    """Run `work`, and step the engine for it in this thread; the event loop stands still during a step.

    Raises what `work` raises."""
    some = asyncio.Event()
    requests = TurnRequests(some.set)
    task = asyncio.create_task(work(requests))
    task.add_done_callback(lambda _task: some.set())
    while not task.done():
        if new := requests.take():
            engine.submit(new)
        if engine.has_work:
            requests.give(engine.step())
            await asyncio.sleep(0)  # those who were answered, and their environments, go on
            continue
        some.clear()
        if not requests.some and not task.done():
            await some.wait()
    return task.result()
