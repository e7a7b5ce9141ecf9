"""Pools of environments for tests: opened by name, and closed at the end of the test."""

from collections.abc import AsyncIterator, Awaitable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Protocol

import pytest
from support.repository import TESTS

from streamrl.environments.outcomes import EnvironmentFault
from streamrl.environments.processes.pool import EnvironmentPool
from streamrl.environments.processes.worker import WorkerSettings

MESSAGE = {"role": "assistant", "content": "hello"}
GAMES = "support.environments.games"


class OpenPool(Protocol):
    """Opens a pool. name: of a class in `support.environments.games`, `module:Class`, or a built-in environment."""

    def __call__(
        self, name: str, timeout_s: float = 20.0, workers: int = 1, **settings: Any
    ) -> Awaitable[EnvironmentPool]: ...


@asynccontextmanager
async def opened_pools() -> AsyncIterator[OpenPool]:
    """What opens them; all are closed at the end."""
    async with AsyncExitStack() as opened:

        async def make(name: str, timeout_s: float = 20.0, workers: int = 1, **settings: Any) -> EnvironmentPool:
            given = {"memory_bytes": 2**31, "import_paths": [str(TESTS)], **settings}
            found = WorkerSettings(name=name if ":" in name or name == "tools" else f"{GAMES}:{name}", **given)
            return await opened.enter_async_context(EnvironmentPool(found, workers=workers, timeout_s=timeout_s))

        yield make


async def step_of(pool: EnvironmentPool, row: dict[str, Any]) -> Any:
    """What the first step of an episode gives."""
    async with pool.episode() as episode:
        await episode.reset(row)
        return await episode.step(MESSAGE)


async def fault_of(pool: EnvironmentPool, row: dict[str, Any]) -> EnvironmentFault:
    """How the first step of an episode, or its opening, fails."""
    with pytest.raises(EnvironmentFault) as caught:
        await step_of(pool, row)
    return caught.value
