"""How a form is read: step by step, each step deciding what the text that is held begins with. Pure.

Guarantees to whoever drives a form: a step that is made would be made of any longer text as well, so the same is read
in however many pieces the text comes.
"""

from typing import Any, NamedTuple, Protocol

from streamrl.conversations.text import overlap


class Found(NamedTuple):
    """A call that was read."""

    name: str
    arguments: dict[str, Any]


class Step(NamedTuple):
    """length: of the text that is done with. text, thoughts: what of it is shown. calls: that it made."""

    length: int
    text: str = ""
    calls: tuple[Found, ...] = ()
    thoughts: str = ""


class CallForm(Protocol):
    """One text is read by one object."""

    def step(self, held: str, finish_reason: str) -> Step | None:
        """What the text that is held begins with; None where more of it must come to know that. finish_reason: "" while
        more comes; a model that stopped may have left an end mark out."""
        ...


def unread(text: str, length: int) -> Step:
    """So much of a text is shown as it is."""
    return Step(length, text[:length])


def text_before(held: str, *marks: str) -> Step | None:
    """What stands before the first mark; None where nothing does for certain."""
    places = [at for mark in marks if (at := held.find(mark)) >= 0]
    length = min(places, default=len(held) - max(overlap(held, mark) for mark in marks))
    return unread(held, length) if length else None
