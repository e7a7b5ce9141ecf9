"""What the keys of `[environment]` change: pools, openings and episodes of a configuration, seen from outside."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from support.environments.spoken import TOOLS, Model, chat_of, rollout_of
from support.repository import TESTS

from streamrl.config import Config
from streamrl.environments.open import environment_pool, episode_player
from streamrl.environments.processes.pool import EnvironmentPool

MESSAGE = {"role": "assistant", "content": "hello"}
CALL = '<tool_call>{"name": "add", "arguments": {}}</tool_call>'


def _with_pool(config: Config, use: Callable[[EnvironmentPool], Awaitable[Any]]) -> Any:
    async def opened() -> Any:
        async with environment_pool(config, [str(TESTS)]) as pool:
            return await use(pool)

    return asyncio.run(opened())


def opening(config: Config, folder: Path) -> Any:
    """How an episode of the configuration begins: its messages, and the names of its tools."""

    async def use(pool: EnvironmentPool) -> Any:
        async with pool.episode() as episode:
            opened = await episode.reset({"prompt": "1+1="})
            return [opened.messages, [tool["function"]["name"] for tool in opened.tools]]

    return _with_pool(config, use)


def children(config: Config, folder: Path) -> Any:
    """How many there are."""

    async def use(pool: EnvironmentPool) -> int:
        return len(pool.pids)

    return _with_pool(config, use)


def crowd(config: Config, folder: Path) -> float:
    """The most calls at once that one of eight episodes saw."""

    async def step(pool: EnvironmentPool) -> float:
        async with pool.episode() as episode:
            await episode.reset({})
            return (await episode.step(MESSAGE)).reward

    async def use(pool: EnvironmentPool) -> float:
        return max(await asyncio.gather(*(step(pool) for _ in range(8))))

    return _with_pool(config, use)


def played(config: Config, folder: Path) -> Any:
    """An episode whose model says a text and then tool calls: how it ended."""

    async def use(pool: EnvironmentPool) -> Any:
        _, tokenizer = chat_of(folder, TOOLS)
        player = episode_player(config, folder, pool, tokenizer, 100, lambda _text: None)
        rollout = rollout_of(tokenizer, most=config.rollout.sampling.max_new_tokens)
        ended = await player.play(rollout, Model(tokenizer, ["a", CALL, CALL, "b", "c"]))
        return [ended.finish_reason, ended.faults, ended.record]

    return _with_pool(config, use)
