"""Llama's calls as JSON objects with `name` and `parameters`, several of them joined by `;`. Pure.

Calls are read at the beginning of a message and behind `<|python_tag|>`: an object anywhere else is text.
"""

from typing import Final

import regex

from streamrl.conversations.formats.brackets import Brackets
from streamrl.conversations.formats.step import Found, Step, text_before, unread
from streamrl.conversations.formats.values import call_of, json_of

TAG: Final = "<|python_tag|>"
_ARGUMENTS: Final = ("parameters", "arguments")
_OBJECT: Final = r'(?P<object>\{)\s*+"(?:name|parameters|arguments|type|id)"'
_MARKED: Final = regex.compile(r"<\|python_tag\|>\s*+" + _OBJECT)
_FIRST: Final = regex.compile(r"\s*+(?:<\|python_tag\|>\s*+)?" + _OBJECT)
_NEXT: Final = regex.compile(r"\s*+(?:;\s*+)?(?:<\|python_tag\|>\s*+)?" + _OBJECT)
"""What a call begins with: behind the mark, at the beginning of a message, behind another call."""


class LlamaJson:
    """See the module."""

    def __init__(self) -> None:
        self._brackets: Brackets | None = None
        self._pattern: regex.Pattern[str] | None = _FIRST
        """What a call may begin with here; None where it must have the mark."""

    def step(self, held: str, finish_reason: str) -> Step | None:
        """As `CallForm.step`."""
        if self._pattern is None and not held.startswith(TAG):
            return text_before(held, TAG)
        head = (self._pattern or _MARKED).match(held, partial=True)
        if head is None:
            marked, self._pattern = held.startswith(TAG), None
            return unread(held, len(TAG)) if marked else text_before(held, TAG)
        return None if head.partial else self._object(held, head.start("object"))

    def _object(self, held: str, start: int) -> Step | None:
        self._brackets = self._brackets or Brackets(start)
        end = self._brackets.end(held)
        if end < 0:
            return None
        self._brackets = None
        found = _called(held[start:end])
        self._pattern = None if found is None else _NEXT
        return unread(held, end) if found is None else Step(end, calls=(found,))


def _called(text: str) -> Found | None:
    said = json_of(text)
    if not isinstance(said, dict) or not any(key in said for key in _ARGUMENTS):
        return None  # an answer in JSON, that has a name
    return call_of(said, _ARGUMENTS)
