"""DeepSeek's calls, in a section of their own and with marks in full-width letters. Pure.

V3 and R1 write a kind, the name, and the arguments in a block of JSON; V3.1 and later the name and the arguments alone.
The marks of a section go with the call beside them: they are dropped with one that is read, and stay with another.
"""

from collections.abc import Callable
from typing import Final

from streamrl.conversations.formats.step import Found, Step, text_before, unread
from streamrl.conversations.formats.values import object_of
from streamrl.types import FinishReason

SECTION: Final = "<｜tool▁calls▁begin｜>"  # noqa: RUF001 - as they write it
SECTION_END: Final = "<｜tool▁calls▁end｜>"  # noqa: RUF001 - as they write it
CALL: Final = "<｜tool▁call▁begin｜>"  # noqa: RUF001 - as they write it
CALL_END: Final = "<｜tool▁call▁end｜>"  # noqa: RUF001 - as they write it
NAME_END: Final = "<｜tool▁sep｜>"  # noqa: RUF001 - as they write it
FENCE: Final = "```json"


class DeepSeek:
    """called: reads what stands between the marks of one call."""

    def __init__(self, called: Callable[[str], Found | None]) -> None:
        self._called = called
        self._behind = False
        """Behind a call that was read, where its section may end."""

    def step(self, held: str, finish_reason: str) -> Step | None:
        """As `CallForm.step`."""
        rest = held.lstrip()
        if self._behind and SECTION_END.startswith(rest[: len(SECTION_END)]):
            return Step(len(held) - len(rest) + len(SECTION_END)) if len(rest) >= len(SECTION_END) else None
        self._behind = False
        if not held.startswith((SECTION, CALL)):
            return text_before(held, SECTION, CALL)
        first = held.removeprefix(SECTION).lstrip()
        if not first.startswith(CALL):
            return None if CALL.startswith(first) else unread(held, len(SECTION))
        return self._call(held, len(held) - len(first) + len(CALL), finish_reason)

    def _call(self, held: str, start: int, finish_reason: str) -> Step | None:
        body, mark, _ = held[start:].partition(CALL_END)
        if not mark and finish_reason != FinishReason.STOP:
            return None
        length, found = start + len(body) + len(mark), self._called(body)
        if found is None:
            return unread(held, length)
        self._behind = True
        return Step(length, calls=(found,))


def of_v3(body: str) -> Found | None:
    """`function`, the name, and a block of JSON."""
    _, mark, rest = body.partition(NAME_END)
    name, fence, arguments = rest.partition(FENCE)
    return _found(name, arguments.strip().removesuffix("```")) if mark and fence else None


def of_v31(body: str) -> Found | None:
    """The name and JSON."""
    name, mark, arguments = body.partition(NAME_END)
    return _found(name, arguments) if mark else None


def _found(name: str, arguments: str) -> Found | None:
    given, name = object_of(arguments), name.strip()
    return Found(name, given) if name and given is not None else None
