"""The body of `/v1/messages` as a chat. Pure.

Guarantees: what a chat of the same conversation asks for is what is asked for here; what cannot be kept is refused by
name. Marks for caches (`cache_control`) and signatures of thoughts change nothing and are ignored. With a last
message of the assistant the answer goes on.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field

from streamrl.gateway.anthropic.documents import TextBlock, Written, joined_text
from streamrl.gateway.openai.bodies import AtLeastOne, ChatRequest, NumberOfTokens, ToolName
from streamrl.gateway.refusal import invalid

_IGNORED: Final = frozenset({"cache_control", "context_management", "inference_geo", "metadata", "service_tier"})
"""What has no part in the answer here. What of earlier thoughts stays in the prompt the chat template decides."""
_BILLING: Final = "x-anthropic-billing-header:"
_NEUTRAL: Final[Mapping[str, tuple[Any, ...]]] = {"container": (None,), "mcp_servers": (None, []), "speed": (None,)}


class _Block(BaseModel):
    model_config = ConfigDict(extra="ignore")


class ToolUse(_Block):
    """A call that the model made."""

    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, Any]


class ToolResult(_Block):
    """What a call gave."""

    type: Literal["tool_result"]
    tool_use_id: str
    content: str | list[Annotated[Written, Field(discriminator="type")]] | None = None
    is_error: bool | None = None


class Thought(_Block):
    type: Literal["thinking"]
    thinking: str


class HiddenThought(_Block):
    """Of another model: nobody here can read it."""

    type: Literal["redacted_thinking"]


Block = Annotated[Written | ToolUse | ToolResult | Thought | HiddenThought, Field(discriminator="type")]


class Turn(BaseModel):
    """One message."""

    role: Literal["user", "assistant", "system"]
    content: str | list[Block]


class ToolParam(BaseModel):
    """A tool of the client's; those that Anthropic runs are not here."""

    model_config = ConfigDict(extra="ignore")

    type: Literal["custom"] | None = None
    name: ToolName
    description: str | None = None
    input_schema: dict[str, Any]


class ToolChoice(BaseModel):
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class ThinkingParam(BaseModel):
    """budget_tokens: not kept, as `max_tokens` bounds thoughts and answer together."""

    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: int | None = None


class OutputConfig(BaseModel):
    """format: the text follows a JSON schema."""

    model_config = ConfigDict(extra="forbid")

    effort: str | None = None
    format: dict[str, Any] | None = None


class CountRequest(BaseModel):
    """The body of `/v1/messages/count_tokens`, and what a message has of it. output_format: as of `OutputConfig`, where
    earlier clients have it."""

    model_config = ConfigDict(extra="allow")

    model: str
    messages: Annotated[list[Turn], Field(min_length=1)]
    system: str | list[TextBlock] | None = None
    tools: list[ToolParam] | None = None
    tool_choice: ToolChoice | None = None
    thinking: ThinkingParam | None = None
    output_config: OutputConfig | None = None
    output_format: dict[str, Any] | None = None

    def chat(self) -> ChatRequest:
        """Raises Refusal."""
        for name, value in (self.model_extra or {}).items():
            if value is not None and name not in _IGNORED and value not in _NEUTRAL.get(name, ()):
                kind = "is not kept here; leave it out" if name in _NEUTRAL else "is not a parameter of this route"
                code = "unsupported_parameter" if name in _NEUTRAL else "unknown_parameter"
                raise invalid(code, f"{name!a} {kind}", name)
        whole: list[Any] = list(self._messages())
        return ChatRequest(model=self.model, messages=whole, **self._options())

    def _goes_on(self) -> bool:
        """Whether the answer goes on with the last message. A count is had of calls and thoughts at the end, too."""
        last = self.messages[-1]
        return last.role == "assistant" and all(isinstance(block, TextBlock) for block in _blocks(last))

    def _options(self) -> dict[str, Any]:
        given: dict[str, Any] = {"continue_final_message": True} if self._goes_on() else {}
        if self.tools:
            given["tools"] = [_tool(tool) for tool in self.tools]
        if (choice := self.tool_choice) is not None:
            given["tool_choice"] = {"any": "required", "tool": {"name": choice.name}}.get(choice.type, choice.type)
            given["parallel_tool_calls"] = not choice.disable_parallel_tool_use
        if self.thinking is not None:
            given["chat_template_kwargs"] = {"enable_thinking": self.thinking.type != "disabled"}
        output = self.output_config or OutputConfig()
        if output.effort is not None:
            given["reasoning_effort"] = output.effort
        if (form := output.format or self.output_format) is not None:
            given["response_format"] = form
        return given

    def _messages(self) -> Iterator[dict[str, Any]]:
        if system := _system(self.system or ""):
            yield {"role": "system", "content": system}
        for turn in _joined(self.messages):
            yield from _of_assistant(turn) if turn.role == "assistant" else _of_others(turn)


class MessagesRequest(CountRequest):
    """The body of `/v1/messages`."""

    max_tokens: AtLeastOne
    stop_sequences: list[str] | None = None
    stream: bool | None = None
    temperature: Annotated[float, Field(ge=0.0, le=1.0, allow_inf_nan=False)] | None = None
    top_p: Annotated[float, Field(gt=0.0, le=1.0, allow_inf_nan=False)] | None = None
    top_k: NumberOfTokens | None = None

    def _goes_on(self) -> bool:
        return self.messages[-1].role == "assistant"

    def _options(self) -> dict[str, Any]:
        sampled = ("max_tokens", "stream", "temperature", "top_p", "top_k")
        given = {name: value for name in sampled if (value := getattr(self, name)) is not None}
        return {**super()._options(), **given, "stop": self.stop_sequences or None}


def _joined(turns: Sequence[Turn]) -> list[Turn]:
    """As Anthropic takes them: what the model said in turns that follow one another is one."""
    found = list[Turn]()
    for turn in turns:
        if found and found[-1].role == turn.role == "assistant":
            found[-1] = Turn(role=turn.role, content=[*_blocks(found[-1]), *_blocks(turn)])
        else:
            found.append(turn)
    return found


def _blocks(turn: Turn) -> list[Block]:
    return [TextBlock(type="text", text=turn.content)] if isinstance(turn.content, str) else turn.content


def _of_assistant(turn: Turn) -> Iterator[dict[str, Any]]:
    if isinstance(turn.content, str):
        yield {"role": "assistant", "content": turn.content}
        return
    texts = [block.text for block in turn.content if isinstance(block, TextBlock)]
    thoughts = [block.thinking for block in turn.content if isinstance(block, Thought)]
    calls = [_call(block) for block in turn.content if isinstance(block, ToolUse)]
    message: dict[str, Any] = {"role": "assistant", "content": "".join(texts)}
    if thoughts:
        message["reasoning_content"] = "".join(thoughts)
    yield message | ({"tool_calls": calls} if calls else {})


def _of_others(turn: Turn) -> Iterator[dict[str, Any]]:
    """Results of tools are messages of their own; texts that stand together are one."""
    if isinstance(turn.content, str):
        yield {"role": turn.role, "content": turn.content}
        return
    texts: list[str] = []
    for block in turn.content:
        if isinstance(block, Written):
            texts.append(block.text)
            continue
        if texts:
            yield {"role": turn.role, "content": "".join(texts)}
            texts = []
        if not isinstance(block, ToolResult):
            what = f"a message of the {turn.role} has a block of type {block.type!a}"
            raise invalid("invalid_value", what, "messages")
        yield {"role": "tool", "tool_call_id": block.tool_use_id, "content": joined_text(block.content or "")}
    if texts or not turn.content:
        yield {"role": turn.role, "content": "".join(texts)}


def _system(system: str | list[TextBlock]) -> str:
    """Claude Code's own mark is for Anthropic, and has another value in each request: the conversation would begin
    anew with each."""
    kept = system if isinstance(system, str) else [one for one in system if not one.text.startswith(_BILLING)]
    return joined_text(kept)


def _tool(tool: ToolParam) -> dict[str, Any]:
    said = {"name": tool.name, "description": tool.description, "parameters": tool.input_schema}
    return {"type": "function", "function": {name: value for name, value in said.items() if value is not None}}


def _call(block: ToolUse) -> dict[str, Any]:
    return {
        "id": block.id,
        "type": "function",
        "function": {"name": block.name, "arguments": json.dumps(block.input)},
    }
