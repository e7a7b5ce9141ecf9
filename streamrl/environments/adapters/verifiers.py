"""Task sets and harnesses of the package `verifiers` (0.4, `verifiers.v1`), as they are.

A harness is a program that calls a model by itself. Here its model is the episode: an endpoint of ours stands for it,
and each of the harness's requests is a turn. Rewards and metrics are the task set's own.
"""

import asyncio
import itertools
import os
from contextlib import AsyncExitStack
from functools import cache
from typing import Any, Final

import msgspec

from streamrl.environments.adapters.endpoint import ChatEndpoint, Exchange
from streamrl.environments.base import Done, Message
from streamrl.errors import ComponentError, ConfigError

HEADER: Final = "X-Session-ID"
"""By which the package names a rollout to its endpoint, with the id of its trace."""
KEY_VARIABLE: Final = "STREAMRL_EPISODE_KEY"
"""The package wants a variable with a key; the endpoint is on loopback and asks for none."""
MOST_TASKS: Final = 1000
"""Taken of a task set without end."""


class VerifiersEnvironment:
    """One episode of a task of `taskset`, the id of an installed one.

    config: the package's `[env]`, such as `{"agent": {"harness": {"id": "null"}}}`. The row's `idx`, else its `seed`,
    says which task it is, modulo their number. One agent plays; an environment of several is refused.
    """

    def __init__(self, taskset: str, config: dict[str, Any] | None = None) -> None:
        self._tasks = _tasks_of(taskset, msgspec.json.encode(config or {}).decode())
        self._exchange = Exchange()
        self._trace: Any = None
        self._problem = ""
        self._run: asyncio.Task[Any] | None = None
        self.tools: list[dict[str, Any]] = []

    async def reset(self, row: dict[str, Any]) -> list[Message]:
        """What the harness asks first."""
        await self._tasks.start()
        task = self._tasks.task(int(row.get("idx", row.get("seed", 0))))
        self._run = asyncio.create_task(self._tasks.play(task, self._began), name="a rollout of verifiers")
        messages = await self._exchange.next(self._run)
        if messages is None:
            raise ComponentError(f"verifiers: the rollout ended before its first turn: {_problems(self._run)}")
        self.tools = self._exchange.tools
        return messages

    async def step(self, message: Message) -> list[Message] | Done:
        """What the harness asks next, or the verdict of the task set."""
        assert self._run is not None
        self._exchange.answer(message)
        messages = await self._exchange.next(self._run)
        if self._problem:
            raise ComponentError(self._problem)
        return self._verdict() if messages is None else messages

    async def truncated(self) -> Done:
        """The task set's verdict on what there is: the harness hears an empty answer, and most end then."""
        assert self._run is not None
        self._exchange.answer({"role": "assistant", "content": ""})
        messages = await self._exchange.next(self._run)
        return Done() if messages is not None else self._verdict()

    async def close(self) -> None:
        if self._run is not None:
            self._run.cancel()
            await asyncio.wait({self._run})
        if self._trace is not None:
            self._tasks.endpoint.exchanges.pop(self._trace.id, None)

    def _began(self, trace: Any) -> None:
        if self._trace is not None:
            self._problem = "verifiers: an environment of several agents is not played here; train each on its own"
            return
        self._trace = trace
        self._tasks.endpoint.exchanges[trace.id] = self._exchange

    def _verdict(self) -> Done:
        assert self._run is not None
        episode = self._run.result()
        if not episode.ok:
            raise ComponentError(f"verifiers: {_problems(self._run)}")
        (trace,) = episode.traces
        rewards = {name: reward.value for name, reward in trace.rewards.items() if reward is not None}
        metrics = {name: value for name, value in trace.metrics.items() if value is not None}
        return Done(float(trace.reward), {**metrics, **rewards}, {"stop": str(trace.stop_condition)})


class _Tasks:
    """A task set with what serves its rollouts: one for all episodes of this process."""

    def __init__(self, taskset: str, config: dict[str, Any]) -> None:
        try:
            from verifiers.v1.utils.loaders import load_environment, resolve_env_config
        except ImportError as error:
            raise ConfigError(f"environment 'verifiers': {error}; pip install 'streamrl[verifiers]'") from error
        try:
            given = {**config, "taskset": {**config.get("taskset", {}), "id": taskset}}
            self._environment = load_environment(resolve_env_config(given))
        except Exception as error:  # the package raises what its plugins raise
            told = " ".join(str(error).split())
            raise ConfigError(f"environment 'verifiers': task set {taskset!r}: {told}") from error
        self._rows = iter(self._environment.taskset)
        self._endless = not self._environment.taskset.bounded
        self._tasks: list[Any] = []
        self._all = False
        self.endpoint = ChatEndpoint(HEADER)
        self._context: Any = None
        self._serving = AsyncExitStack()
        self._starting = asyncio.Lock()

    async def start(self) -> None:
        """Once."""
        async with self._starting:
            if self._context is None:
                from verifiers.v1.clients import EvalClientConfig, ModelContext

                os.environ.setdefault(KEY_VARIABLE, "none")
                address = await self.endpoint.start()
                await self._serving.enter_async_context(self._environment.serving())
                client = EvalClientConfig(base_url=address, api_key_var=KEY_VARIABLE)
                self._context = ModelContext(model="policy", client=client)

    def task(self, number: int) -> Any:
        """The task of that number, modulo how many there are. Raises ComponentError for a task set without any."""
        wanted = number % MOST_TASKS if self._endless else number
        if not self._all:
            missing = wanted + 1 - len(self._tasks)
            more = list(itertools.islice(self._rows, missing)) if missing > 0 else []
            self._tasks += more
            self._all = len(more) < missing
        if not self._tasks:
            raise ComponentError("verifiers: the task set has no task")
        return self._tasks[wanted % len(self._tasks)]

    async def play(self, task: Any, began: Any) -> Any:
        """The package's episode."""
        return await self._environment.run_episode(task, self._context, on_trace=began)


@cache
def _tasks_of(taskset: str, config: str) -> _Tasks:
    return _Tasks(taskset, msgspec.json.decode(config))


def _problems(run: "asyncio.Task[Any]") -> str:
    """What went wrong with a rollout that ended."""
    if (error := run.exception()) is not None:
        return f"{type(error).__name__}: {error}"
    episode = run.result()
    errors = [*episode.errors, *(error for trace in episode.traces for error in trace.errors)]
    return "; ".join(f"{one.type}: {one.message}" for one in errors)[:500] or "it says not why"
