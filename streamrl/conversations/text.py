"""From sampled ids to the text that a client reads, as they come. Pure.

Guarantees: the deltas put together are the text of all tokens, cut before the first stop string; no delta holds a part
of a stop string, nor half a character; tokens behind the one that completed a stop string are not taken.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from streamrl.models.tokenizer import TextTokenizer

_UNFINISHED = "\ufffd"
"""How a decoder writes the bytes of a character of which some are missing."""


class Taken(NamedTuple):
    """text: what may be shown now. num_tokens: that were taken. offsets: for each, the length of the text before
    it."""

    text: str
    num_tokens: int
    offsets: list[int]


class TextStream:
    """The text of one completion.

    A token's text may depend on its neighbours, so each is decoded together with those of the piece of text before it,
    as Hugging Face's text-generation-inference does it (`prefix_offset`, `read_offset`).

    written: ids of special tokens that the text shows.

    Example:
        stream = TextStream(tokenizer, stops=["\\n\\n"])
        taken = stream.feed(token_ids)
        if stream.stopped: ...              # abort: the rest is not wanted
        rest = stream.flush()
    """

    def __init__(
        self, tokenizer: TextTokenizer, stops: Sequence[str] = (), written: frozenset[int] = frozenset()
    ) -> None:
        self._tokenizer = tokenizer
        self._written = written
        self._stops = tuple(stops)
        self._ids: list[int] = []
        self._prefix = self._read = 0
        self._held = ""
        """Decoded, and maybe the beginning of a stop string."""
        self._length = 0
        self.stopped = False
        self.stop = ""
        """The stop string that ended it."""

    def feed(self, token_ids: Sequence[int]) -> Taken:
        """Take tokens up to the one that completes a stop string."""
        shown, offsets = "", []
        for token_id in token_ids:
            if self.stopped:
                break
            offsets.append(self._length)
            shown += self._show(self._decoded(token_id))
        return Taken(shown, len(offsets), offsets)

    def flush(self) -> str:
        """What was held back, when no more tokens come."""
        if self.stopped:
            return ""
        rest = self._text(self._prefix, len(self._ids))[len(self._text(self._prefix, self._read)) :]
        self._prefix = self._read = len(self._ids)
        shown = self._show(rest)
        held, self._held = self._held, ""
        return shown + ("" if self.stopped else held)

    def _decoded(self, token_id: int) -> str:
        """The text that a token adds; "" as long as its last character is not whole."""
        self._ids.append(token_id)
        before = self._text(self._prefix, self._read)
        now = self._text(self._prefix, len(self._ids))
        if len(now) <= len(before) or now.endswith(_UNFINISHED):
            return ""
        self._prefix, self._read = self._read, len(self._ids)
        self._length += len(now) - len(before)
        return now[len(before) :]

    def _text(self, start: int, stop: int) -> str:
        return self._tokenizer.decode(np.array(self._ids[start:stop], np.int32), written=self._written)

    def _show(self, new: str) -> str:
        """Of what is held and `new`, what cannot be a part of a stop string."""
        text = self._held + new
        ends = [(found, stop) for stop in self._stops if (found := text.find(stop)) >= 0]
        if ends:
            end, self.stop = min(ends)
            self.stopped, self._held = True, ""
            return text[:end]
        keep = max((overlap(text, stop) for stop in self._stops), default=0)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]


def overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that `stop` begins with."""
    longest = min(len(text), len(stop) - 1)
    return next((length for length in range(longest, 0, -1) if text.endswith(stop[:length])), 0)
