"""The adapter of verifiers against the published package: its environments, and the programs of its harnesses."""

import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from support.repository import ROOT, TESTS

from streamrl.environments.outcomes import EnvironmentFault, Verdict
from streamrl.environments.processes.pool import EnvironmentPool, OpenEpisode
from streamrl.environments.processes.worker import WorkerSettings
from streamrl.errors import ConfigError

PACKAGE = pytest.mark.skipif(find_spec("verifiers") is None, reason="make test-environments")
CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
BIN = ROOT / ".venvs/verifiers/bin"


def played_by(harness: str) -> dict[str, Any]:
    return {"speller": {"harness": {"id": harness}, "runtime": {"type": "subprocess"}}}


@pytest.fixture
async def opened(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Any]:
    monkeypatch.setenv("PATH", f"{BIN}:{os.environ['PATH']}")  # uv, by which the harnesses' programs get what they need
    # uv trusts a list of its own, and not the system's.
    if CERTIFICATES.exists() and "SSL_CERT_FILE" not in os.environ:  # noqa: ASYNC240 - a moment
        monkeypatch.setenv("SSL_CERT_FILE", str(CERTIFICATES))
    monkeypatch.setenv("PYTHONPATH", str(TESTS / "support/environments"))  # an installed task set needs none
    async with AsyncExitStack() as stack:

        async def episode(**options: Any) -> OpenEpisode:
            paths = [str(TESTS / "support/environments")]
            given = {"taskset": "spelling_taskset", "config": played_by("null"), **options}
            settings = WorkerSettings(name="verifiers", options=given, memory_bytes=2**33, import_paths=paths)
            pool = await stack.enter_async_context(EnvironmentPool(settings, timeout_s=240.0))
            return await stack.enter_async_context(pool.episode())

        yield episode


def says(text: str, *calls: dict[str, Any]) -> dict[str, Any]:
    return {"role": "assistant", "content": text, **({"tool_calls": list(calls)} if calls else {})}


@PACKAGE
async def test_an_environment_that_answers_and_scores(opened) -> None:
    episode = await opened()
    opening = await episode.reset({"seed": 4})
    assert [(one["role"], one["content"]) for one in opening.messages] == [
        ("system", "One word."),
        ("user", "Spell stream backwards."),
    ]
    assert await episode.step(says("stream")) == [{"role": "user", "content": "No."}]
    verdict = await episode.step(says("maerts"))
    assert verdict == Verdict(1.0, {"length": 6.0, "backwards": 1.0}, verdict.info)


@PACKAGE
async def test_the_row_says_which_task_and_a_limit_ends_it_with_what_it_earned(opened) -> None:
    episode = await opened()
    opening = await episode.reset({"idx": 2})
    assert opening.messages[-1]["content"] == "Spell queue backwards."
    await episode.step(says("x"))
    assert (await episode.truncated()).reward == 0.0


@PACKAGE
async def test_a_tool_of_the_task_set(opened) -> None:
    episode = await opened()
    opening = await episode.reset({"idx": 0})
    (tool,) = opening.tools
    name = tool["function"]["name"]
    assert name.endswith("letters")
    call = {"id": "call_1", "type": "function", "function": {"name": name, "arguments": {"word": "abc"}}}
    (answer,) = await episode.step(says("", call))
    assert (answer["role"], answer["tool_call_id"]) == ("tool", "call_1")
    assert "a-b-c" in answer["content"]
    verdict = await episode.step(says("cba"))
    assert (verdict.reward, verdict.components["length"]) == (1.0, 3.0)


@PACKAGE
async def test_a_harness_with_a_tool(opened, tmp_path: Path) -> None:
    episode = await opened(config=played_by("bash"))
    opening = await episode.reset({"idx": 0})
    assert "bash" in [tool["function"]["name"] for tool in opening.tools]
    arguments = {"command": "echo abc | rev"}
    call = {"id": "call_1", "type": "function", "function": {"name": "bash", "arguments": arguments}}
    (answer,) = await episode.step(says("", call))
    assert (answer["role"], answer["tool_call_id"]) == ("tool", "call_1")
    assert "cba" in answer["content"]
    verdict = await episode.step(says("cba"))
    assert (verdict.reward, verdict.components["length"]) == (1.0, 3.0)


def asking(**more: Any) -> dict[str, Any]:
    """An environment of several agents."""
    seat = {"harness": {"id": "null"}, "runtime": {"type": "subprocess"}}
    seats = dict.fromkeys(("asker", "speller", "judge"), seat)
    return {"taskset": "asking_taskset", "config": {**seats, **more}}


@PACKAGE
async def test_several_agents_have_conversations_and_rewards_of_their_own(opened) -> None:
    episode = await opened(**asking())
    opening = await episode.reset({"idx": 0})
    assert (opening.agent, [one["content"] for one in opening.messages]) == ("asker", ["Say a word."])
    told = await episode.step(says("abc"))
    assert (told.agent, [one["content"] for one in told.messages]) == ("speller", ["Spell abc backwards."])
    told = await episode.step(says("cba"))
    assert (told.agent, [one["content"] for one in told.messages]) == ("asker", ["It is cba."])
    verdict = await episode.step(says("Good."))
    assert verdict.rewards == {"asker": 0.5, "speller": 1.0}
    assert verdict.components == {"asker/asked": 0.5, "speller/spelt": 1.0}


@PACKAGE
@pytest.mark.parametrize(
    ("more", "before", "words"),
    [
        ({"judged": True}, ["abc", "cba"], "agent 'judge' is not trained.*options.config.judge.client"),
        ({"attempts": 2}, ["abc"], "agent 'speller' plays more than once"),
    ],
)
async def test_agents_that_cannot_be_trained_together_are_told_by_name(
    more: dict[str, Any], before: list[str], words: str, opened
) -> None:
    episode = await opened(**asking(**more))
    await episode.reset({"idx": 0})
    for said in before:
        await episode.step(says(said))
    with pytest.raises(EnvironmentFault, match=words):
        await episode.step(says("Good."))


@PACKAGE
async def test_what_cannot_be_played_is_told(opened) -> None:
    with pytest.raises(ConfigError, match="task set 'no-such': taskset 'no-such' not found"):
        await opened(taskset="no-such")
    with pytest.raises(ConfigError, match=r"environment 'verifiers': task set 'spelling_taskset': .*speler"):
        await opened(config={"speler": {}})
    none = {"speller": {"harness": {"id": "null"}, "runtime": {"type": "subprocess"}, "timeout": {"setup": 1e-9}}}
    with pytest.raises(EnvironmentFault, match="the rollout ended before its first turn"):
        await (await opened(config=none)).reset({"idx": 0})


@pytest.mark.skipif(find_spec("verifiers") is not None, reason="it is installed")
async def test_without_the_package_it_says_what_to_install(opened) -> None:
    with pytest.raises(ConfigError, match=r"pip install 'streamrl\[verifiers\]'"):
        await opened()
