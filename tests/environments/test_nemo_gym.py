"""The adapter of NeMo Gym against resources servers of the published package, with rows of its own data sets."""

import importlib.util
import json
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path
from typing import Any

import pytest
from support.repository import ROOT, TESTS

from streamrl.environments.outcomes import EnvironmentFault, Verdict
from streamrl.environments.processes.pool import EnvironmentPool, OpenEpisode
from streamrl.environments.processes.worker import WorkerSettings
from streamrl.errors import ConfigError

PYTHON = ROOT / ".venvs/nemo-gym/bin/python"
COUNTER = "example_session_state_mgmt.app:StatefulCounterResourcesServer"
SYNONYMS = "example_multi_step.app:ExampleMultiStepResourcesServer"


@pytest.fixture(scope="module")
def served() -> Iterator[Callable[[str], str]]:
    """The URL of a server of that class."""
    if not PYTHON.exists():
        pytest.skip("make test-environments")
    with ExitStack() as stack:

        def start(name: str) -> str:
            program = [PYTHON, TESTS / "support/environments/nemo_gym_server.py", f"resources_servers.{name}"]
            server = stack.enter_context(subprocess.Popen(program, stdout=subprocess.PIPE, text=True))
            stack.callback(server.kill)
            assert server.stdout is not None
            return f"http://127.0.0.1:{int(server.stdout.readline())}"

        yield start


def rows_of(name: str) -> list[dict[str, Any]]:
    (folder,) = (ROOT / ".venvs/nemo-gym/lib").glob("python3.*/site-packages/resources_servers")
    file: Path = folder / name.split(".")[0] / "data/example.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()]


@pytest.fixture
async def opened() -> AsyncIterator[Any]:
    async with AsyncExitStack() as stack:

        async def episode(**options: Any) -> OpenEpisode:
            settings = WorkerSettings(name="nemo_gym", options=options, memory_bytes=2**32)
            pool = await stack.enter_async_context(EnvironmentPool(settings))
            return await stack.enter_async_context(pool.episode())

        yield episode


def calls(*functions: tuple[str, dict[str, Any]]) -> dict[str, Any]:
    made = [
        {"id": f"call_{place}", "type": "function", "function": {"name": name, "arguments": arguments}}
        for place, (name, arguments) in enumerate(functions)
    ]
    return {"role": "assistant", "content": "", "tool_calls": made}


def says(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


async def test_a_session_with_a_state_of_its_own(served, opened) -> None:
    url, row = served(COUNTER), rows_of(COUNTER)[0]  # "add 1 then add 2 then get the count", from 3 to 6
    episode, other = await opened(url=url), await opened(url=url)
    opening = await episode.reset(row)
    await other.reset(row)
    assert opening.messages == [{"role": "user", "content": "add 1 then add 2 then get the count"}]
    assert [tool["function"]["name"] for tool in opening.tools] == ["increment_counter", "get_counter_value"]
    answers = await episode.step(calls(("increment_counter", {"count": 1}), ("increment_counter", {"count": 2})))
    assert [json.loads(one["content"]) for one in answers] == [{"success": True}] * 2
    assert [one["tool_call_id"] for one in answers] == ["call_0", "call_1"]
    (count,) = await episode.step(calls(("get_counter_value", {})))
    assert json.loads(count["content"]) == {"count": 6}
    assert (await episode.step(says("6"))).reward == 1.0
    assert (await other.step(says("3"))).reward == 0.0


async def test_a_verdict_on_the_calls_and_what_the_tools_do_not_take(served, opened) -> None:
    url, row = served(SYNONYMS), rows_of(SYNONYMS)[0]
    episode = await opened(url=url)
    opening = await episode.reset(row)
    assert [one["role"] for one in opening.messages] == ["system", "user"]
    (wrong,) = await episode.step(calls(("get_synonym_value", {"word": "x"})))
    assert "synonym" in wrong["content"]
    (unknown,) = await episode.step(calls(("shell", {})))
    assert "there is no tool 'shell'" in unknown["content"]
    await episode.step(calls(("extract_synonym_values", {"synonym_values": row["expected_synonym_values"]})))
    verdict = await episode.step(says("done"))
    assert isinstance(verdict, Verdict)
    assert (verdict.reward, verdict.components["accuracy"], verdict.components["set_overlap"]) == (1.0, 1.0, 1.0)
    episode = await opened(url=url)
    await episode.reset({**row, "responses_create_params": json.dumps(row["responses_create_params"])})
    assert (await episode.truncated()).reward == 0.0


async def test_what_cannot_be_played_is_told(served, opened) -> None:
    with pytest.raises(ConfigError, match="it is of the form http://HOST:PORT"):
        await opened(url="127.0.0.1")
    with pytest.raises(EnvironmentFault, match=r"the row has no responses_create_params\.input; it has prompt"):
        await (await opened(url="http://127.0.0.1:1")).reset({"prompt": "x"})
    with pytest.raises(EnvironmentFault, match="Cannot connect to host"):
        await (await opened(url="http://127.0.0.1:1")).reset(rows_of(COUNTER)[0])
    row = rows_of(COUNTER)[0]
    del row["initial_count"]
    with pytest.raises(EnvironmentFault, match=r"seed_session: status 422: .*initial_count"):
        await (await opened(url=served(COUNTER))).reset(row)


def test_the_package_itself_is_not_needed_here() -> None:
    assert importlib.util.find_spec("nemo_gym") is None
