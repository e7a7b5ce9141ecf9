"""The adapter of OpenEnv against a server of the published package, in an environment of its own."""

import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from typing import Any

import pytest
from support.repository import ROOT, TESTS

from streamrl.environments.outcomes import EnvironmentFault, Verdict
from streamrl.environments.processes.pool import EnvironmentPool, OpenEpisode
from streamrl.environments.processes.worker import WorkerSettings
from streamrl.errors import ConfigError

PYTHON = ROOT / ".venvs/openenv/bin/python"


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    if not PYTHON.exists():
        pytest.skip("make test-environments")
    program = [PYTHON, TESTS / "support/environments/openenv_server.py"]
    with subprocess.Popen(program, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            yield f"http://127.0.0.1:{int(server.stdout.readline())}"
        finally:
            server.kill()


@pytest.fixture
async def opened() -> AsyncIterator[Any]:
    async with AsyncExitStack() as stack:

        async def episode(**options: Any) -> OpenEpisode:
            settings = WorkerSettings(name="openenv", options=options, memory_bytes=2**32)
            pool = await stack.enter_async_context(EnvironmentPool(settings))
            return await stack.enter_async_context(pool.episode())

        yield episode


def says(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


async def test_an_episode_whose_actions_are_json(url: str, opened) -> None:
    episode = await opened(url=url, observation="text", instructions="Find it.")
    assert (await episode.reset({"seed": 17})).messages == [{"role": "user", "content": "Find it.\nGuess."}]
    assert await episode.step(says('I try {"number": 3}, or rather {"number": 4}')) == [
        {"role": "user", "content": "No."}
    ]
    assert await episode.step(says("seven")) == [{"role": "user", "content": "Write your action as one JSON object."}]
    (wrong,) = await episode.step(says('{"number": "x"}'))
    assert "VALIDATION_ERROR" in wrong["content"]
    verdict = await episode.step(says('{"number": 7}'))
    assert verdict == Verdict(0.75, {"steps": 2.0, "invalid_actions": 2.0})


async def test_a_text_is_the_field_of_an_action_and_rows_reach_the_servers_reset(url: str, opened) -> None:
    episode = await opened(url=url, action="number")
    (first,) = (await episode.reset({"seed": 2, "reset": {"shift": 20}})).messages
    assert '"text": "Guess."' in first["content"]
    assert await episode.step(says("22")) == Verdict(1.0, {"steps": 1.0, "invalid_actions": 0.0})


async def test_episodes_are_sessions_of_their_own(url: str, opened) -> None:
    first, second = await opened(url=url, action="number"), await opened(url=url, action="number")
    await first.reset({"seed": 1})
    await second.reset({"seed": 2})
    assert (await first.step(says("1"))).reward == (await second.step(says("2"))).reward == 1.0


async def test_what_breaks_on_the_server_is_the_environments_fault(url: str, opened) -> None:
    episode = await opened(url=url, action="number")
    await episode.reset({"seed": 1})
    with pytest.raises(EnvironmentFault, match="the table broke"):
        await episode.step(says("13"))


async def test_a_server_that_is_not_there_is_the_environments_fault(opened) -> None:
    episode = await opened(url="http://127.0.0.1:9")
    with pytest.raises(EnvironmentFault, match=r"openenv\.reset raised ClientConnectorError"):
        await episode.reset({"seed": 1})


async def test_an_address_that_is_none_is_refused(opened) -> None:
    with pytest.raises(ConfigError, match="http://HOST:PORT"):
        await opened(url="127.0.0.1:8000")
