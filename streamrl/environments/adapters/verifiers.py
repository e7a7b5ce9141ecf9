"""Task sets and harnesses of the package `verifiers` (0.4, `verifiers.v1`), as they are.

A harness is a program that calls a model by itself. Here its model is the episode: an endpoint of ours stands for it,
and each of the harness's requests is a turn. Rewards and metrics are the task set's own. Of several agents each has a
conversation and a reward of its own; one that the package does not train has another model.
"""

import asyncio
import itertools
import os
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import msgspec

from streamrl.environments.adapters.endpoint import AskedQueue, ChatEndpoint, Exchange, next_request
from streamrl.environments.base import Done, Message, ToAgent
from streamrl.errors import ComponentError, ConfigError

HEADER: Final = "X-Session-ID"
"""By which the package names a rollout to its endpoint, with the id of its trace."""
KEY_VARIABLE: Final = "STREAMRL_EPISODE_KEY"
"""The package wants a variable with a key; the endpoint is on loopback and asks for none."""
MOST_TASKS: Final = 1000
"""Taken of a task set without end."""


@dataclass(frozen=True, slots=True, eq=False)
class _Speaker:
    """One run of one of the package's agents. trace: the package's record of it."""

    trace: Any
    exchange: Exchange

    @property
    def name(self) -> str:
        return str(self.trace.agent.name)


class VerifiersEnvironment:
    """One episode of a task of `taskset`, the id of an installed one.

    config: the package's `[env]`, such as `{"agent": {"harness": {"id": "null"}}}`. The row's `idx`, else its `seed`,
    says which task it is, modulo their number.
    """

    def __init__(self, taskset: str, config: dict[str, Any] | None = None) -> None:
        self._tasks = _tasks_of(taskset, msgspec.json.encode(config or {}).decode())
        self._asked = AskedQueue()
        self._speakers: list[_Speaker] = []
        """In the order in which they began."""
        self._spoke: list[_Speaker] = []
        """Those that the model played, in the order of their first turns."""
        self._last: Exchange | None = None
        """Of the one that is to be answered."""
        self._run: asyncio.Task[Any] | None = None
        self.tools: list[dict[str, Any]] = []

    async def reset(self, row: dict[str, Any]) -> list[Message] | ToAgent:
        """What is asked first."""
        await self._tasks.start()
        task = self._tasks.task(int(row.get("idx", row.get("seed", 0))))
        self._run = asyncio.create_task(self._tasks.play(task, self._began), name="a rollout of verifiers")
        asked = await self._next()
        if asked is None:
            raise ComponentError(f"verifiers: the rollout ended before its first turn: {_problems(self._run)}")
        return asked

    async def step(self, message: Message) -> list[Message] | ToAgent | Done:
        """What is asked next, or the verdict of the task set."""
        assert self._last is not None
        self._last.answer(message)
        asked = await self._next()
        return self._verdict() if asked is None else asked

    async def truncated(self) -> Done:
        """The task set's verdict on what there is: the harness hears an empty answer, and most end then."""
        assert self._last is not None
        self._last.answer({"role": "assistant", "content": ""})
        return self._verdict() if await self._next() is None else Done()

    async def close(self) -> None:
        if self._run is not None:
            self._run.cancel()
            await asyncio.wait({self._run})
        for speaker in self._speakers:
            self._tasks.endpoint.exchanges.pop(speaker.trace.id, None)

    def _began(self, trace: Any) -> None:
        speaker = _Speaker(trace, Exchange(self._asked))
        self._speakers.append(speaker)
        self._tasks.endpoint.exchanges[trace.id] = speaker.exchange

    async def _next(self) -> list[Message] | ToAgent | None:
        """What an agent is told before it speaks; None where the rollout has ended."""
        assert self._run is not None
        request = await next_request(self._asked, self._run)
        if request is None:
            return None
        self._last = request.exchange
        messages = request.exchange.take(request)
        speaker = next(one for one in self._speakers if one.exchange is request.exchange)
        if speaker not in self._spoke:
            self._begins(speaker)
        return ToAgent(speaker.name, messages) if self._tasks.is_of_several else messages

    def _begins(self, speaker: _Speaker) -> None:
        """Raises ComponentError for one that cannot be played beside those before it."""
        name = speaker.name
        if not speaker.trace.agent.trainable:
            raise ComponentError(
                f"verifiers: agent {name!r} is not trained, and its model would be the one that is; give it another by "
                f"options.config.{name}.client and .model"
            )
        if any(one.name == name for one in self._spoke):
            what = f"verifiers: agent {name!r} plays more than once in an episode"
            raise ComponentError(f"{what}; rollout.group_size makes several attempts")
        if self._spoke and speaker.exchange.tools != self.tools:
            raise ComponentError(f"verifiers: agents {self._spoke[0].name!r} and {name!r} have different tools")
        self._spoke.append(speaker)
        self.tools = speaker.exchange.tools

    def _verdict(self) -> Done:
        assert self._run is not None
        episode = self._run.result()
        if not episode.ok:
            raise ComponentError(f"verifiers: {_problems(self._run)}")
        stops = {one.name: str(one.trace.stop_condition) for one in self._spoke}
        if not self._tasks.is_of_several:
            (speaker,) = self._spoke
            return Done(float(speaker.trace.reward), _numbers(speaker.trace), {"stop": stops[speaker.name]})
        numbers = {
            f"{trace.agent.name}/{name}": value for trace in episode.traces for name, value in _numbers(trace).items()
        }
        rewards = {one.name: float(one.trace.reward) for one in self._spoke}
        return Done(components=numbers, info={"stop": stops}, rewards=rewards)


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
        self.is_of_several = len(_agents(self._environment.config)) > 1
        """Whether the environment has several agents, whoever plays them."""
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


def _agents(config: Any) -> list[str]:
    """The names of an environment's agents, each of which is a field of its configuration."""
    from verifiers.v1 import AgentConfig

    return [name for name in type(config).model_fields if isinstance(getattr(config, name), AgentConfig)]


def _numbers(trace: Any) -> dict[str, float]:
    """Metrics and rewards of an agent, by name."""
    metrics = {name: value for name, value in trace.metrics.items() if value is not None}
    return {**metrics, **{name: reward.value for name, reward in trace.rewards.items() if reward is not None}}


def _problems(run: "asyncio.Task[Any]") -> str:
    """What went wrong with a rollout that ended."""
    if (error := run.exception()) is not None:
        return f"{type(error).__name__}: {error}"
    episode = run.result()
    errors = [*episode.errors, *(error for trace in episode.traces for error in trace.errors)]
    return "; ".join(f"{one.type}: {one.message}" for one in errors)[:500] or "it says not why"
