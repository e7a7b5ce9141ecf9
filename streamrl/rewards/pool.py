"""A pool of reward workers: batches in, scores out, whatever the reward function does.

Guarantees one score for each item, in order; that an item which hangs or kills its child fails alone, after
its batch has been repeated one by one; that the pool is back to full size afterwards; and that `close` leaves
no child. It does not know what a score means, and it keeps nothing between calls.

`scale` changes the full size. A child that joins is given work once it is up. One that leaves first ends what it was
given: so no item is scored twice or lost by it, and whoever waits for scores notices nothing.
"""

import asyncio
from collections.abc import Coroutine, Sequence
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeVar

from streamrl.clock import Clock, SystemClock
from streamrl.config.schema.run import RewardModelConfig, RewardRule
from streamrl.config.schema.sandbox import SandboxConfig
from streamrl.errors import ComponentError, ConfigError
from streamrl.rewards.base import RewardItem
from streamrl.rewards.worker import NO_MODEL, USUAL_SANDBOX, Worker, WorkerLostError
from streamrl.types import Score

Result = TypeVar("Result")


class RewardPool:
    """`workers` child processes that score with one reward function.

    function: a built-in name or `module:function`, or a rule of several. batch_size: items that one child gets at once.
    timeout_s: wall time for a batch, and then for each of its items alone. memory_bytes: address space of a child.
    import_paths: folders in which a child looks for the user's module, after all others. model: a reward model that
    each child loads, beside the function or in its place. sandbox: where programs run. stacks: see `ChildSettings`.

    Example:
        async with RewardPool("exact_match", workers=2) as pool:
            scores = await pool.score(items)
            pool.scale(4)
    """

    def __init__(
        self,
        function: str | RewardRule,
        *,
        workers: int = 1,
        batch_size: int = 512,
        timeout_s: float = 10.0,
        memory_bytes: int = 2 * 2**30,
        import_paths: Sequence[str] = (),
        model: RewardModelConfig = NO_MODEL,
        sandbox: SandboxConfig = USUAL_SANDBOX,
        stacks: str = "",
        clock: Clock | None = None,
    ) -> None:
        self._make = partial(
            Worker,
            function if isinstance(function, RewardRule) else RewardRule({function: 1.0}),
            timeout_s=timeout_s,
            memory_bytes=memory_bytes,
            import_paths=import_paths,
            model=model,
            sandbox=sandbox,
            stacks=stacks,
        )
        self._clock = clock or SystemClock()
        self._wanted = workers
        self._workers = [self._make() for _ in range(workers)]
        """Those that are given work, or wait for some."""
        self._batch_size = batch_size
        self._idle: asyncio.Queue[Worker] = asyncio.Queue()
        for worker in self._workers:
            self._idle.put_nowait(worker)
        self._joining: dict[Worker, asyncio.Task[None]] = {}
        self._leaving: set[asyncio.Task[Any]] = set()
        self._not_started = ""
        self._closed = False
        self._lost = 0
        self._asked: dict[Worker, float] = {}
        """When each that has a batch was given it."""
        self._answered = 0

    @property
    def pids(self) -> list[int]:
        """Process ids of the children that are there."""
        return [worker.pid for worker in self._workers if worker.pid is not None]

    @property
    def lost(self) -> int:
        """Children that were lost over a question, and replaced, so far."""
        return self._lost

    @property
    def busy(self) -> int:
        """Children that have a batch now."""
        return len(self._asked)

    @property
    def oldest_s(self) -> float:
        """Seconds since the oldest of these batches was given out; 0 when there is none."""
        return self._clock.now() - min(self._asked.values()) if self._asked else 0.0

    @property
    def answered(self) -> int:
        """Batches that came to an end so far, whatever it was."""
        return self._answered

    @property
    def wanted(self) -> int:
        """Children that there are to be."""
        return self._wanted

    @property
    def size(self) -> int:
        """Children that are given work: those that start are not among them, those that leave are until they have ended
        what they were given."""
        return len(self._workers)

    @property
    def not_started(self) -> str:
        """Why a child that was to join did not come up; "" when all did since `scale` was called last."""
        return self._not_started

    async def start(self) -> None:
        """Start all children. Raises ConfigError for a function that cannot be had, and ComponentError for a
        child that does not come up; the pool is closed then."""
        try:
            await _all([worker.start() for worker in self._workers])
        except BaseException:
            await self.close()
            raise

    def scale(self, workers: int) -> None:
        """Have so many children, at least one, from now on. Waits for none of them to come or go; only after `start`.

        One that does not come up is left out, and `not_started` says why: the others go on. To ask for the same number
        again tries again.
        """
        if self._closed:
            return
        self._wanted, self._not_started = workers, ""
        for _ in range(self.size + len(self._joining) - workers):
            if self._joining:
                _, joining = self._joining.popitem()
                joining.cancel()
                self._leaves(joining)
            elif not self._idle.empty():
                self._let_go(self._idle.get_nowait())
        for _ in range(workers - self.size - len(self._joining)):
            worker = self._make()
            self._joining[worker] = asyncio.create_task(self._join(worker), name="a reward worker joins")

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
        joining = list(self._joining.values())
        for task in joining:
            task.cancel()
        for worker in self._workers:
            worker.kill()
        for _ in self._workers:  # a busy worker comes back when its caller has seen the child's death
            await (await self._idle.get()).stop()
        await asyncio.gather(*joining, *self._leaving, return_exceptions=True)

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
            self._asked[worker] = self._clock.now()
            return await worker.ask(items)
        except WorkerLostError:
            self._refuse_closed()
            self._lost += 1
            if self.size <= self._wanted:
                await worker.start()
            raise
        finally:
            self._answered += self._asked.pop(worker, None) is not None
            self._give_back(worker)

    def _give_back(self, worker: Worker) -> None:
        """It has ended what it was given: it waits for more, or leaves when there is one too many."""
        if self._closed or self.size <= self._wanted:
            self._idle.put_nowait(worker)
        else:
            self._let_go(worker)

    def _let_go(self, worker: Worker) -> None:
        self._workers.remove(worker)
        self._leaves(asyncio.create_task(worker.stop(), name="a reward worker leaves"))

    def _leaves(self, task: asyncio.Task[Any]) -> None:
        """Its end is waited for by `close`."""
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)

    async def _join(self, worker: Worker) -> None:
        """Start a child and have it given work. Cancelled, it leaves none."""
        try:
            await worker.start()
        except (ComponentError, ConfigError) as error:
            del self._joining[worker]
            self._not_started = str(error)
        except asyncio.CancelledError:
            await worker.stop()
            raise
        else:
            del self._joining[worker]
            self._workers.append(worker)
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
