"""What a session knows of what was said in it, so that its next prompt continues the very tokens. Pure.

A conversation comes back as messages, and text that is encoded again may be other tokens than were sampled; a tool
call that was read and is written again may even be another text. So a prompt whose text begins with turns of a branch
begins with the ids of these, and only what follows is encoded; and a message of the session of which tool calls or
thoughts were read is given to the template as the text that the model sampled.

Guarantees: no id of a turn is ever encoded anew, also where the turn behind it is asked for again, and what a prompt
says else than a branch did is encoded from the last turn that both have.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from streamrl.conversations.tool_calls import ParsedMessage
from streamrl.types import IntArray


class TurnEnd(NamedTuple):
    """How much of a branch there was behind one of its turns: ids, and characters of its text."""

    ids: int
    characters: int


class SoFar(NamedTuple):
    """Of a branch: all its ids, and its text as far as a client saw it, with the token that ended it written out; None
    where that is not known. opening: ids of its first prompt. ends: of the turns before the last one."""

    ids: list[int]
    text: str | None
    opening: int = 0
    ends: tuple[TurnEnd, ...] = ()

    def ends_within(self, text: str | None) -> tuple[TurnEnd, ...]:
        """Of all its turns, in a text that goes on with its own; none where that is not known."""
        if not self.text or text is None or not text.startswith(self.text):
            return ()
        return (*self.ends, TurnEnd(len(self.ids), len(self.text)))

    def shared_with(self, text: str) -> TurnEnd:
        """The end of the last turn up to which a text is its own."""
        if self.text is None:
            return _NO_TURN
        ends = (*self.ends, TurnEnd(len(self.ids), len(self.text)))
        same = (end for end in reversed(ends) if text.startswith(self.text[: end.characters]))
        return next(same, _NO_TURN)


_NO_TURN: Final = TurnEnd(0, 0)


_READ: Final = frozenset({"reasoning", "reasoning_content", "tool_calls"})
"""What of a message was read out of its text."""
MessageKey = tuple[str, tuple[tuple[str, str, bytes], ...]]
"""Of a message: its text, and of each of its calls the id, the name and the arguments."""


class Memory:
    """See the module. branches: of the session. answers: the sampled text of those messages of which tool calls or
    thoughts were read.

    Example:
        messages = memory.recalled(messages)
        ids, rest = memory.begun(template.render(messages))     # and then encode the rest
    """

    def __init__(self, branches: Sequence[SoFar], answers: Mapping[MessageKey, str]) -> None:
        self._branches = branches
        self._answers = answers

    def recalled(self, messages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        """The same conversation, in which what the model said stands as it said it."""
        return [self._recalled(message) for message in messages]

    def begun(self, text: str) -> tuple[list[int], str]:
        """The ids of the most turns of a branch with which this text begins, and what of the text follows; no ids, and
        all of the text, where there are none."""
        found, end = SoFar([], ""), _NO_TURN
        for branch in self._branches:
            if (shared := branch.shared_with(text)).ids > end.ids:
                found, end = branch, shared
        return found.ids[: end.ids], text[end.characters :]

    def opening(self, ids: IntArray) -> int:
        """With how many ids the longest branch began that a prompt continues; 0 where it continues none."""
        continued = [
            one for one in self._branches if len(ids) > len(one.ids) and one.ids == ids[: len(one.ids)].tolist()
        ]
        return max(continued, key=lambda one: len(one.ids), default=SoFar([], None)).opening

    def _recalled(self, message: Mapping[str, Any]) -> Mapping[str, Any]:
        calls, content = message.get("tool_calls") or [], message.get("content") or ""
        if message.get("role") != "assistant" or not isinstance(calls, list) or not isinstance(content, str):
            return message
        sampled = self._answers.get((content, tuple(map(_call_key, calls))))
        if sampled is None:
            return message
        return {**{name: value for name, value in message.items() if name not in _READ}, "content": sampled}


NOTHING: Final = Memory((), {})


def message_key(said: ParsedMessage) -> MessageKey:
    """By which an answer is found again, however its arguments are spaced by then."""
    return said.content, tuple((one.id, one.name, _canonical(one.arguments)) for one in said.calls)


def _call_key(call: Any) -> tuple[str, str, bytes]:
    call = call if isinstance(call, dict) else {}
    function = call.get("function")
    function = function if isinstance(function, dict) else {}
    return str(call.get("id")), str(function.get("name")), _canonical(function.get("arguments"))


def _canonical(arguments: Any) -> bytes:
    """As text or as an object."""
    try:
        value = msgspec.json.decode(arguments) if isinstance(arguments, str) else arguments
        return msgspec.json.encode(value, order="sorted")
    except (msgspec.DecodeError, RecursionError, TypeError, UnicodeEncodeError):
        return b""
