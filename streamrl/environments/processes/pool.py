"""Environments in child processes: episodes are opened, called and closed, whatever the code in them does.

Guarantees that each call comes to an end, that a lost child is replaced at the next episode, and that `close` leaves no
child. It does not repeat an episode: `streamrl.environments.play` does.
"""

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from types import TracebackType
from typing import Any, NamedTuple, Self

from streamrl.environments.outcomes import EnvironmentFault, Fault, Messages, Verdict
from streamrl.environments.processes.wire import Answer, Method
from streamrl.environments.processes.worker import Worker, WorkerSettings
from streamrl.errors import ConfigError

CLOSE_TIMEOUT_S = 5.0
MOST_ALONE = 4
"""Episodes at once that have a child of their own."""


class Opening(NamedTuple):
    """messages: None where the row's own prompt stays. tools: their JSON schemas. agent: who is told, "" where there is
    one."""

    messages: Messages | None
    tools: list[dict[str, Any]]
    agent: str = ""


class Told(NamedTuple):
    """Messages to one of several agents; None for the one that spoke last."""

    messages: Messages
    agent: str | None


class OpenEpisode:
    """One episode in one child."""

    def __init__(self, worker: Worker, number: int, calls: asyncio.Semaphore, timeout_s: float) -> None:
        self._worker = worker
        self._life = worker.life
        self._number = number
        self._calls = calls
        self._timeout_s = timeout_s

    async def reset(self, row: dict[str, Any]) -> Opening:
        """Raises EnvironmentFault."""
        said = await self._call("reset", row)
        return Opening(said.messages, said.tools, said.agent)

    async def step(self, message: dict[str, Any]) -> Messages | Told | Verdict:
        """Raises EnvironmentFault."""
        said = await self._call("step", message)
        if said.verdict is not None:
            return said.verdict
        messages = said.messages or []
        return Told(messages, said.agent) if said.agent else messages

    async def truncated(self) -> Verdict:
        """A limit ended the episode. Raises EnvironmentFault."""
        said = await self._call("truncated", {})
        assert said.verdict is not None
        return said.verdict

    async def close(self) -> None:
        """Nothing more comes. What the environment does with that is its own affair."""
        if self._worker.life == self._life and self._worker.pid is not None:
            with suppress(EnvironmentFault):
                await self._worker.call(self._number, "close", {}, min(CLOSE_TIMEOUT_S, self._timeout_s))

    async def _call(self, method: Method, given: dict[str, Any]) -> Answer:
        async with self._calls:
            if self._worker.life != self._life or self._worker.pid is None:
                raise EnvironmentFault(Fault.LOST, "its process ended between two turns")
            return await self._worker.call(self._number, method, given, self._timeout_s)


class EnvironmentPool:
    """`workers` child processes. timeout_s: wall time of one call. concurrency: calls at once in one child.

    Example:
        async with EnvironmentPool(settings, workers=2, timeout_s=30.0) as pool, pool.episode() as episode:
            opening = await episode.reset(row)
            answer = await episode.step(message)
    """

    def __init__(
        self, settings: WorkerSettings, *, workers: int = 1, timeout_s: float = 30.0, concurrency: int = 64
    ) -> None:
        self.name = settings.name
        self._settings = settings
        self._alone = asyncio.Semaphore(MOST_ALONE)
        self._workers = [Worker(settings) for _ in range(workers)]
        self._calls = {worker: asyncio.Semaphore(concurrency) for worker in self._workers}
        self._open = dict.fromkeys(self._workers, 0)
        self._timeout_s = timeout_s
        self._numbers = itertools.count()

    @property
    def pids(self) -> list[int]:
        """Process ids of the children that are there."""
        return [worker.pid for worker in self._workers if worker.pid is not None]

    async def start(self) -> None:
        """Start all children. Raises ConfigError and ComponentError as `Worker.start` does; none is left then."""
        try:
            await asyncio.gather(*(worker.start() for worker in self._workers))
        except BaseException:
            await self.close()
            raise

    @asynccontextmanager
    async def episode(self, alone: bool = False) -> AsyncIterator[OpenEpisode]:
        """A new one, in the child with the fewest, or `alone` in a child of its own; closed at the end.

        Raises EnvironmentFault where a lost child does not come up again, and ComponentError as `Worker.start` does."""
        async with self._child(alone) as worker:
            try:
                await worker.start()
            except ConfigError as error:  # it came up before: something around it changed
                raise EnvironmentFault(Fault.DIED, str(error)) from error
            opened = OpenEpisode(worker, next(self._numbers), self._calls[worker], self._timeout_s)
            try:
                yield opened
            finally:
                await opened.close()

    @asynccontextmanager
    async def _child(self, alone: bool) -> AsyncIterator[Worker]:
        if not alone:
            worker = min(self._workers, key=lambda one: self._open[one])
            self._open[worker] += 1
            try:
                yield worker
            finally:
                self._open[worker] -= 1
            return
        async with self._alone:
            worker = Worker(self._settings)
            self._calls[worker] = asyncio.Semaphore(1)
            try:
                yield worker
            finally:
                del self._calls[worker]
                await worker.stop()

    async def close(self) -> None:
        """Kill and reap all children."""
        await asyncio.gather(*(worker.stop() for worker in list(self._calls)))

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
