"""Tool calls in what a model says, as it comes. Pure.

Two forms are read, both between `<tool_call>` and `</tool_call>`: Hermes' JSON object with `name` and `arguments`,
which Qwen's templates ask for as well, and Qwen3-Coder's `<function=NAME>` with a `<parameter=NAME>` for each argument.

Guarantees: the same is read in however many pieces the text comes; what is no call that can be read stays text,
unchanged. Around calls white space is dropped.
"""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import msgspec

from streamrl.conversations.reasoning import ThoughtStream
from streamrl.conversations.text import overlap
from streamrl.types import FinishReason

BEGIN: Final = "<tool_call>"
END: Final = "</tool_call>"
CODER: Final = "<function="


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

    Example:
        reader = MessageReader("9f3a", {"add": {"type": "object"}})
        reader.parse(0, '<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>', "stop").calls
    """

    def __init__(
        self, number: str, tools: Mapping[str, Any] | None, parallel: bool = True, thinks: bool | None = None
    ) -> None:
        self._number = number
        self._tools = tools
        self._parallel = parallel
        self._thinks = thinks

    def stream(self, index: int) -> "MessageStream":
        """For the text of one choice, as it comes."""
        calls = None
        if self._tools is not None:
            calls = ToolCallStream(f"call_{self._number}_{index}", self._tools, self._parallel)
        return MessageStream(calls, None if self._thinks is None else ThoughtStream(self._thinks))

    def parse(self, index: int, text: str, finish_reason: str) -> ParsedMessage:
        """Of the whole text of one choice."""
        return self.stream(index).take(text, finish_reason)


class MessageStream:
    """Thoughts first, and then calls in what follows; what is not read is text."""

    def __init__(self, calls: "ToolCallStream | None", thoughts: ThoughtStream | None) -> None:
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


class ToolCallStream:
    """See the module. prefix: of the ids of its calls. parallel: as `MessageReader` has it."""

    def __init__(self, prefix: str, tools: Mapping[str, Any], parallel: bool = True) -> None:
        self._prefix = prefix
        self._tools = tools
        self._parallel = parallel
        self._held = ""
        """Maybe the beginning of a mark; inside a call, what of it has come."""
        self._space = ""
        """White space behind what was shown, which goes with what follows it."""
        self._inside = False
        self.num_calls = 0

    def feed(self, text: str) -> ParsedMessage:
        """What it says that is new."""
        self._held += text
        shown, calls = "", list[ToolCall]()
        while True:
            before, mark, rest = self._held.partition(END if self._inside else BEGIN)
            if not mark:
                break
            self._held = rest
            if not self._inside:
                shown += self._show(before)
            elif (call := self._called(before)) is not None:
                calls += self._kept(call)
            else:
                shown += self._show(BEGIN + before + END)
            self._inside = not self._inside
        if not self._inside:
            sure = len(self._held) - overlap(self._held, BEGIN)
            shown += self._show(self._held[:sure])
            self._held = self._held[sure:]
        return ParsedMessage(shown, tuple(calls))

    def flush(self, finish_reason: str) -> ParsedMessage:
        """What was held back, when no more comes. A model that stopped may have left the last end mark out."""
        held, self._held = self._held, ""
        if self._inside:
            self._inside = False
            if finish_reason == FinishReason.STOP and (call := self._called(held)) is not None:
                return ParsedMessage("", self._kept(call))
            held = BEGIN + held
        shown = self._show(held)
        return ParsedMessage(shown if self.num_calls else shown + self._space)

    def _show(self, text: str) -> str:
        text = self._space + text
        shown = text.rstrip()
        self._space = text[len(shown) :]
        return shown

    def _kept(self, call: ToolCall) -> tuple[ToolCall, ...]:
        if self.num_calls and not self._parallel:
            return ()
        self.num_calls += 1
        return (call,)

    def _called(self, body: str) -> ToolCall | None:
        """The call between two marks; None where it is none."""
        found = _of_coder(body.strip(), self._tools) or _of_hermes(body.strip())
        if found is None:
            return None
        name, arguments = found
        self._space = ""
        return ToolCall(f"{self._prefix}_{self.num_calls}", name, msgspec.json.encode(arguments).decode())


def _of_hermes(body: str) -> tuple[str, dict[str, Any]] | None:
    said = _json(body)
    if not isinstance(said, dict) or not isinstance(said.get("name"), str) or not said["name"]:
        return None
    arguments = said.get("arguments", {})
    if isinstance(arguments, str):  # some models write JSON into JSON, as OpenAI's own messages have it
        arguments = _json(arguments)
    return (said["name"], arguments) if isinstance(arguments, dict) else None


def _of_coder(body: str, tools: Mapping[str, Any]) -> tuple[str, dict[str, Any]] | None:
    name, closed, rest = body.removeprefix(CODER).partition(">")
    if not body.startswith(CODER) or not name or not closed or not rest.endswith("</function>"):
        return None
    rest = rest.removesuffix("</function>").strip()
    arguments = dict[str, Any]()
    while rest:
        key, _, value = rest.removeprefix("<parameter=").partition(">")
        value, closed, after = value.partition("</parameter>")
        if not rest.startswith("<parameter=") or not closed:
            return None
        arguments[key] = _typed(value.removeprefix("\n").removesuffix("\n"), _type_of(tools.get(name), key))
        rest = after.lstrip()
    return name, arguments


def _typed(value: str, kind: object) -> Any:
    """A value that is written without quotes: what its schema calls no text is JSON."""
    if kind in (None, "string"):
        return value
    found = _json(value)
    return value if found is None and value != "null" else found


def _type_of(schema: object, key: str) -> object:
    """Schemas come from clients, and may be anything."""
    properties = schema.get("properties") if isinstance(schema, dict) else None
    one = properties.get(key) if isinstance(properties, dict) else None
    return one.get("type") if isinstance(one, dict) else None


def _json(text: str) -> Any:
    """None for what is no JSON."""
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return None
