"""What a client asks for: OpenAI's request bodies, and what of them reaches an engine. Pure.

Guarantees: a parameter that would change the answer and cannot be kept is refused, never dropped; every limit is
checked before anything is generated. What does not change the answer (`user`, `metadata`) is ignored.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from streamrl.errors import ConfigError
from streamrl.gateway.chat import ChatTemplate, no_template
from streamrl.gateway.memory import NOTHING, Memory
from streamrl.gateway.refusal import Refusal, invalid
from streamrl.models.tokenizer import TextTokenizer
from streamrl.types import GenerationRequest, IntArray, SamplingParams, rollout_seed

MAX_STOPS = 16
LEAST_TEMPERATURE = 1e-3
"""Of those that are not 0: a smaller one divides logits beyond the numbers that an engine has."""
DEFAULT_COMPLETION_TOKENS = 16
"""Of `/v1/completions` without `max_tokens`, as OpenAI has it."""

_NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "audio": (None,),
    "best_of": (None, 1),
    "echo": (None, False),
    "frequency_penalty": (None, 0),
    "function_call": (None, "none"),
    "functions": (None, []),
    "logit_bias": (None, {}),
    "modalities": (None, ["text"]),
    "parallel_tool_calls": (None, True),
    "prediction": (None,),
    "presence_penalty": (None, 0),
    "reasoning_effort": (None,),
    "repetition_penalty": (None, 1),
    "response_format": (None, {"type": "text"}),
    "suffix": (None, ""),
    "tool_choice": (None, "auto", "none"),
    "top_logprobs": (None, 0),
    "verbosity": (None,),
    "web_search_options": (None,),
}
"""Parameters of OpenAI's that only these values are taken of, which change nothing."""
_IGNORED = frozenset({"metadata", "prompt_cache_key", "safety_identifier", "service_tier", "store", "user"})

_Finite = Annotated[float, Field(allow_inf_nan=False)]
_TokenId = Annotated[int, Field(strict=True, ge=0, lt=2**31)]
_Seed = Annotated[int, Field(strict=True, ge=-(2**63), lt=2**63)]


class StreamOptions(BaseModel):
    """include_usage: a last chunk says how many tokens there were."""

    include_usage: bool = False


class _Request(BaseModel):
    """What both kinds of request have."""

    model_config = ConfigDict(extra="allow")

    model: str
    n: Annotated[int, Field(strict=True, ge=1)] | None = None
    temperature: Annotated[_Finite, Field(ge=0.0, le=100.0)] | None = None
    top_p: Annotated[_Finite, Field(gt=0.0, le=1.0)] | None = None
    top_k: Annotated[int, Field(strict=True, ge=-1, lt=2**31)] | None = None
    min_p: Annotated[_Finite, Field(ge=0.0, le=1.0)] | None = None
    max_tokens: Annotated[int, Field(strict=True, ge=1)] | None = None
    seed: _Seed | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[_TokenId] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None


class CompletionRequest(_Request):
    """The body of `/v1/completions`. prompt: text, texts, ids, or lists of ids. logprobs: 0 or 1, for those of the
    sampled tokens; alternatives are not known."""

    prompt: str | list[_TokenId] | list[str] | list[list[_TokenId]]
    logprobs: Annotated[int, Field(strict=True, ge=0)] | None = None


class TextPart(BaseModel):
    """A part of a message. Only texts are taken."""

    type: Literal["text"]
    text: str


class Message(BaseModel):
    """One turn. Whatever else it has (`tool_call_id`, `name`, ...) reaches the template as it is, but for the arguments
    of `tool_calls`, which OpenAI's clients send as text and templates want as objects."""

    model_config = ConfigDict(extra="allow")

    role: Annotated[str, Field(min_length=1, max_length=64)]
    content: str | list[TextPart] | None = None


class Function(BaseModel):
    """What a tool is called, and the JSON schema of its arguments."""

    model_config = ConfigDict(extra="allow")

    name: Annotated[str, Field(min_length=1, max_length=64)]
    description: str | None = None
    parameters: dict[str, Any] | None = None


class Tool(BaseModel):
    type: Literal["function"]
    function: Function


class ChatRequest(_Request):
    """The body of `/v1/chat/completions`."""

    messages: Annotated[list[Message], Field(min_length=1)]
    max_completion_tokens: Annotated[int, Field(strict=True, ge=1)] | None = None
    logprobs: bool | None = None
    tools: list[Tool] | None = None


@dataclass(frozen=True, slots=True)
class Limits:
    """model: the one name that is served. context: tokens of prompt and completion together. max_completions: of one
    request. vocab_size: prompt ids are below it."""

    model: str
    context: int
    max_completions: int
    vocab_size: int


@dataclass(frozen=True, slots=True)
class Asked:
    """A request that can be answered: `n` completions of each prompt. prompts: int32 each. texts: of the prompts, None
    where one came as ids. tools: the JSON schema of each tool's arguments by its name, where calls of them are read."""

    prompts: list[IntArray]
    n: int
    sampling: SamplingParams
    seed: int
    stops: tuple[str, ...]
    stop_token_ids: tuple[int, ...]
    logprobs: bool
    stream: bool
    usage: bool
    texts: tuple[str | None, ...]
    tools: Mapping[str, Any] | None = None

    def requests(self, prefix: str) -> list[GenerationRequest]:
        """One for each completion, in the order of the choices. Their seeds differ, and follow from `seed`."""
        made = []
        for index in range(len(self.prompts) * self.n):
            prompt = self.prompts[index // self.n]
            # An equal prompt and seed draw the same again, whatever ids the requests have.
            seed = rollout_seed(self.seed % 2**64, f"guest/{index}")
            made.append(GenerationRequest(f"{prefix}/{index}", prompt, seed, self.sampling, self.stop_token_ids))
        return made


class _Prompts(NamedTuple):
    """Those of one request. texts: see `Asked`. param: that they came as."""

    ids: list[IntArray]
    texts: tuple[str | None, ...]
    param: str


class Reader:
    """Reads the requests for one model. random_seed: gives one to a request that brings none. memory: of the session
    that a request is part of."""

    def __init__(self, limits: Limits, tokenizer: TextTokenizer, template: ChatTemplate | None) -> None:
        self._limits = limits
        self._tokenizer = tokenizer
        self._template = template

    def completion(self, body: CompletionRequest, random_seed: int, memory: Memory = NOTHING) -> Asked:
        """Raises Refusal for what cannot be answered."""
        self._check(body)
        if body.logprobs is not None and body.logprobs > 1:
            what = "only the log-probs of sampled tokens are known: ask for 0 or 1"
            raise invalid("unsupported_parameter", what, "logprobs")
        given = _prompts_of(body.prompt)
        self._check_count(len(given), body.n or 1)
        ids = [self._ids(prompt, memory) for prompt in given]
        prompts = _Prompts(ids, tuple(prompt if isinstance(prompt, str) else None for prompt in given), "prompt")
        most = body.max_tokens or DEFAULT_COMPLETION_TOKENS
        if body.max_tokens is None:
            most = max(1, min(most, self._limits.context - max(map(len, ids))))
        return self._asked(body, prompts, most, body.logprobs is not None, random_seed)

    def chat(self, body: ChatRequest, random_seed: int, memory: Memory = NOTHING) -> Asked:
        """Raises Refusal for what cannot be answered."""
        self._check(body)
        self._check_count(1, body.n or 1)
        if self._template is None:
            raise no_template()
        tools = None if body.tools is None else [tool.model_dump(exclude_none=True) for tool in body.tools]
        if (body.model_extra or {}).get("tool_choice") == "none":
            tools = None
        text = self._template.render(memory.recalled([_plain(message) for message in body.messages]), tools)
        ids = self._encoded(text, "messages", memory, add_special_tokens=False)
        most = body.max_completion_tokens or body.max_tokens or max(1, self._limits.context - len(ids))
        prompts = _Prompts([ids], (text,), "messages")
        asked = self._asked(body, prompts, most, bool(body.logprobs), random_seed)
        if not tools or not self._template.tool_calls_are_read:
            return asked
        return replace(asked, tools={one.function.name: one.function.parameters for one in body.tools or ()})

    def _asked(self, body: _Request, prompts: _Prompts, most: int, logprobs: bool, random_seed: int) -> Asked:
        self._check_lengths(prompts, most)
        options = body.stream_options
        return Asked(
            prompts=prompts.ids,
            texts=prompts.texts,
            n=body.n or 1,
            sampling=_sampling(body, most),
            seed=random_seed if body.seed is None else body.seed,
            stops=_stops(body.stop),
            stop_token_ids=self._stop_ids(body.stop_token_ids or []),
            logprobs=logprobs,
            stream=bool(body.stream),
            usage=not body.stream or bool(options and options.include_usage),
        )

    def _check(self, body: _Request) -> None:
        if body.model != self._limits.model:
            what = f"there is no model {body.model!a} here; this run serves {self._limits.model!a}"
            raise Refusal(404, "model_not_found", what, "model")
        for name, value in (body.model_extra or {}).items():
            if name in _IGNORED:
                continue
            if name not in _NEUTRAL:
                raise invalid("unknown_parameter", f"{name!a} is not a parameter of this route", name)
            if value not in _NEUTRAL[name]:
                what = f"{name} is not kept here; leave it out, or send {_NEUTRAL[name][-1]!a}"
                raise invalid("unsupported_parameter", what, name)

    def _check_count(self, prompts: int, n: int) -> None:
        most = self._limits.max_completions
        if prompts * n > most:
            what = f"{prompts * n} completions in one request; at most {most} (gateway.max_completions)"
            raise invalid("too_many_completions", what, "n" if n > 1 else "prompt")

    def _check_lengths(self, prompts: _Prompts, most: int) -> None:
        longest = max(map(len, prompts.ids))
        if min(map(len, prompts.ids)) == 0:
            raise invalid("empty_prompt", "a prompt has no token", prompts.param)
        if longest + most > self._limits.context:
            what = f"{longest} tokens of prompt and {most} of completion; the context has {self._limits.context}"
            raise invalid("context_length_exceeded", what, prompts.param)

    def _stop_ids(self, further: list[int]) -> tuple[int, ...]:
        if len(further) > MAX_STOPS:
            raise invalid("too_many_stops", f"{len(further)} stop ids; at most {MAX_STOPS}", "stop_token_ids")
        self._check_ids(further, "stop_token_ids")
        return tuple(dict.fromkeys((*self._tokenizer.eos_token_ids, *further)))

    def _ids(self, prompt: str | list[int], memory: Memory) -> IntArray:
        if isinstance(prompt, str):
            return self._encoded(prompt, "prompt", memory, add_special_tokens=True)
        self._check_ids(prompt, "prompt")
        return np.array(prompt, np.int32)

    def _check_ids(self, ids: list[int], param: str) -> None:
        if ids and max(ids) >= self._limits.vocab_size:
            what = f"{max(ids)} is no id of a token; they are below {self._limits.vocab_size}"
            raise invalid("token_out_of_range", what, param)

    def _encoded(self, text: str, param: str, memory: Memory, *, add_special_tokens: bool) -> IntArray:
        begun, rest = memory.begun(text)
        try:
            encoded = self._tokenizer.encode(rest, add_special_tokens=add_special_tokens and not begun)
        except ConfigError as error:
            raise invalid("not_encodable", ascii(str(error)), param) from error
        return np.array([*begun, *encoded], np.int32)


def _prompts_of(prompt: Any) -> list[str | list[int]]:
    """The prompts of a request, whichever of the four forms it has."""
    if isinstance(prompt, str) or (prompt and isinstance(prompt[0], int)):
        return [prompt]
    if not prompt:
        raise invalid("empty_prompt", "prompt is an empty list", "prompt")
    return list(prompt)


def _plain(message: Message) -> dict[str, Any]:
    plain = message.model_dump(exclude_unset=True)
    if isinstance(message.content, list):
        plain["content"] = "".join(part.text for part in message.content)
    if isinstance(plain.get("tool_calls"), list):
        plain["tool_calls"] = [_with_arguments(call) for call in plain["tool_calls"]]
    return plain


def _with_arguments(call: Any) -> Any:
    """The same with its arguments as an object, where they are the text of one."""
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("arguments"), str):
        return call
    try:
        arguments = msgspec.json.decode(function["arguments"] or "{}", type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError, UnicodeEncodeError):
        return call
    return {**call, "function": {**function, "arguments": arguments}}


def _sampling(body: _Request, most: int) -> SamplingParams:
    if body.temperature and body.temperature < LEAST_TEMPERATURE:
        what = f"temperature {body.temperature:g}; send 0, which is greedy, or {LEAST_TEMPERATURE:g} and more"
        raise invalid("invalid_value", what, "temperature")
    return SamplingParams(
        temperature=1.0 if body.temperature is None else body.temperature,
        top_p=1.0 if body.top_p is None else body.top_p,
        top_k=max(0, body.top_k or 0),
        min_p=body.min_p or 0.0,
        max_new_tokens=most,
    )


def _stops(stop: str | list[str] | None) -> tuple[str, ...]:
    stops = () if stop is None else (stop,) if isinstance(stop, str) else tuple(stop)
    if len(stops) > MAX_STOPS:
        raise invalid("too_many_stops", f"{len(stops)} stop strings; at most {MAX_STOPS}", "stop")
    if "" in stops:
        raise invalid("empty_stop", "an empty stop string would end every completion at once", "stop")
    return stops
