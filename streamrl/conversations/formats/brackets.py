"""Where a text in brackets ends, found as it comes: every character is looked at once. Pure."""

import re
from typing import Final

_SIGN: Final = re.compile(r"[\\\"'()\[\]{}]")


class Brackets:
    """Of one text. start: the place of its first bracket. quotes: that strings in it have; brackets in these do not
    count.

    Example:
        brackets = Brackets(start=0)
        brackets.end('{"a": [')             # -1: it goes on
        brackets.end('{"a": ["}"]} ...')    # 12
    """

    def __init__(self, start: int, quotes: str = '"') -> None:
        self._at = start
        self._quotes = quotes
        self._quote = ""
        """That the string which is open began with."""
        self._escaped = -1
        self._depth = 0

    def end(self, text: str) -> int:
        """The place behind its last bracket, -1 where it has not come. text: the whole one, as long as it is now."""
        for found in _SIGN.finditer(text, self._at):
            if found.start() != self._escaped and self._closes(found[0], found.start()):
                return found.end()
        self._at = len(text)
        return -1

    def _closes(self, sign: str, place: int) -> bool:
        """Whether this sign is the last bracket."""
        if self._quote:
            if sign == "\\":
                self._escaped = place + 1
            elif sign == self._quote:
                self._quote = ""
        elif sign in self._quotes:
            self._quote = sign
        elif sign in "([{":
            self._depth += 1
        elif sign in ")]}":
            self._depth -= 1
            return self._depth <= 0
        return False
