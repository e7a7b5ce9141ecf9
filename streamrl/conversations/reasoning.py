"""Thoughts in what a model says, as it comes: text between two marks at its beginning, mostly `<think>` and `</think>`.
Pure.

Guarantees: the same is read in however many pieces the text comes; of a text that does not begin with thoughts nothing
is taken away. White space around thoughts is dropped.
"""

from typing import Final, NamedTuple, Protocol

from streamrl.conversations.text import overlap

BEGIN: Final = "<think>"
END: Final = "</think>"


class Said(NamedTuple):
    thoughts: str
    rest: str


class Thoughts(Protocol):
    """The thoughts of one text, in one of the forms."""

    def feed(self, text: str) -> Said:
        """What is new."""
        ...

    def flush(self) -> Said:
        """What was held back, when no more comes."""
        ...


class ThoughtStream:
    """See the module. inside: the text begins with thoughts, as its prompt ended with the mark `begin`.

    Example:
        stream = ThoughtStream(inside=False)
        stream.feed("<think>well</think> 42")
    """

    def __init__(self, inside: bool, begin: str = BEGIN, end: str = END) -> None:
        self._begin = begin
        self._end = end
        self._inside = inside
        self._begun = inside
        self._held = ""
        self._space = ""
        """White space behind thoughts that were shown, which goes with what follows it."""
        self._fresh = True
        """Nothing of what is read now was shown."""

    def feed(self, text: str) -> Said:
        """What is new."""
        self._held += text
        thoughts = ""
        if not self._begun and not self._begins():
            return Said("", "")
        if self._inside:
            before, mark, after = self._held.partition(self._end)
            sure = before if mark else before[: len(before) - overlap(before, self._end)]
            thoughts = self._think(sure)
            if not mark:
                self._held = before[len(sure) :]
                return Said(thoughts, "")
            self._inside, self._fresh, self._held = False, True, after
        rest, self._held = self._held, ""
        return Said(thoughts, self._shown(rest))

    def flush(self) -> Said:
        """What was held back, when no more comes."""
        held, self._held = self._held, ""
        if self._inside:
            return Said(self._think(held), "")
        return Said("", held if not self._begun else self._shown(held))

    def _begins(self) -> bool:
        """Whether it is known by now what the text begins with."""
        text = self._held.lstrip()
        if self._begin.startswith(text) and text != self._begin:
            return False
        self._begun = True
        if text.startswith(self._begin):
            self._inside, self._held = True, text[len(self._begin) :]
        else:
            self._fresh = False
        return True

    def _think(self, text: str) -> str:
        text = self._space + text
        text = text.lstrip() if self._fresh else text
        shown = text.rstrip()
        self._space = text[len(shown) :] if shown or not self._fresh else ""
        self._fresh = self._fresh and not shown
        return shown

    def _shown(self, text: str) -> str:
        """Of what follows thoughts, without the white space between."""
        if self._fresh:
            text = text.lstrip()
            self._fresh = not text
        return text
