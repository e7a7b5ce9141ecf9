"""Environments in real child processes: what good ones say arrives, and what bad ones do stays with their episode."""

import asyncio
import os
import signal
from contextlib import AsyncExitStack
from typing import Any

import pytest
from support.environments.opened_pools import GAMES, MESSAGE, fault_of, step_of

from streamrl.environments.outcomes import EnvironmentFault, Fault, Verdict
from streamrl.errors import ConfigError


async def test_an_episode_from_its_opening_to_its_verdict(pool_of) -> None:
    pool = await pool_of("Echo", options={"opening": "hello"})
    async with pool.episode() as episode:
        opening = await episode.reset({"a": 1})
        assert opening.messages == [{"role": "user", "content": "hello"}]
        assert opening.tools[0]["function"]["name"] == "add"
        for _ in range(2):
            assert await episode.step(MESSAGE) == [{"role": "user", "content": "hi"}]
        assert await episode.truncated() == Verdict(0.5)
        verdict = await episode.step(MESSAGE)
    assert verdict == Verdict(1.0, {"heard": 3.0}, '{"row":{"a":1},"last":{"role":"assistant","content":"hello"}}')


async def test_plain_functions_and_an_opening_that_is_the_rows_own(pool_of) -> None:
    pool = await pool_of("Plain")
    async with pool.episode() as episode:
        assert (await episode.reset({})).messages is None
        assert await episode.step(MESSAGE) == Verdict(None, {"length": 5.0})
        assert await episode.truncated() == Verdict(None)


async def test_episodes_of_one_child_run_beside_each_other(pool_of) -> None:
    pool = await pool_of("Bad")
    rows = [{"how": "waits"} for _ in range(64)]
    verdicts = await asyncio.wait_for(asyncio.gather(*(step_of(pool, row) for row in rows)), 10.0)
    assert verdicts == [Verdict(1.0)] * 64


@pytest.mark.parametrize(
    ("how", "kind", "text"),
    [
        ("raises", Fault.RAISED, "raised ValueError: no such move"),
        ("exits", Fault.RAISED, "raised SystemExit: 3"),
        ("leaks", Fault.DIED, "out of memory"),
        ("dies", Fault.DIED, "died: signal 9"),
        ("nan", Fault.GARBAGE, "the reward is nan"),
        ("component", Fault.GARBAGE, "component 'speed' is inf"),
        ("text for a reward", Fault.GARBAGE, "the reward is 'much', not a number"),
        ("number", Fault.GARBAGE, "gave float, not messages, a text or Done"),
        ("nothing", Fault.GARBAGE, "gave no message"),
        ("no role", Fault.GARBAGE, "its role is None"),
        ("no text", Fault.GARBAGE, "its content is int"),
        ("no dict", Fault.GARBAGE, "str, not a dict"),
        ("no json", Fault.GARBAGE, "cannot be written as JSON"),
    ],
)
async def test_what_a_bad_one_does_is_typed_and_the_next_episode_plays(pool_of, how, kind, text) -> None:
    pool = await pool_of("Bad")
    fault = await fault_of(pool, {"how": how})
    assert fault.kind is kind
    assert text in fault.text
    assert "games:Bad" in fault.text
    assert await step_of(pool, {"how": "good"}) == Verdict(1.0)


@pytest.mark.parametrize(("name", "how"), [("Bad", "hangs"), ("Bad", "blocks"), ("Hanging", "")])
async def test_one_that_hangs_is_given_up(pool_of, name: str, how: str) -> None:
    pool = await pool_of(name, timeout_s=1.0)
    fault = await fault_of(pool, {"how": how})
    assert fault.kind is Fault.TIMEOUT
    assert "gave no answer in 1 s" in fault.text
    if name == "Bad":
        assert await step_of(pool, {"how": "good"}) == Verdict(1.0)


async def test_one_that_waits_and_hangs_takes_no_other_with_it(pool_of) -> None:
    pool = await pool_of("Bad", timeout_s=2.0)
    (before,) = pool.pids
    hanging = asyncio.create_task(fault_of(pool, {"how": "hangs"}))
    async with pool.episode() as other:
        await other.reset({"how": "good"})
        assert (await hanging).kind is Fault.TIMEOUT
        assert await other.step(MESSAGE) == Verdict(1.0)
    assert pool.pids == [before]


async def test_of_several_that_are_lost_with_their_child_none_is_blamed(pool_of) -> None:
    pool = await pool_of("Bad")
    (child,) = pool.pids
    async with AsyncExitStack() as opened:
        episodes = [await opened.enter_async_context(pool.episode()) for _ in range(3)]
        for episode in episodes:
            await episode.reset({"how": "hangs"})
        steps = [asyncio.ensure_future(episode.step(MESSAGE)) for episode in episodes[:2]]
        await asyncio.sleep(0)
        os.kill(child, signal.SIGKILL)
        faults = await asyncio.gather(*steps, return_exceptions=True)
        assert [fault.kind for fault in faults] == [Fault.UNCLEAR, Fault.UNCLEAR]
        with pytest.raises(EnvironmentFault, match="between two turns"):
            await episodes[2].step(MESSAGE)
    assert await step_of(pool, {"how": "good"}) == Verdict(1.0)


async def test_no_child_is_left(pool_of) -> None:
    pool = await pool_of("Bad", workers=2)
    pids = pool.pids
    await step_of(pool, {"how": "good"})
    await pool.close()
    assert len(pids) == 2
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"name": "Unmade"}, "raised RuntimeError: no board"),
        ({"name": "NoStep"}, "it lacks step"),
        ({"name": "not_a_class"}, "is a int, not a class"),
        ({"name": "Missing"}, "the module has no 'Missing'"),
        ({"name": "Plain", "options": {"level": 3}}, "takes no option 'level'; it takes none"),
        ({"name": "no_such_module:Game"}, "importing 'no_such_module' failed"),
        ({"name": "tools", "tools": ("calculater",)}, "did you mean 'calculator'"),
    ],
)
async def test_what_cannot_be_had_is_refused_at_the_start(pool_of, settings, text) -> None:
    with pytest.raises(ConfigError, match=text):
        await pool_of(**settings)


async def test_tools_are_called_and_what_they_raise_is_told_to_the_model(pool_of) -> None:
    pool = await pool_of("tools", tools=("calculator",))
    async with pool.episode() as episode:
        opening = await episode.reset({"prompt": "1+1="})
        assert opening.messages == [{"role": "user", "content": "1+1="}]
        assert [tool["function"]["name"] for tool in opening.tools] == ["calculator"]
        given = [("calculator", {"expression": "1+1"}), ("calculator", {}), ("abacus", {"expression": "x" * 10**4})]
        calls = [{"id": str(place), "function": {"name": n, "arguments": a}} for place, (n, a) in enumerate(given)]
        answers = await episode.step({"role": "assistant", "content": "", "tool_calls": calls})
        assert [answer["tool_call_id"] for answer in answers] == ["0", "1", "2"]
        assert answers[0]["content"] == "2"
        assert answers[1]["content"].startswith("Error: TypeError")
        assert answers[2]["content"] == "Error: there is no tool 'abacus'; there are calculator"
        assert await episode.step({"role": "assistant", "content": "2"}) == Verdict(None)


async def test_one_that_is_alone_takes_no_other_with_it_and_leaves_no_child(pool_of) -> None:
    pool = await pool_of("Bad")
    async with pool.episode() as other:
        await other.reset({"how": "good"})
        async with pool.episode(alone=True) as suspect:
            await suspect.reset({"how": "dies"})
            with pytest.raises(EnvironmentFault, match="signal 9") as caught:
                await suspect.step(MESSAGE)
        assert caught.value.kind is Fault.DIED
        assert await other.step(MESSAGE) == Verdict(1.0)
    assert len(pool._calls) == 1


def naps(seconds: float) -> dict[str, Any]:
    call = {"id": "1", "function": {"name": "nap", "arguments": {"seconds": seconds}}}
    return {"role": "assistant", "content": "", "tool_calls": [call]}


async def test_a_tool_that_hangs_keeps_no_thread_for_ever_and_blames_no_other(pool_of) -> None:
    pool = await pool_of("tools", tools=(f"{GAMES}:nap",), timeout_s=3.0)
    (before,) = pool.pids
    async with pool.episode() as hanging, pool.episode() as other:
        await asyncio.gather(hanging.reset({}), other.reset({}))
        with pytest.raises(EnvironmentFault) as caught:
            await hanging.step(naps(10**6))
        assert caught.value.kind is Fault.TIMEOUT
        with pytest.raises(EnvironmentFault) as caught:
            await other.step(naps(2.9))
        assert caught.value.kind is Fault.LOST
    async with pool.episode() as episode:
        await episode.reset({})
        assert (await episode.step(naps(0.0)))[0]["content"] == "awake"
    assert pool.pids != [before]


async def test_a_tool_that_ends_in_time_is_kept(pool_of) -> None:
    pool = await pool_of("tools", tools=(f"{GAMES}:nap",), timeout_s=20.0)
    (before,) = pool.pids

    async def played() -> str:
        async with pool.episode() as episode:
            await episode.reset({})
            return (await episode.step(naps(0.2)))[0]["content"]

    assert await asyncio.gather(*(played() for _ in range(40))) == ["awake"] * 40
    assert pool.pids == [before]
