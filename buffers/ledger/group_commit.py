"""Group commit: items that arrive close together share one trip to disk, in the order in which they came.

Guaranteed: one thread commits; a group holds everything that was submitted before it starts; at least
`interval_s` lies between the starts of two groups, and an item that comes after a pause does not wait. The
future of an item resolves only after the commit that holds it. After a failure every later item, queued or
submitted, is refused with that failure: a sync that failed once has lost pages, trying again would hide it, and
what follows may count on what failed. Nothing here knows what an item is.
"""

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Event, Lock
from typing import Generic, TypeVar

from streamrl.errors import ComponentError

Item = TypeVar("Item")
Result = TypeVar("Result")


class GroupCommitter(Generic[Item, Result]):
    """Collects items and hands them in groups to `commit`, which returns one result for each, in order.

    Example:
        committer = GroupCommitter("log", write_and_sync, interval_s=0.005)
        committer.submit(b"record").result()
        committer.close()
    """

    def __init__(self, name: str, commit: Callable[[list[Item]], list[Result]], *, interval_s: float) -> None:
        self._name = name
        self._commit = commit
        self._interval_s = interval_s
        self._lock = Lock()
        self._closing = Event()
        self._pending: list[tuple[Item, Future[Result]]] = []
        self._group: list[tuple[Item, Future[Result]]] = []
        self._scheduled = False
        self._failure: BaseException | None = None
        self._last_start = -interval_s
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix=name)

    @property
    def failure(self) -> BaseException | None:
        """What ended this committer, or None."""
        return self._failure

    def submit(self, item: Item) -> "Future[Result]":
        """Queue `item`; the future resolves when its group is committed.

        Raises:
            ComponentError: closed, or the failure of an earlier group.
        """
        future: Future[Result] = Future()
        # What is queued will be written: a waiter that gives up must not cancel it.
        future.set_running_or_notify_cancel()
        with self._lock:
            if self._failure is not None:
                raise self._failure
            if self._closing.is_set():
                raise ComponentError(f"{self._name} is closed and takes nothing more")
            self._pending.append((item, future))
            if not self._scheduled:
                self._scheduled = True
                self._executor.submit(self._commit_group).add_done_callback(self._resolve)
        return future

    def close(self) -> None:
        """Commit what is pending, then end the thread. A second call does nothing."""
        with self._lock:
            self._closing.set()
        self._executor.shutdown(wait=True)

    def _commit_group(self) -> list[Result]:
        wait_s = self._last_start + self._interval_s - time.monotonic()
        if wait_s > 0:
            self._closing.wait(wait_s)
        self._last_start = time.monotonic()
        with self._lock:
            self._group, self._pending = self._pending, []
            self._scheduled = False
            if self._failure is not None:
                raise self._failure
        return self._commit([item for item, _ in self._group])

    def _resolve(self, done: "Future[list[Result]]") -> None:
        """Runs in the committing thread, before it starts the next group."""
        group, self._group = self._group, []
        error = done.exception()
        if error is None:
            for (_, future), result in zip(group, done.result(), strict=True):
                future.set_result(result)
            return
        with self._lock:
            self._failure = error
        for _, future in group:
            future.set_exception(error)
