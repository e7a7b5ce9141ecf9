"""Tool calls and thoughts in what a model says, as it comes. Pure.

How they are written is a form's knowledge (`streamrl.conversations.formats`); what becomes of them is decided here.

Guarantees: the same is read in however many pieces the text comes; what is no call that can be read stays text,
unchanged. Around calls white space is dropped.
"""

from collections.abc import Mapping
from hashlib import blake2b
from string import ascii_letters, digits
from typing import Any, Final, NamedTuple

import msgspec

from streamrl.conversations.formats.choose import CALL_FORMS, THOUGHT_FORMS
from streamrl.conversations.formats.step import CallForm, Found, Step
from streamrl.conversations.reasoning import Thoughts

_SHORT: Final = 9
"""Letters and digits of an id, where a template takes no other: Mistral's."""
_LETTERS: Final = ascii_letters + digits


class ToolCall(NamedTuple):
    """arguments: a JSON object, as text. id: unique in the run."""

    id: str
    name: str
    arguments: str


class ParsedMessage(NamedTuple):
    """What a message says: its text, the calls in it, and the thoughts before it, where they are read."""

    content: str
    calls: tuple[ToolCall, ...] = ()
    thoughts: str = ""

    def __add__(self, other: object) -> "ParsedMessage":
        """This, and what follows it."""
        if not isinstance(other, ParsedMessage):
            return NotImplemented
        return ParsedMessage(self.content + other.content, self.calls + other.calls, self.thoughts + other.thoughts)


class MessageReader:
    """Reads the answers to one request. number: of the request, unique in the run. tools: the JSON schema of each
    tool's arguments, by its name; None where calls are not read. parallel: whether a message may have several; else
    those behind the first are left out. thinks: whether answers begin within thoughts; None where these are not read.
    call_form, thought_form: by name, as `streamrl.conversations.formats.choose` has them.

    Example:
        reader = MessageReader("9f3a", {"add": {"type": "object"}})
        reader.parse(0, '<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>', "stop").calls
    """

    def __init__(
        self,
        number: str,
        tools: Mapping[str, Any] | None,
        parallel: bool = True,
        thinks: bool | None = None,
        *,
        call_form: str = "hermes",
        thought_form: str = "think",
    ) -> None:
        self._number = number
        self._tools = tools
        self._parallel = parallel
        self._thinks = thinks
        self._calls = CALL_FORMS[call_form]
        self._thoughts = THOUGHT_FORMS[thought_form]

    @property
    def reads_content(self) -> bool:
        """Whether a chat template writes the text that was sampled, given as the content of a message, as it was."""
        calls = self._tools is None or self._calls.is_content
        return calls and (self._thinks is None or self._thoughts.is_content)

    def stream(self, index: int) -> "MessageStream":
        """For the text of one choice, as it comes."""
        calls = None
        if self._tools is not None:
            ids = CallIds(f"call_{self._number}_{index}", self._calls.short_ids)
            calls = ToolCallStream(ids, self._calls.make(self._tools), self._parallel)
        return MessageStream(calls, None if self._thinks is None else self._thoughts.make(self._thinks))

    def parse(self, index: int, text: str, finish_reason: str) -> ParsedMessage:
        """Of the whole text of one choice."""
        return self.stream(index).take(text, finish_reason)


class MessageStream:
    """Thoughts first, and then calls in what follows; what is not read is text."""

    def __init__(self, calls: "ToolCallStream | None", thoughts: Thoughts | None) -> None:
        self._calls = calls
        self._thoughts = thoughts

    @property
    def num_calls(self) -> int:
        return 0 if self._calls is None else self._calls.num_calls

    def take(self, text: str, finish_reason: str) -> ParsedMessage:
        """What it says that is new. finish_reason: "" while more comes."""
        said = self.feed(text)
        return said + self.flush(finish_reason) if finish_reason else said

    def feed(self, text: str) -> ParsedMessage:
        """What it says that is new, where more comes."""
        thoughts = ""
        if self._thoughts is not None:
            thoughts, text = self._thoughts.feed(text)
        said = ParsedMessage(text) if self._calls is None else self._calls.feed(text)
        return said._replace(thoughts=thoughts)

    def flush(self, finish_reason: str) -> ParsedMessage:
        """What was held back, when no more comes."""
        thoughts, text = ("", "") if self._thoughts is None else self._thoughts.flush()
        said = ParsedMessage(text)
        if self._calls is not None:
            said = self._calls.feed(text) + self._calls.flush(finish_reason)
        return said._replace(thoughts=thoughts)


class CallIds(NamedTuple):
    """Of the calls of one message. prefix: unique in the run. short: of nine letters and digits."""

    prefix: str
    short: bool = False

    def at(self, place: int) -> str:
        """Of the call in this place."""
        whole = f"{self.prefix}_{place}"
        if not self.short:
            return whole
        number = int.from_bytes(blake2b(whole.encode(), digest_size=16).digest())
        return "".join(_LETTERS[number // len(_LETTERS) ** place % len(_LETTERS)] for place in range(_SHORT))


class ToolCallStream:
    """See the module. ids: of its calls. form: that reads its text. parallel: as `MessageReader` has it."""

    def __init__(self, ids: CallIds, form: CallForm, parallel: bool = True) -> None:
        self._ids = ids
        self._form = form
        self._parallel = parallel
        self._held = ""
        """Maybe the beginning of a mark; inside a call, what of it has come."""
        self._space = ""
        """White space behind what was shown, which goes with what follows it."""
        self.num_calls = 0

    def feed(self, text: str) -> ParsedMessage:
        """What it says that is new."""
        self._held += text
        return self._read("")

    def flush(self, finish_reason: str) -> ParsedMessage:
        """What was held back, when no more comes. A model that stopped may have left the last end mark out."""
        said = self._read(finish_reason)
        held, self._held = self._held, ""
        shown = self._show(held)
        return said + ParsedMessage(shown if self.num_calls else shown + self._space)

    def _read(self, finish_reason: str) -> ParsedMessage:
        shown, calls = "", list[ToolCall]()
        while self._held and (step := self._form.step(self._held, finish_reason)) is not None:
            self._held = self._held[step.length :]
            shown += self._show(step.text)
            calls += self._kept(step)
        return ParsedMessage(shown, tuple(calls))

    def _show(self, text: str) -> str:
        text = self._space + text
        shown = text.rstrip()
        self._space = text[len(shown) :]
        return shown

    def _kept(self, step: Step) -> list[ToolCall]:
        """Those that are shown."""
        if step.calls:
            self._space = ""
        calls = step.calls if self._parallel else step.calls[: 0 if self.num_calls else 1]
        self.num_calls += len(calls)
        return [self._call(found, self.num_calls - len(calls) + place) for place, found in enumerate(calls)]

    def _call(self, found: Found, place: int) -> ToolCall:
        return ToolCall(self._ids.at(place), found.name, msgspec.json.encode(found.arguments).decode())
