"""Thoughts in what a model says, as it comes: text between `<think>` and `</think>`, at its beginning. Pure.

Guarantees: the same is read in however many pieces the text comes; of a text that does not begin with thoughts nothing
is taken away. White space around thoughts is dropped.
"""

from typing import Final, NamedTuple

from streamrl.conversations.text import overlap

BEGIN: Final = "<think>"
END: Final = "</think>"


class Said(NamedTuple):
    thoughts: str
    rest: str


class ThoughtStream:
    """See the module. inside: the text begins with thoughts, as its prompt ended with `<think>`.

    Example:
        stream = ThoughtStream(inside=False)
        stream.feed("<think>well</think> 42")
    """

    def __init__(self, inside: bool) -> None:
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
            before, mark, after = self._held.partition(END)
            sure = before if mark else before[: len(before) - overlap(before, END)]
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
        if BEGIN.startswith(text) and text != BEGIN:
            return False
        self._begun = True
        if text.startswith(BEGIN):
            self._inside, self._held = True, text[len(BEGIN) :]
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
