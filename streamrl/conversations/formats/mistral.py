"""Mistral's calls, each behind `[TOOL_CALLS]`. Pure.

Older models write a JSON list of objects with `name` and `arguments`; newer ones `NAME[ARGS]{...}`, some of them with
`[CALL_ID]` and an id before `[ARGS]`. The end is where JSON ends, so strings may hold any mark.
"""

from typing import Final

import regex

from streamrl.conversations.formats.brackets import Brackets
from streamrl.conversations.formats.step import Found, Step, text_before, unread
from streamrl.conversations.formats.values import call_of, json_of, object_of

BEGIN: Final = "[TOOL_CALLS]"
ARGS: Final = "[ARGS]"
CALL_ID: Final = "[CALL_ID]"
_NAMED: Final = r"(?P<name>[^\s\[\]{}]{1,256}+)\s*+(?:\[CALL_ID\][^\s\[\]{}]*+\s*+)?(?:\[ARGS\]\s*+)?(?P<json>\{)"
_HEAD: Final = regex.compile(r"\[TOOL_CALLS\]\s*+(?:" + _NAMED + r"|(?P<json>[\[{]))")
"""Up to the first bracket of the JSON."""


class Mistral:
    """See the module."""

    def __init__(self) -> None:
        self._brackets: Brackets | None = None

    def step(self, held: str, finish_reason: str) -> Step | None:
        """As `CallForm.step`."""
        if not held.startswith(BEGIN):
            return text_before(held, BEGIN)
        head = _HEAD.match(held, partial=True)
        if head is None:
            return unread(held, len(BEGIN))
        if head.partial:
            return None
        start = head.end() - 1
        self._brackets = self._brackets or Brackets(start)
        end = self._brackets.end(held)
        if end < 0:
            return None
        self._brackets = None
        calls = _calls(head["name"], held[start:end])
        return Step(end, calls=calls) if calls else unread(held, end)


def _calls(name: str | None, text: str) -> tuple[Found, ...]:
    """None at all where one of them cannot be read."""
    if name is not None:
        arguments = object_of(text)
        return () if arguments is None else (Found(name, arguments),)
    said = json_of(text)
    found = [call_of(one) for one in (said if isinstance(said, list) else [said])]
    calls = tuple(one for one in found if one is not None)
    return calls if len(calls) == len(found) else ()
