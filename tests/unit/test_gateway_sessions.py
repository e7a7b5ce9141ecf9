"""Sessions without a server: which calls are turns, which are forks, what is held and what is forgotten."""

import random
import secrets

import pytest

from streamrl.clock import VirtualClock
from streamrl.gateway.refusal import Refusal
from streamrl.gateway.sessions import GONE_KEPT, SESSION_BYTES, TOKEN_BYTES, Call, Session, Sessions
from streamrl.gateway.trajectory import check_branch


def call(prompt: list[int], ids: list[int], *, step: int = 0, finish: str = "stop") -> Call:
    return Call(prompt, ids, [-0.1 * one for one in ids], [(0, 0, step)], finish)


def session_of(*calls: Call) -> Session:
    session = Session()
    for one in calls:
        session.add(one)
    return session


def shape(session: Session) -> list[list[tuple[list[int], list[int]]]]:
    """(ids before, sampled ids) of each turn of each branch."""
    branches = session.branches()
    return [[(list(turn.prompt_ids), list(turn.token_ids)) for turn in branch.turns] for branch in branches]


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


def test_a_call_that_extends_another_is_its_next_turn() -> None:
    session = session_of(
        call([1, 2], [3, 4]), call([1, 2, 3, 4, 9, 9], [5], step=2), call([1, 2, 3, 4, 9, 9, 5], [6], step=2)
    )
    assert shape(session) == [[([1, 2], [3, 4]), ([9, 9], [5]), ([], [6])]]
    assert session.first_prompt == [1, 2]
    assert session.num_tokens == 8


@pytest.mark.parametrize("prompt", [[1, 2], [1, 2, 3], [1, 2, 3, 5], [2, 2, 3, 4], [9, 1, 2, 3, 4]])
def test_any_other_call_is_a_fork_with_a_prompt_of_its_own(prompt: list[int]) -> None:
    session = session_of(call([1, 2], [3, 4]), call(prompt, [7], finish="length"))
    assert shape(session) == [[([1, 2], [3, 4])], [(prompt, [7])]]
    assert [branch.finish_reason for branch in session.branches()] == ["stop", "length"]


def test_a_turn_goes_to_the_longest_branch_that_it_extends() -> None:
    session = session_of(call([1], [2]), call([1], [2, 3]), call([1, 2, 3, 4], [5]), call([1, 2, 8], [6]))
    assert shape(session) == [[([1], [2]), ([8], [6])], [([1], [2, 3]), ([4], [5])]]


def test_what_an_older_version_samples_behind_a_newer_one_is_a_fork() -> None:
    session = session_of(call([1], [2], step=3), call([1, 2], [3], step=2), call([1, 2, 3], [4], step=3))
    assert shape(session) == [[([1], [2])], [([1, 2], [3]), ([], [4])]]


def test_a_call_without_a_sampled_token_leaves_no_trace() -> None:
    assert shape(session_of(call([1], []), call([1], [2]))) == [[([1], [2])]]


def test_of_random_calls_each_sampled_token_is_trained_once_and_each_row_can_be() -> None:
    seed = secrets.randbits(32)
    print("seed", seed)
    rng = random.Random(seed)
    session, texts, sampled = Session(), [[1]], 0
    for _ in range(80):
        prompt = [*rng.choice(texts), *(rng.randrange(3) for _ in range(rng.randrange(3)))]
        if rng.random() < 0.2:
            prompt = prompt[: rng.randrange(1, len(prompt) + 1)]
        ids = [rng.randrange(3) for _ in range(rng.randrange(4))]
        session.add(call(prompt, ids, step=rng.randrange(3)))
        texts.append([*prompt, *ids])
        sampled += len(ids)
    branches = session.branches()
    assert sum(len(turn.token_ids) for branch in branches for turn in branch.turns) == sampled
    for branch in branches:
        check_branch(branch, context=10**6, vocab_size=3)
        whole = [token for turn in branch.turns for token in (*turn.prompt_ids, *turn.token_ids)]
        assert whole in texts
    assert session.num_tokens == sum(branch.num_tokens for branch in branches)


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
