"""The event loop in which all talk with a server happens, in a thread of its own.

Guarantees: every wait for it has a deadline, and `cancel_all` leaves no task behind. It knows no server.
"""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterable
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Any, TypeVar

from streamrl.errors import DeadlineError

T = TypeVar("T")

_CLOSE_S = 5.0
"""For the thread to end; it has nothing to wait for by then."""


class BackgroundLoop:
    """An event loop that other threads give work to.

    Example:
        loop = BackgroundLoop("vllm")
        loop.run(contract.ready(), 5.0, "asking whether it is ready")
        loop.start([contract.abort(ids)], on_error)
        loop.cancel_all(5.0)
        loop.close()
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._loop = asyncio.new_event_loop()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._thread = threading.Thread(target=self._loop.run_forever, name=f"{name} loop", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T], limit_s: float, what: str) -> T:
        """The result of `work`, or its error. Raises DeadlineError after `limit_s`; it is cancelled then."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result(limit_s)
        except FutureTimeout as error:
            if future.done():
                raise  # it is the work's own
            future.cancel()
            raise DeadlineError(f"{self._name}: {what} took longer than {limit_s:g} s") from error

    def start(self, works: Iterable[Coroutine[Any, Any, None]], on_error: Callable[[BaseException], None]) -> None:
        """Begin them and return. `on_error` is called, in the loop's thread, with the error of one that fails."""
        self._loop.call_soon_threadsafe(self._start, list(works), on_error)

    def cancel_all(self, limit_s: float) -> None:
        """Cancel what runs, and wait for its end. Raises DeadlineError."""
        self.run(self._cancel_all(), limit_s, "ending what runs")

    def close(self) -> None:
        """End the thread, after `cancel_all`."""
        if self._loop.is_closed():
            return
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_CLOSE_S)
        self._loop.close()

    def _start(self, works: list[Coroutine[Any, Any, None]], on_error: Callable[[BaseException], None]) -> None:
        for work in works:
            task = self._loop.create_task(work)
            self._tasks.add(task)
            task.add_done_callback(lambda task: self._done(task, on_error))

    def _done(self, task: "asyncio.Task[None]", on_error: Callable[[BaseException], None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            on_error(error)

    async def _cancel_all(self) -> None:
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._loop.shutdown_asyncgens()
