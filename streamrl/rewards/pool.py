"""A pool of reward workers: batches in, scores out, whatever the reward function does.

Guarantees one score for each item, in order; that an item which hangs or kills its child fails alone, after
its batch has been repeated one by one; that the pool is back to full size afterwards; and that `close` leaves
no child. It does not know what a score means, and it keeps nothing between calls.
"""

import asyncio
from collections.abc import Coroutine, Sequence
from types import TracebackType
from typing import Self, TypeVar

from streamrl.errors import ComponentError
from streamrl.rewards.base import RewardItem
from streamrl.rewards.worker import Worker, WorkerLostError
from streamrl.types import Score

Result = TypeVar("Result")


class RewardPool:
    """`workers` child processes that score with one reward function.

    function: a built-in name or `module:function`. batch_size: items that one child gets at once. timeout_s:
    wall time for a batch, and then for each of its items alone. memory_bytes: address space of a child.
    import_paths: folders in which a child looks for the user's module, after all others.

    Example:
        async with RewardPool("exact_match", workers=2) as pool:
            scores = await pool.score(items)
    """

    def __init__(
        self,
        function: str,
        *,
        workers: int = 1,
        batch_size: int = 512,
        timeout_s: float = 10.0,
        memory_bytes: int = 2 * 2**30,
        import_paths: Sequence[str] = (),
    ) -> None:
        self._workers = [
            Worker(function, timeout_s=timeout_s, memory_bytes=memory_bytes, import_paths=import_paths)
            for _ in range(workers)
        ]
        self._batch_size = batch_size
        self._idle: asyncio.Queue[Worker] = asyncio.Queue()
        for worker in self._workers:
            self._idle.put_nowait(worker)
        self._closed = False
        self._lost = 0

    @property
    def pids(self) -> list[int]:
        """Process ids of the children that are there."""
        return [worker.pid for worker in self._workers if worker.pid is not None]

    @property
    def lost(self) -> int:
        """Children that were lost over a question, and replaced, so far."""
        return self._lost

    async def start(self) -> None:
        """Start all children. Raises ConfigError for a function that cannot be had, and ComponentError for a
        child that does not come up; the pool is closed then."""
        try:
            await _all([worker.start() for worker in self._workers])
        except BaseException:
            await self.close()
            raise

    async def score(self, items: Sequence[RewardItem]) -> list[Score]:
        """One score for each item, in order.

        Raises ComponentError when the pool is closed, or a lost child cannot be replaced.
        """
        if not items:
            return []
        size = min(self._batch_size, -(-len(items) // len(self._workers)))
        batches = [items[start : start + size] for start in range(0, len(items), size)]
        parts = await _all([self._score_batch(batch) for batch in batches])
        return [score for part in parts for score in part]

    async def close(self) -> None:
        """Kill and reap all children. Calls of `score` that are under way raise ComponentError."""
        if self._closed:
            return
        self._closed = True
        for worker in self._workers:
            worker.kill()
        for _ in self._workers:  # a busy worker comes back when its caller has seen the child's death
            await (await self._idle.get()).stop()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _score_batch(self, items: Sequence[RewardItem]) -> list[Score]:
        try:
            return await self._ask(items)
        except WorkerLostError as lost:
            if len(items) == 1:
                return [Score.failed(lost.reason)]
        alone = await _all([self._score_batch([item]) for item in items])
        return [scores[0] for scores in alone]

    async def _ask(self, items: Sequence[RewardItem]) -> list[Score]:
        self._refuse_closed()
        worker = await self._idle.get()
        try:
            self._refuse_closed()  # it may have been closed while this call waited
            return await worker.ask(items)
        except WorkerLostError:
            self._refuse_closed()
            self._lost += 1
            await worker.start()
            raise
        finally:
            self._idle.put_nowait(worker)

    def _refuse_closed(self) -> None:
        if self._closed:
            raise ComponentError("the reward pool is closed")


async def _all(calls: Sequence[Coroutine[object, object, Result]]) -> list[Result]:
    """The results of `calls`, run together; when one fails the others are cancelled and awaited first."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(call) for call in calls]
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from None
    return [task.result() for task in tasks]
