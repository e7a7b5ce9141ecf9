"""Work that a learner rank has done beside its steps: one piece at a time, and what went wrong with it first.

Guarantees: at most one piece is under way; `finish` comes back when none is; the first failure is raised by every call
after it, and ends what runs under `unless_failed`. What the work is, is not known here.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class BackgroundTask:
    """One kind of work. Made and used in one event loop.

    Example:
        await beside.finish()
        beside.start(write(snapshot), "checkpoint")
    """

    def __init__(self) -> None:
        self._task: asyncio.Task[Any] | None = None
        self._failed = asyncio.Event()
        self._error: BaseException | None = None

    def start(self, work: Coroutine[Any, Any, T], name: str) -> "asyncio.Task[T]":
        """Begin a piece; `finish` came back before. name: of the task."""
        task = asyncio.create_task(work, name=name)
        task.add_done_callback(self._on_done)
        self._task = task
        return task

    async def finish(self) -> None:
        """Wait until nothing is under way. Raises what a piece has failed with."""
        if self._task is not None:
            await asyncio.wait({self._task})
        self._raise()

    async def unless_failed(self, work: Coroutine[Any, Any, T]) -> T:
        """Await `work`, but end it when a piece fails. Raises what that failed with."""
        task, failed = asyncio.ensure_future(work), asyncio.ensure_future(self._failed.wait())
        try:
            await asyncio.wait({task, failed}, return_when=asyncio.FIRST_COMPLETED)
            self._raise()
            return await task
        finally:
            for one in (task, failed):
                one.cancel()
            await asyncio.gather(task, failed, return_exceptions=True)

    def _on_done(self, task: "asyncio.Task[Any]") -> None:
        if not task.cancelled() and task.exception() is not None:
            self._error = self._error or task.exception()
            self._failed.set()

    def _raise(self) -> None:
        if self._error is not None:
            raise self._error
