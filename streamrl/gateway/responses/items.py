"""The body of `/v1/responses` as a chat. Pure.

Guarantees: what a chat of the same conversation asks for is what is asked for here; what cannot be kept is refused by
name. A call of a tool belongs to the message before it, as the model said both at once, and so do the thoughts before
either, where they come back as text; those of models that show none are left out.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, TypeAdapter

from streamrl.gateway.openai.allowed_tools import with_allowed_tools
from streamrl.gateway.openai.bodies import AtLeastOne, ChatRequest, NumberOfTokens, ToolName, refusal_as_text
from streamrl.gateway.openai.custom_tools import TextFormat, arguments_of
from streamrl.gateway.refusal import invalid

Messages = list[dict[str, Any]]

_IGNORED: Final = frozenset(
    {
        *(
            "client_metadata",
            "max_tool_calls",
            "metadata",
            "prompt_cache_key",
            "prompt_cache_retention",
            "safety_identifier",
        ),
        *("service_tier", "stream_options", "user"),
    }
)
"""What changes no answer. `max_tool_calls` is of tools that OpenAI runs."""
_NEUTRAL: Final[Mapping[str, tuple[Any, ...]]] = {
    "background": (None, False),
    "context_management": (None, []),
    "conversation": (None,),
    "prompt": (None,),
    "truncation": (None, "disabled"),
}
_NOT_ENDED: Final = ("in_progress", "incomplete")
_LOGPROBS: Final = "message.output_text.logprobs"
_INCLUDED: Final = (
    "code_interpreter_call.outputs",
    "computer_call_output.output.image_url",
    "file_search_call.results",
    "message.input_image.image_url",
    _LOGPROBS,
    "reasoning.encrypted_content",
    "web_search_call.action.sources",
    "web_search_call.results",
)
"""What OpenAI's `include` may name. Most is of items that no answer has here; thoughts are told as text."""


class Part(BaseModel):
    """Of a message. Only texts are taken."""

    model_config = ConfigDict(extra="ignore")

    type: Literal["input_text", "output_text", "reasoning_text", "text"]
    text: str


class MessageItem(BaseModel):
    """status: one that the model did not end is gone on with, where it is the last."""

    model_config = ConfigDict(extra="ignore")

    type: Literal["message"] = "message"
    role: Literal["user", "assistant", "system", "developer"]
    content: str | list[Annotated[Part, BeforeValidator(refusal_as_text)]]
    status: str | None = None


class CallItem(BaseModel):
    """A call that the model made."""

    model_config = ConfigDict(extra="ignore")

    type: Literal["function_call"]
    call_id: str
    name: str
    arguments: str


class CustomCallItem(BaseModel):
    """A call that the model made of a tool that takes a text."""

    model_config = ConfigDict(extra="ignore")

    type: Literal["custom_tool_call"]
    call_id: str
    name: str
    input: str

    @property
    def arguments(self) -> str:
        return arguments_of(self.input)


class OutputItem(BaseModel):
    """What a call gave."""

    model_config = ConfigDict(extra="ignore")

    type: Literal["function_call_output", "custom_tool_call_output"]
    call_id: str
    output: str | list[Part]


class ReasoningItem(BaseModel):
    """Thoughts. content: none where they are of a model that shows none."""

    model_config = ConfigDict(extra="ignore")

    type: Literal["reasoning"]
    content: list[Part] | None = None


class ItemReference(BaseModel):
    """An item of an earlier response, by its id alone."""

    model_config = ConfigDict(extra="ignore")

    type: Literal["item_reference"]
    id: str


SaidItem = CallItem | CustomCallItem | OutputItem | ReasoningItem | MessageItem
Item = SaidItem | ItemReference
_SAID: Final[TypeAdapter[SaidItem]] = TypeAdapter(SaidItem)


class FunctionTool(BaseModel):
    """A tool of the client's; those that OpenAI runs are not here."""

    model_config = ConfigDict(extra="ignore")

    type: Literal["function"]
    name: ToolName
    description: str | None = None
    parameters: dict[str, Any] | None = None


class CustomTool(BaseModel):
    """A tool of the client's that takes a text."""

    model_config = ConfigDict(extra="ignore")

    type: Literal["custom"]
    name: ToolName
    description: str | None = None
    format: TextFormat | None = None


class Reasoning(BaseModel):
    model_config = ConfigDict(extra="ignore")

    effort: str | None = None


class ResponsesRequest(BaseModel):
    """The body of `/v1/responses`. store: whether a later one may name it as the response before."""

    model_config = ConfigDict(extra="allow")

    model: str
    input: str | list[Item]
    instructions: str | None = None
    previous_response_id: str | None = None
    store: bool | None = None
    tools: list[FunctionTool | CustomTool] | None = None
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None
    max_output_tokens: AtLeastOne | None = None
    temperature: Annotated[float, Field(ge=0.0, le=100.0, allow_inf_nan=False)] | None = None
    top_p: Annotated[float, Field(gt=0.0, le=1.0, allow_inf_nan=False)] | None = None
    text: dict[str, Any] | None = None
    reasoning: Reasoning | None = None
    top_logprobs: NumberOfTokens | None = None
    include: list[str] | None = None
    stream: bool | None = None

    def resolved(self, item_of: Callable[[str], dict[str, Any]]) -> "ResponsesRequest":
        """The same with items in the places of references. item_of: gives the item of an id. Raises what that
        raises."""
        if isinstance(self.input, str):
            return self
        items = [
            _SAID.validate_python(item_of(one.id)) if isinstance(one, ItemReference) else one for one in self.input
        ]
        return self.model_copy(update={"input": items})

    def messages(self, before: Sequence[dict[str, Any]]) -> Messages:
        """The conversation without the instructions, which are of this request alone; its items are `resolved`. before:
        what the response that it names came to."""
        items = [MessageItem(role="user", content=self.input)] if isinstance(self.input, str) else self.input
        return joined_messages(before, items)

    def chat(self, messages: Messages) -> ChatRequest:
        """messages: as `messages` gives them. Raises Refusal."""
        for name, value in (self.model_extra or {}).items():
            if value is not None and name not in _IGNORED and value not in _NEUTRAL.get(name, ()):
                kind = "is not kept here; leave it out" if name in _NEUTRAL else "is not a parameter of this route"
                code = "unsupported_parameter" if name in _NEUTRAL else "unknown_parameter"
                raise invalid(code, f"{name!a} {kind}", name)
        self._check_repeated()
        self._check_included()
        first = [{"role": "system", "content": self.instructions}] if self.instructions else []
        whole: list[Any] = [*first, *messages]
        return with_allowed_tools(ChatRequest(model=self.model, messages=whole, **self._options()))

    @property
    def _goes_on(self) -> bool:
        """Whether the last item is a message that the model did not end."""
        last = self.input[-1] if self.input else None
        return isinstance(last, MessageItem) and last.role == "assistant" and last.status in _NOT_ENDED

    @property
    def param_of_logprobs(self) -> str:
        """By which it asks for log-probs of its text; "" where it does not."""
        if _LOGPROBS in (self.include or ()):
            return "include"
        return "top_logprobs" if self.top_logprobs else ""

    @property
    def metadata(self) -> dict[str, Any]:
        return (self.model_extra or {}).get("metadata") or {}

    def _check_included(self) -> None:
        """Raises Refusal for what nobody knows."""
        for name in self.include or ():
            if name not in _INCLUDED:
                what = f"include names {name[:80]!a}; what it may name: {', '.join(_INCLUDED)}"
                raise invalid("invalid_value", what, "include")

    def _check_repeated(self) -> None:
        """A response repeats these, and JSON has no form for NaN, which Python reads. Raises Refusal."""
        if not isinstance(self.metadata, dict):
            raise invalid("invalid_value", "'metadata' is an object of texts", "metadata")
        tools = [tool.parameters for tool in self.tools or () if isinstance(tool, FunctionTool)]
        for name, value in {
            "metadata": self.metadata,
            "tools": tools,
            "tool_choice": self.tool_choice,
            "text": self.text,
        }.items():
            try:
                json.dumps(value, allow_nan=False)
            except ValueError as error:
                raise invalid("non_finite", f"{name!a} holds a number that is not finite", name) from error

    def _options(self) -> dict[str, Any]:
        form = (self.text or {}).get("format") or {"type": "text"}
        given = {
            "max_tokens": self.max_output_tokens,
            "continue_final_message": True if self._goes_on else None,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "stream": self.stream,
            "parallel_tool_calls": self.parallel_tool_calls,
            "logprobs": True if self.param_of_logprobs else None,
            "top_logprobs": self.top_logprobs,
            "tools": [_tool(tool) for tool in self.tools] if self.tools else None,
            "tool_choice": self.tool_choice,
            "response_format": None if form == {"type": "text"} else form,
            "reasoning_effort": None if self.reasoning is None else self.reasoning.effort,
        }
        return {name: value for name, value in given.items() if value is not None}


def joined_messages(before: Sequence[dict[str, Any]], items: Sequence[Item]) -> Messages:
    """A conversation that goes on with items."""
    found, thoughts = list(before), ""
    for item in items:
        match item:
            case ReasoningItem():
                thoughts += _text(item.content or [])
                continue
            case OutputItem():
                found.append({"role": "tool", "tool_call_id": item.call_id, "content": _text(item.output)})
            case CallItem() | CustomCallItem():
                if not found or found[-1]["role"] != "assistant":
                    found.append({"role": "assistant", "content": ""})
                found[-1] = _with_thoughts(_with_call(found[-1], item), thoughts)
            case MessageItem(role="assistant"):
                if found and found[-1].get("tool_calls"):  # the model went on behind calls, which have no outputs yet
                    begun = found.pop()
                    said = {**begun, "content": begun["content"] + _text(item.content)}
                else:
                    said = {"role": item.role, "content": _text(item.content)}
                found.append(_with_thoughts(said, thoughts))
            case MessageItem():
                found.append({"role": item.role, "content": _text(item.content)})
        thoughts = ""  # those before anything else are of no answer
    return found


def _with_call(message: dict[str, Any], item: CallItem | CustomCallItem) -> dict[str, Any]:
    function = {"name": item.name, "arguments": item.arguments}
    call = {"id": item.call_id, "type": "function", "function": function}
    return {**message, "tool_calls": [*message.get("tool_calls", ()), call]}


def _with_thoughts(message: dict[str, Any], thoughts: str) -> dict[str, Any]:
    return {**message, "reasoning_content": message.get("reasoning_content", "") + thoughts} if thoughts else message


def _text(content: str | Sequence[Part]) -> str:
    return content if isinstance(content, str) else "".join(part.text for part in content)


def _tool(tool: FunctionTool | CustomTool) -> dict[str, Any]:
    return {"type": tool.type, tool.type: tool.model_dump(exclude={"type"}, exclude_none=True)}
