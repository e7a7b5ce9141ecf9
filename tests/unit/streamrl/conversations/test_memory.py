"""What a session knows of what was said in it: ids in the place of text, sampled text in the place of tool calls."""

import json
from typing import Any

import numpy as np
import pytest

from streamrl.clock import VirtualClock
from streamrl.conversations.conversation import Call, Conversation
from streamrl.conversations.memory import NOTHING, Memory, message_key
from streamrl.conversations.tool_calls import ParsedMessage, ToolCall
from streamrl.gateway.sessions.sessions import SESSION_BYTES, Sessions

SAID = ParsedMessage("I add.", (ToolCall("call_1", "add", '{"a":1,"b":2}'),))


def call(prompt: list[int], ids: list[int], text: str | None, **more: Any) -> Call:
    return Call(prompt, ids, [-1.0] * len(ids), [(0, 0, 0)], "stop", text, **more)


def message(**changes: Any) -> dict[str, Any]:
    function = {"name": "add", "arguments": '{"a":1,"b":2}'}
    whole = {"role": "assistant", "content": "I add.", "tool_calls": [{"id": "call_1", "function": function}]}
    return whole | changes


def memory() -> Memory:
    return Memory([], {message_key(SAID): "I add.<tool_call>..."})


def test_a_prompt_that_continues_a_branch_begins_with_its_ids() -> None:
    session = Conversation()
    session.add(call([1, 2], [3, 4], "ab cd"))
    session.add(call([1, 2, 3, 4, 9], [5], "ab cd e f"))
    session.add(call([7], [8], "ab"))
    known = session.memory()
    assert known.begun("ab cd e f g") == ([1, 2, 3, 4, 9, 5], " g")
    assert known.begun("ab cd e f") == ([1, 2, 3, 4, 9, 5], "")
    assert known.begun("ab c") == ([7, 8], " c")
    assert known.begun("xab cd") == ([], "xab cd")
    assert NOTHING.begun("ab") == ([], "ab")


def test_a_prompt_that_asks_for_a_turn_again_begins_with_the_ids_of_the_turns_before() -> None:
    session = Conversation()
    session.add(call([1, 2], [3, 4], "ab cd"))
    session.add(call([1, 2, 3, 4, 9], [5], "ab cd e f"))
    session.add(call([1, 2, 3, 4, 9, 5, 9], [6], "ab cd e f e g"))
    known = session.memory()
    assert known.begun("ab cd e f e") == ([1, 2, 3, 4, 9, 5], " e")
    assert known.begun("ab cd e h") == ([1, 2, 3, 4], " e h")
    session.add(call([1, 2, 3, 4, 8], [7], "ab cd e h"))
    assert len(session.branches()) == 2
    assert session.memory().begun("ab cd e h i") == ([1, 2, 3, 4, 8, 7], " i")


def test_turns_behind_one_whose_text_is_not_known_are_those_that_can_be_asked_for_again() -> None:
    session = Conversation()
    session.add(call([1, 2], [3], "ab"))
    session.add(call([1, 2, 3, 4], [5], None))
    session.add(call([1, 2, 3, 4, 5, 6], [7], "xy"))
    session.add(call([1, 2, 3, 4, 5, 6, 7, 8], [9], "xyz"))
    known = session.memory()
    assert known.begun("ab") == ([], "ab")
    assert known.begun("xy!") == ([1, 2, 3, 4, 5, 6, 7], "!")


def test_the_opening_of_a_prompt_is_that_of_the_longest_branch_that_it_continues() -> None:
    session = Conversation()
    session.add(call([1, 2], [3, 4], "ab cd"))
    session.add(call([1, 2, 3, 4, 9], [5], "ab cd e f"))
    session.add(call([1, 2, 3], [4], "ab"))
    known = session.memory()
    found = [known.opening(np.array(ids)) for ids in ([1, 2, 3, 4, 9, 5, 7], [1, 2, 3, 4, 8], [1, 2, 3, 4], [2, 1, 1])]
    assert found == [2, 3, 0, 0]
    assert NOTHING.opening(np.array([1])) == 0


def test_a_branch_whose_last_prompt_came_as_ids_is_continued_by_no_text() -> None:
    session = Conversation()
    session.add(call([1, 2], [3], "ab"))
    session.add(call([1, 2, 3, 4], [5], None))
    assert session.memory().begun("ab") == ([], "ab")


def test_what_was_told_before_does_not_change_with_the_session() -> None:
    session = Conversation()
    session.add(call([1], [2], "ab"))
    before = session.memory()
    session.add(call([1, 2, 3], [4], "ab cd"))
    assert before.begun("ab cd ef") == ([1, 2], " cd ef")


@pytest.mark.parametrize(
    "given",
    [
        message(),
        message(content="I add.", name="model"),
        message(tool_calls=[{"id": "call_1", "function": {"name": "add", "arguments": {"b": 2, "a": 1}}}]),
        message(tool_calls=[{"id": "call_1", "function": {"name": "add", "arguments": '{ "b": 2, "a": 1 }'}}]),
    ],
)
def test_a_message_with_calls_of_the_session_stands_as_it_was_sampled(given: dict[str, Any]) -> None:
    user = {"role": "user", "content": "1"}
    first, second = memory().recalled([user, given])
    assert first == user
    assert second == {
        **{name: given[name] for name in given if name != "tool_calls"},
        "content": "I add.<tool_call>...",
    }


@pytest.mark.parametrize(
    "given",
    [
        message(content="I add"),
        message(content=None),
        message(content=7),
        message(tool_calls=[]),
        message(tool_calls="call_1"),
        message(tool_calls=[None]),
        message(tool_calls=[{"id": "call_1"}]),
        message(tool_calls=[{"id": "call_2", "function": {"name": "add", "arguments": '{"a":1,"b":2}'}}]),
        message(tool_calls=[{"id": "call_1", "function": {"name": "sub", "arguments": '{"a":1,"b":2}'}}]),
        message(tool_calls=[{"id": "call_1", "function": {"name": "add", "arguments": '{"a":1}'}}]),
        message(tool_calls=[{"id": "call_1", "function": {"name": "add", "arguments": '"\ud800'}}]),
        message(tool_calls=[{"id": "call_1", "function": {"name": "add", "arguments": {"a": "\ud800"}}}]),
        message(tool_calls=message()["tool_calls"] * 2),
        {"role": "assistant"},
    ],
)
def test_any_other_message_stands_as_it_came(given: dict[str, Any]) -> None:
    assert memory().recalled([given]) == [given]


def test_text_is_counted_among_what_sessions_hold_and_comes_back() -> None:
    sessions = Sessions(VirtualClock(), 60.0, 10**6)
    sessions.begin("a")
    sessions.add("a", [call([1], [2], "x" * 10_000, answer=(SAID, "y" * 5_000))])
    sessions.end("a")
    assert sessions.num_bytes > SESSION_BYTES + 15_000
    assert json.dumps(sessions.memory("a").recalled([message()])).count("y") == 5_000
    assert sessions.memory("b") is NOTHING
    sessions.take("a")
    sessions.rewarded("a")
    assert sessions.num_bytes == 0
