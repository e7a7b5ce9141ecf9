"""Sessions without a server: what is held and what is forgotten."""

import pytest

from streamrl.clock import VirtualClock
from streamrl.conversations.conversation import TOKEN_BYTES, Call
from streamrl.gateway.refusal import Refusal
from streamrl.gateway.sessions.sessions import GONE_KEPT, SESSION_BYTES, Sessions


def call(prompt: list[int], ids: list[int], *, step: int = 0, finish: str = "stop") -> Call:
    return Call(prompt, ids, [-0.1 * one for one in ids], [(0, 0, step)], finish)


def sessions_of(*, idle_s: float = 60.0, byte_limit: int = 10**6) -> tuple[Sessions, VirtualClock]:
    clock = VirtualClock()
    return Sessions(clock, idle_s, byte_limit), clock


def made(sessions: Sessions, name: str, *calls: Call) -> None:
    sessions.begin(name)
    sessions.add(name, calls)
    sessions.end(name)


def code_of(act, *args) -> str:
    with pytest.raises(Refusal) as caught:
        act(*args)
    return caught.value.code


def test_a_session_that_nobody_uses_is_forgotten_and_says_so() -> None:
    sessions, clock = sessions_of(idle_s=60.0)
    made(sessions, "old", call([1], [2]))
    clock.advance(30.0)
    made(sessions, "young", call([1], [2]))
    sessions.begin("running")
    clock.advance(30.0)
    assert code_of(sessions.take, "old") == code_of(sessions.begin, "old") == "session_forgotten"
    assert len(sessions) == 2
    clock.advance(30.0)
    assert code_of(sessions.take, "young") == "session_forgotten"
    sessions.add("running", [call([1], [2])])
    sessions.end("running")
    assert sessions.take("running").num_tokens == 2


def test_a_session_is_rewarded_once_and_takes_nothing_meanwhile_nor_after() -> None:
    sessions, _ = sessions_of()
    assert code_of(sessions.take, "a") == "session_not_found"
    sessions.begin("a")
    assert code_of(sessions.take, "a") == "session_not_found"
    sessions.add("a", [call([1], [2])])
    assert code_of(sessions.take, "a") == "session_busy"
    sessions.end("a")
    assert sessions.take("a").first_prompt == [1]
    assert code_of(sessions.take, "a") == "session_busy"
    assert code_of(sessions.begin, "a") == "session_ended"
    sessions.reopen("a")
    made(sessions, "a", call([1, 2, 3], [4]))
    assert sessions.take("a").num_tokens == 4
    sessions.rewarded("a")
    sessions.rewarded("a")
    assert code_of(sessions.begin, "a") == "session_ended"
    assert code_of(sessions.take, "a") == "session_not_found"
    assert (len(sessions), sessions.num_bytes) == (0, 0)


def test_what_is_held_is_bounded_and_comes_back() -> None:
    sessions, clock = sessions_of(byte_limit=2 * SESSION_BYTES + 2 * TOKEN_BYTES - 1)
    made(sessions, "a", call([1], [2]))
    assert sessions.num_bytes == SESSION_BYTES + 2 * TOKEN_BYTES
    assert code_of(sessions.begin, "b") == "too_many_sessions"
    clock.advance(60.0)
    sessions.begin("b")
    assert (len(sessions), sessions.num_bytes) == (1, SESSION_BYTES)


def test_of_those_that_ended_the_newest_are_known() -> None:
    sessions, clock = sessions_of(byte_limit=10**9)
    for number in range(GONE_KEPT + 1):
        made(sessions, f"{number}", call([1], [2]))
    clock.advance(60.0)
    assert code_of(sessions.begin, f"{GONE_KEPT}") == "session_forgotten"
    sessions.begin("0")
    assert len(sessions._gone) == GONE_KEPT
