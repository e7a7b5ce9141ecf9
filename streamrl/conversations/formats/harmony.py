"""gpt-oss' harmony: messages with a header each, in channels. Pure.

    <|channel|>analysis<|message|>THOUGHTS<|end|>
    <|start|>assistant<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>{...}<|call|>
    <|start|>assistant<|channel|>final<|message|>TEXT<|return|>

The channel `analysis` is thoughts. A message to `functions.NAME` is a call. All else is text, the words to the user
before a call (`commentary`) too. Headers and marks are left out, except those of a message to somebody that is no call
that can be read. Messages of one kind are a line apart.
"""

import re
from typing import Final

from streamrl.conversations.formats.step import Found, Step, text_before, unread
from streamrl.conversations.formats.values import object_of
from streamrl.conversations.reasoning import Said
from streamrl.types import FinishReason

START: Final = "<|start|>"
CHANNEL: Final = "<|channel|>"
MESSAGE: Final = "<|message|>"
CONSTRAIN: Final = "<|constrain|>"
ENDS: Final = ("<|end|>", "<|call|>", "<|return|>")
MARKS: Final = (START, CHANNEL, MESSAGE, CONSTRAIN, *ENDS)
THINKING: Final = f"{CHANNEL}analysis{MESSAGE}"
"""A prompt that ends with it has begun thoughts."""
FUNCTIONS: Final = "functions."
_TO: Final = "to="
_RECIPIENT: Final = re.compile(r"(?:^|\s)to=([^\s<]+)")
_CHANNEL: Final = re.compile(r"<\|channel\|>\s*(\w+)")
_MARK: Final = re.compile("|".join(map(re.escape, MARKS)))
_LAST: Final = re.compile("|".join(map(re.escape, (*ENDS, START, CHANNEL))))
"""What a message ends with; a header that follows it without an end mark, too."""


class Harmony:
    """See the module. reads_thoughts: else these are text. thinking: the text begins within thoughts."""

    def __init__(self, reads_thoughts: bool = False, thinking: bool = False) -> None:
        self._reads_thoughts = reads_thoughts
        self._thinking = thinking
        self._fresh = True
        """Nothing was read: a prompt ends within a header, so a recipient may come first."""
        self._said = {True: False, False: False}
        """Whether there were thoughts, and text."""
        self._apart = False
        """A message has begun of which nothing was shown."""

    def step(self, held: str, finish_reason: str) -> Step | None:
        """As `CallForm.step`."""
        fresh = self._fresh and not self._thinking
        begins = held.lstrip()
        if fresh and _TO.startswith(begins[: len(_TO)]) and not finish_reason and len(begins) < len(_TO):
            return None
        self._fresh = False
        if held.startswith((START, CHANNEL)) or (fresh and begins.startswith(_TO)):
            made = self._message(held, finish_reason)
            self._fresh = fresh and made is None
            return made
        if (mark := _MARK.match(held)) is not None:
            self._thinking = self._thinking and mark[0] not in ENDS
            return Step(mark.end())
        return self._shown(held)

    def _message(self, held: str, finish_reason: str) -> Step | None:
        """Of a header: what it is dropped for, or the whole message to somebody."""
        header, mark, _ = held.partition(MESSAGE)
        length = _header_breaks(header) or (0 if mark or not finish_reason else len(held))
        if length:
            return unread(held, length) if _RECIPIENT.search(header[:length]) else Step(length)
        if not mark:
            return None
        start = len(header) + len(mark)
        recipient, channel = _RECIPIENT.search(header), _CHANNEL.search(header)
        self._thinking = False
        if recipient is not None:
            return _sent(held, start, recipient[1], finish_reason)
        self._thinking = self._reads_thoughts and channel is not None and channel[1] == "analysis"
        self._apart = True
        return Step(start)

    def _shown(self, held: str) -> Step | None:
        before = text_before(held, *MARKS)
        if before is None:
            return None
        apart = "\n" if self._apart and self._said[self._thinking] else ""
        self._apart, self._said[self._thinking] = False, True
        text = apart + before.text
        return Step(before.length, thoughts=text) if self._thinking else Step(before.length, text)


class HarmonyThoughts:
    """The thoughts alone: what is text is told apart from them, and messages to somebody stay as they are.

    It is fed as `streamrl.conversations.reasoning.ThoughtStream`."""

    def __init__(self, inside: bool) -> None:
        self._form = Harmony(reads_thoughts=True, thinking=inside)
        self._held = ""

    def feed(self, text: str) -> Said:
        """What is new."""
        self._held += text
        return self._read("")

    def flush(self) -> Said:
        """What was held back, when no more comes."""
        said = self._read(FinishReason.LENGTH)
        held, self._held = self._held, ""
        return Said(said.thoughts, said.rest + held)

    def _read(self, finish_reason: str) -> Said:
        thoughts, rest = "", ""
        while self._held and (step := self._form.step(self._held, finish_reason)) is not None:
            thoughts += step.thoughts
            rest += self._held[: step.length] if step.calls else step.text
            self._held = self._held[step.length :]
        return Said(thoughts, rest)


def _header_breaks(header: str) -> int:
    """Where a header ends without a message: behind an end mark, or where another one begins; 0 where it does not."""
    channels = 0
    for last in _LAST.finditer(header):
        channels += last[0] == CHANNEL
        if last[0] in ENDS:
            return last.end()
        if last.start() and (last[0] == START or channels > 1):
            return last.start()
    return 0


def _sent(held: str, start: int, recipient: str, finish_reason: str) -> Step | None:
    """The message to somebody whose content begins at `start`."""
    last = _LAST.search(held, start)
    if last is None and finish_reason != FinishReason.STOP:
        return None
    end = len(held) if last is None else last.start()
    length = end if last is None or last[0] not in ENDS else last.end()
    name, arguments = recipient.removeprefix(FUNCTIONS), object_of(held[start:end].strip() or "{}")
    if not recipient.startswith(FUNCTIONS) or not name or arguments is None:
        return unread(held, length)
    return Step(length, calls=(Found(name, arguments),))
