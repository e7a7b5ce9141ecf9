"""What an odd environment does in its process: each call has an answer at once, which says what happened."""

import pytest
from support.environments.opened_pools import OpenPool, fault_of, step_of

from streamrl.environments.outcomes import EnvironmentFault, Fault, Verdict

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
