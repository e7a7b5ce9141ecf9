"""Thoughts before an answer: told apart in whatever pieces the text comes, and nothing else is touched."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrl.conversations.reasoning import BEGIN, END, Said, ThoughtStream
from streamrl.conversations.tool_calls import MessageReader

CASES = {
    "thoughts and an answer": (f"{BEGIN}\nwell, 6 * 7\n{END}\n\n42", False, Said("well, 6 * 7", "42")),
    "begun by the prompt": (f"well{END} 42", True, Said("well", "42")),
    "never ended": (f" {BEGIN} well, <tool", False, Said("well, <tool", "")),
    "never ended, begun by the prompt": ("well </thin", True, Said("well </thin", "")),
    "no thoughts": ("  42 <b>", False, Said("", "  42 <b>")),
    "almost thoughts": ("<thin", False, Said("", "<thin")),
    "thoughts later": (f"42 {BEGIN}x{END}", False, Said("", f"42 {BEGIN}x{END}")),
    "none at all": (f"{BEGIN}{END}42", False, Said("", "42")),
    "white space within": (f"{BEGIN}a \n b{END}c \n d ", False, Said("a \n b", "c \n d ")),
    "two ends": (f"a{END}b{END}c", True, Said("a", f"b{END}c")),
    "nothing": ("", False, Said("", "")),
}


def read(text: str, inside: bool, cuts: list[int]) -> Said:
    stream, places = ThoughtStream(inside), sorted({0, *(cut for cut in cuts if cut < len(text)), len(text)})
    parts = [stream.feed(text[a:b]) for a, b in pairwise(places)] + [stream.flush()]
    return Said("".join(part.thoughts for part in parts), "".join(part.rest for part in parts))


@pytest.mark.parametrize("name", CASES)
def test_a_text_is_read_letter_by_letter_as_at_once(name: str) -> None:
    text, inside, expected = CASES[name]
    assert read(text, inside, []) == expected
    assert read(text, inside, list(range(len(text)))) == expected


@given(
    text=st.lists(st.sampled_from([BEGIN, END, "<", "think>", " ", "\n", "a", "b"]), max_size=12).map("".join),
    inside=st.booleans(),
    cuts=st.lists(st.integers(0, 60)),
)
def test_pieces_make_no_difference_and_nothing_but_marks_and_space_is_lost(
    text: str, inside: bool, cuts: list[int]
) -> None:
    whole = read(text, inside, [])
    assert read(text, inside, cuts) == whole
    left = "".join((whole.thoughts + whole.rest).split())
    assert len("".join(text.split())) - len(left) <= len(BEGIN) + len(END)


def test_calls_are_read_in_what_follows_thoughts_alone() -> None:
    call = '<tool_call>{"name": "add", "arguments": {}}</tool_call>'
    said = MessageReader("n", {"add": {}}, thinks=False).parse(0, f"{BEGIN}I may {call}.{END}So: {call}", "stop")
    assert (said.thoughts, said.content, len(said.calls)) == (f"I may {call}.", "So:", 1)
