"""What an odd environment does in its process: each call has an answer at once, which says what happened."""

import pytest
from support.environments.opened_pools import OpenPool, fault_of, step_of

from streamrl.environments.outcomes import EnvironmentFault, Fault, Verdict
from streamrl.errors import ConfigError

ODD = "support.environments.odd_games"


@pytest.mark.parametrize("kind", ["Odd", "AsyncOdd"])
@pytest.mark.parametrize(
    ("how", "text"),
    [
        ("next", "StopIteration"),
        ("unreadable", "raised _Unreadable: (its text cannot be read)"),
        ("base", "raised _OfItsOwn: far out"),
        ("cancelled", "raised CancelledError"),
        ("component that is no text", "surrogates not allowed"),
        ("agent that is no text", "surrogates not allowed"),
    ],
)
async def test_each_call_is_answered_whatever_it_raises_and_its_process_lives(
    pool_of: OpenPool, kind: str, how: str, text: str
) -> None:
    pool = await pool_of(f"{ODD}:{kind}", options={"how": how})
    before = pool.pids
    fault = await fault_of(pool, {})
    assert fault.kind in (Fault.RAISED, Fault.GARBAGE)
    assert text in fault.text
    assert pool.pids == before


async def test_the_line_of_the_users_code_is_told(pool_of: OpenPool) -> None:
    fault = await fault_of(await pool_of(f"{ODD}:Odd", options={"how": "base"}), {})
    assert "(odd_games.py, line " in fault.text


async def test_a_coroutine_that_blocks_its_process_is_told_what_it_does(pool_of: OpenPool) -> None:
    fault = await fault_of(await pool_of(f"{ODD}:Blocking", timeout_s=1.0), {})
    assert fault.kind is Fault.TIMEOUT
    assert "make it a plain method, which has a thread of its own" in fault.text


async def test_values_in_the_place_of_optional_methods_are_no_methods(pool_of: OpenPool) -> None:
    pool = await pool_of(f"{ODD}:Flags")
    async with pool.episode() as episode:
        await episode.reset({})
        assert await episode.truncated() == Verdict(None)


async def test_two_episodes_that_share_an_object_are_told(pool_of: OpenPool) -> None:
    pool = await pool_of(f"{ODD}:one_board")
    async with pool.episode() as first, pool.episode() as second:
        await first.reset({})
        with pytest.raises(EnvironmentFault, match="one object to two episodes"):
            await second.reset({})
    assert await step_of(pool, {}) == [{"role": "user", "content": "hi"}]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("OfGymnasium", r"reset\(\*, seed.*\) .* is called with one value, the row: too many positional arguments"),
        ("TwoTools", "two tools have the name 'add'"),
    ],
)
async def test_what_can_be_seen_of_a_class_is_refused_at_the_start(pool_of: OpenPool, name: str, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        await pool_of(f"{ODD}:{name}")


async def test_tools_that_come_with_reset_are_looked_at_there(pool_of: OpenPool) -> None:
    fault = await fault_of(await pool_of(f"{ODD}:LateTools"), {})
    assert fault.kind is Fault.GARBAGE
    assert "LateTools: tools is a dict, not a list" in fault.text


async def test_what_tools_give_is_told_as_text(pool_of: OpenPool) -> None:
    names = ("in_bytes", "later", "runs_out", "half")
    pool = await pool_of("tools", tools=tuple(f"{ODD}:{name}" for name in names))
    calls = [{"id": name, "function": {"name": name, "arguments": {}}} for name in names]
    async with pool.episode() as episode:
        await episode.reset({"prompt": "hi"})
        answers = await episode.step({"role": "assistant", "content": "", "tool_calls": calls})
    assert [one["content"] for one in answers] == ["café \ufffd", "now", "Error: RuntimeError: StopIteration", "?"]
