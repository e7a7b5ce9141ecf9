"""What a session knows of what was said in it, so that its next prompt continues the very tokens. Pure.

A conversation comes back as messages, and text that is encoded again may be other tokens than were sampled; a tool
call that was read and is written again may even be another text. So a prompt whose text begins with all text of a
branch begins with that branch's ids, and only what follows is encoded; and a message of the session of which tool
calls or thoughts were read is given to the template as the text that the model sampled.

Guarantees: no id of a branch is ever encoded anew, and a prompt that says anything else than the branch did is encoded
as a whole.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from streamrl.conversations.tool_calls import ParsedMessage
from streamrl.types import IntArray


class SoFar(NamedTuple):
    """Of a branch: all its ids, and its text as far as a client saw it, with the token that ended it written out; None
    where that is not known. opening: ids of its first prompt."""

    ids: list[int]
    text: str | None
    opening: int = 0


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
        """The ids of the longest branch that this text continues, and what of the text follows; no ids, and all of the
        text, where there is none."""
        known = [one for one in self._branches if one.text is not None and text.startswith(one.text)]
        longest = max(known, key=lambda one: len(one.ids), default=SoFar([], ""))
        return longest.ids, text[len(longest.text or "") :]

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
