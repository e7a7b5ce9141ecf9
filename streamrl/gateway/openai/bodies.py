"""The bodies that clients of OpenAI's routes send, field by field. Pure.

Guarantees types and ranges of single fields; what depends on the model, the engine or another field is looked at where
a body is read (`streamrl.gateway.openai.requests`).
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from streamrl.gateway.openai.custom_tools import TEXT_ALONE, TextFormat
from streamrl.gateway.refusal import invalid

_OF_THE_RENDERER = frozenset(
    {
        *("add_generation_prompt", "chat_template", "continue_final_message", "conversations"),
        *("documents", "messages", "return_assistant_tokens_mask", "tools"),
    }
)
"""Names that `chat_template_kwargs` may not have: they are not the template's."""


def whole_number(value: Any) -> Any:
    """A number without a fraction as an integer, as JSON has them: 8.0 is 8. Some languages write no other."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


_Finite = Annotated[float, Field(allow_inf_nan=False)]
_Whole = Annotated[int, Field(strict=True), BeforeValidator(whole_number)]
AtLeastOne = Annotated[_Whole, Field(ge=1)]
TokenId = Annotated[int, Field(strict=True, ge=0, lt=2**31)]
NumberOfTokens = Annotated[_Whole, Field(ge=0, lt=2**31)]
_TokenName = Annotated[int, Field(ge=0, lt=2**31)]
"""A token's id as the name of a field, which is text in JSON."""
ToolName = Annotated[str, Field(min_length=1, max_length=128)]
"""As long as Anthropic's may be; those of MCP servers have the server's name before them."""
_Seed = Annotated[_Whole, Field(ge=-(2**63), lt=2**63)]


class StreamOptions(BaseModel):
    """include_usage: a last chunk says how many tokens there were. continuous_usage_stats: each says how many there are
    by then, as vLLM has it."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class SamplingFields(BaseModel):
    """How completions are sampled, and where they end."""

    model_config = ConfigDict(extra="allow")

    n: AtLeastOne | None = None
    temperature: Annotated[_Finite, Field(ge=0.0, le=100.0)] | None = None
    top_p: Annotated[_Finite, Field(gt=0.0, le=1.0)] | None = None
    top_k: Annotated[_Whole, Field(ge=-1, lt=2**31)] | None = None
    min_p: Annotated[_Finite, Field(ge=0.0, le=1.0)] | None = None
    max_tokens: AtLeastOne | None = None
    seed: _Seed | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[TokenId] | None = None
    min_tokens: NumberOfTokens | None = None
    logit_bias: dict[_TokenName, Annotated[_Finite, Field(ge=-100.0, le=100.0)]] | None = None
    presence_penalty: Annotated[_Finite, Field(ge=-2.0, le=2.0)] | None = None
    frequency_penalty: Annotated[_Finite, Field(ge=-2.0, le=2.0)] | None = None
    repetition_penalty: Annotated[_Finite, Field(gt=0.0, le=100.0)] | None = None


class OpenAIRequest(SamplingFields):
    """What both kinds of request have. skip_special_tokens: with false the text shows them. prompt_logprobs: of the
    prompt, and of so many of the likeliest tokens in the place of each, as vLLM tells them."""

    model: str
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None
    skip_special_tokens: bool | None = None
    prompt_logprobs: NumberOfTokens | None = None
    response_format: dict[str, Any] | None = None
    structured_outputs: dict[str, Any] | None = None
    guided_json: dict[str, Any] | bool | str | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    regex: str | None = None


class CompletionRequest(OpenAIRequest):
    """The body of `/v1/completions`. prompt: text, texts, ids, or lists of ids. logprobs: of the tokens that are shown,
    and of so many of the likeliest ones in the place of each. echo: the prompt is shown before each completion.
    max_tokens: with 0 it is shown alone."""

    prompt: str | list[TokenId] | list[str] | list[list[TokenId]]
    logprobs: NumberOfTokens | None = None
    echo: bool | None = None
    max_tokens: Annotated[_Whole, Field(ge=0)] | None = None
    add_special_tokens: bool | None = None


class TextPart(BaseModel):
    """A part of a message. Only texts are taken."""

    type: Literal["text"]
    text: str


def refusal_as_text(part: Any) -> Any:
    """A part in which a model of OpenAI's said that it does not answer, as the text that it is."""
    if isinstance(part, dict) and part.get("type") == "refusal" and "refusal" in part:
        return {"type": "text", "text": part["refusal"]}
    return part


class Message(BaseModel):
    """One turn. Whatever else it has (`tool_call_id`, `name`, ...) reaches the template as it is, but for the arguments
    of `tool_calls`, which OpenAI's clients send as text and templates want as objects."""

    model_config = ConfigDict(extra="allow")

    role: Annotated[str, Field(min_length=1, max_length=64)]
    content: str | list[Annotated[TextPart, BeforeValidator(refusal_as_text)]] | None = None


class Function(BaseModel):
    """What a tool is called, and the JSON schema of its arguments."""

    model_config = ConfigDict(extra="allow")

    name: ToolName
    description: str | None = None
    parameters: dict[str, Any] | None = None


class Tool(BaseModel):
    type: Literal["function"]
    function: Function

    @property
    def name(self) -> str:
        return self.function.name


class CustomFunction(BaseModel):
    """What a tool that takes a text is called."""

    model_config = ConfigDict(extra="ignore")

    name: ToolName
    description: str | None = None
    format: TextFormat | None = None


class CustomTool(BaseModel):
    """See `streamrl.gateway.openai.custom_tools`."""

    type: Literal["custom"]
    custom: CustomFunction

    @property
    def name(self) -> str:
        return self.custom.name

    def as_function(self) -> Tool:
        """As the model is told of it. Raises Refusal."""
        if self.custom.format is not None:
            self.custom.format.check(self.name)
        function = Function(name=self.name, description=self.custom.description, parameters=TEXT_ALONE)
        return Tool(type="function", function=function)


class ChatRequest(OpenAIRequest):
    """The body of `/v1/chat/completions`. top_logprobs: so many of the likeliest tokens are told in the place of each
    one. add_generation_prompt: with false the prompt ends behind the last message. continue_final_message: it ends
    within that message, which the model goes on with."""

    messages: Annotated[list[Message], Field(min_length=1)]
    max_completion_tokens: AtLeastOne | None = None
    logprobs: bool | None = None
    top_logprobs: NumberOfTokens | None = None
    tools: list[Tool | CustomTool] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: Annotated[str, Field(max_length=64)] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None

    def functions(self) -> list[Tool]:
        """The tools as the model is told of them. Raises Refusal."""
        return [tool.as_function() if isinstance(tool, CustomTool) else tool for tool in self.tools or ()]

    def text_tools(self) -> frozenset[str]:
        """The names of those that take a text."""
        return frozenset(tool.name for tool in self.tools or () if isinstance(tool, CustomTool))

    def arguments(self) -> dict[str, Any]:
        """Of the chat template. Raises Refusal."""
        given = self.chat_template_kwargs or {}
        if taken := sorted(_OF_THE_RENDERER & given.keys()):
            raise invalid("invalid_value", f"{taken[0]!a} is no argument of the template", "chat_template_kwargs")
        if (effort := self.reasoning_effort) is None:
            return dict(given)
        # As vLLM has it: most templates that know of thoughts know no effort.
        return {"reasoning_effort": effort, "enable_thinking": effort != "none", **given}
