"""What a client is answered: OpenAI's objects, whole and in chunks, with what training needs beside them. Pure.

Beyond OpenAI's fields, under `streamrl`: of each choice `token_ids`, `logprobs` and `version_spans` (start, version) of
the sampled tokens, `start` counted from the first one of the choice; of each answer (of the first chunk, where it comes
in chunks) `prompt_token_ids`, for each prompt.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

from streamrl.conversations.tool_calls import MessageReader, MessageStream, ParsedMessage, ToolCall
from streamrl.gateway.openai.choice import Delta
from streamrl.gateway.openai.custom_tools import INPUT, text_of
from streamrl.gateway.openai.logprobs import (
    TokenTexts,
    completion_logprobs,
    content_logprobs,
    prompt_logprobs,
    told_as_text,
)
from streamrl.gateway.openai.requests import ParsedRequest
from streamrl.gateway.refusal import Refusal, json_bytes
from streamrl.models.tokenizer import TextTokenizer
from streamrl.types import FinishReason, Version

DONE = b"data: [DONE]\n\n"
Json = dict[str, Any]


class Head(NamedTuple):
    """What all chunks of an answer begin with. created: Unix seconds."""

    id: str
    created: int
    model: str


class Form(Protocol):
    """How a dialect words the answer to one request, whole or in events."""

    prefix: str
    """Of the ids of its answers."""

    def whole(self, head: Head, choices: Sequence[tuple[int, Delta]], asked: ParsedRequest, tokens: int) -> Json:
        """choices: all that each came to, by its number. tokens: of all choices."""
        ...

    def step(self, head: Head, index: int, delta: Delta, asked: ParsedRequest) -> bytes:
        """What is new of one choice."""
        ...

    def closing(self, head: Head, asked: ParsedRequest, tokens: int) -> bytes:
        """Behind the last choice. tokens: of all choices."""
        ...

    def broken(self, refusal: Refusal) -> bytes:
        """The last word of a stream that broke off: the answer is not whole."""
        ...


class ChunkForm(ABC):
    """OpenAI's way to stream: chunks that look like the whole answer, and a last word."""

    prefix: str
    one_prompt: bool
    """Whether a request has one prompt, of which the answer as a whole may tell."""

    def __init__(self) -> None:
        self._told = False
        self._tokens: dict[int, int] = {}
        """Of each choice so far."""

    @abstractmethod
    def told(self, head: Head, choices: Sequence[Json], usage: Json | None) -> Json:
        """The answer around choices. usage: None in a chunk."""

    @abstractmethod
    def choice(self, index: int, delta: Delta, asked: ParsedRequest) -> Json:
        """One choice of a whole answer."""

    @abstractmethod
    def part(self, index: int, delta: Delta, asked: ParsedRequest) -> Json:
        """One choice of a chunk."""

    def whole(self, head: Head, choices: Sequence[tuple[int, Delta]], asked: ParsedRequest, tokens: int) -> Json:
        """As `Form.whole`."""
        told = [self.choice(index, delta, asked) for index, delta in choices]
        more = {**of_prompts(asked, self.one_prompt), **self.beside(choices, asked)}
        return {**self.told(head, told, usage_of(asked, tokens)), **more}

    def beside(self, choices: Sequence[tuple[int, Delta]], asked: ParsedRequest) -> Json:
        """What a whole answer has beside its choices."""
        return {}

    def step(self, head: Head, index: int, delta: Delta, asked: ParsedRequest) -> bytes:
        """As `Form.step`; the first one tells of the prompts."""
        more = {} if self._told else of_prompts(asked, self.one_prompt)
        self._told = True
        if asked.usage_each:
            self._tokens[index] = delta.start + len(delta.token_ids)
            more["usage"] = usage_of(asked, sum(self._tokens.values()))
        return event({**self.told(head, [self.part(index, delta, asked)], None), **more})

    def closing(self, head: Head, asked: ParsedRequest, tokens: int) -> bytes:
        """As `Form.closing`."""
        usage = event(self.told(head, [], usage_of(asked, tokens))) if asked.usage else b""
        return usage + DONE

    def broken(self, refusal: Refusal) -> bytes:
        """As `Form.broken`; no `[DONE]` follows."""
        return event(refusal.body())


class CompletionForm(ChunkForm):
    """Of `/v1/completions`."""

    prefix = "cmpl-"
    one_prompt = False

    def __init__(self, tokenizer: TextTokenizer) -> None:
        super().__init__()
        self._texts = TokenTexts(tokenizer)

    def told(self, head: Head, choices: Sequence[Json], usage: Json | None) -> Json:
        return _head(head, "text_completion", choices) | ({} if usage is None else {"usage": usage})

    def choice(self, index: int, delta: Delta, asked: ParsedRequest) -> Json:
        place = index // asked.n
        more = _ids_of(delta, asked)
        if more and not delta.start:
            more["prompt_token_ids"] = asked.prompts[place].tolist()
        if (top := asked.extras.prompt_top) is not None:
            ids = asked.prompts[place].tolist()
            more["prompt_logprobs"] = prompt_logprobs(ids, delta.prompt, top, self._texts.text)
        echo = asked.extras.echoes[place].text if asked.extras.echoes and not delta.start else ""
        return {
            "index": index,
            "text": echo + delta.text,
            "finish_reason": delta.finish_reason or None,
            "logprobs": self._logprobs(place, delta, asked) if asked.logprobs else None,
            **more,
            "streamrl": captured(delta),
        }

    part = choice

    def _logprobs(self, place: int, delta: Delta, asked: ParsedRequest) -> Json:
        extras, name = asked.extras, self._texts.name(asked.ids_as_tokens)
        if not extras.echoes:
            return completion_logprobs(delta, extras.top, name)
        prompt = [] if delta.start else asked.prompts[place].tolist()
        return completion_logprobs(delta, extras.top, name, prompt, extras.echoes[place])


class ChatForm(ChunkForm):
    """Of one request of `/v1/chat/completions`. reader: of its answers."""

    prefix = "chatcmpl-"
    one_prompt = True

    def __init__(self, tokenizer: TextTokenizer, reader: MessageReader) -> None:
        super().__init__()
        self._texts = TokenTexts(tokenizer)
        self._reader = reader
        self._streams: dict[int, MessageStream] = {}

    def told(self, head: Head, choices: Sequence[Json], usage: Json | None) -> Json:
        # A chunk that tells the usage has no choice, and a whole answer has one at least.
        kind = "chat.completion" if usage is not None and choices else "chat.completion.chunk"
        return _head(head, kind, choices) | ({} if usage is None else {"usage": usage})

    def beside(self, choices: Sequence[tuple[int, Delta]], asked: ParsedRequest) -> Json:
        """As `ChunkForm.beside`: the one prompt's log-probs, where vLLM has them."""
        return of_scores(choices, asked, self._texts.text)

    def choice(self, index: int, delta: Delta, asked: ParsedRequest) -> Json:
        said = self._reader.parse(index, delta.text, delta.finish_reason)
        calls = [_tool_call(call, asked) for call in said.calls]
        message: Json = {"role": "assistant", "content": said.content or (None if calls else ""), "refusal": None}
        message |= _of_thoughts(said)
        reason = _reason(delta.finish_reason, len(calls))
        return self._choice(index, "message", message | _of_calls(calls), delta, asked, reason)

    def part(self, index: int, delta: Delta, asked: ParsedRequest) -> Json:
        said, calls_before, calls_now = self._read(index, delta)
        calls = [{"index": calls_before + place, **_tool_call(call, asked)} for place, call in enumerate(said.calls)]
        message: Json = {"content": said.content or (None if calls else "")} | _of_thoughts(said) | _of_calls(calls)
        if not delta.start:
            message = {"role": "assistant"} | message
        reason = _reason(delta.finish_reason, calls_now)
        return self._choice(index, "delta", message, delta, asked, reason)

    def _read(self, index: int, delta: Delta) -> tuple[ParsedMessage, int, int]:
        """What a piece says, and how many calls there were before it and are now."""
        if not delta.start:
            self._streams[index] = self._reader.stream(index)  # it may have begun anew
        stream = self._streams[index]
        before = stream.num_calls
        return stream.take(delta.text, delta.finish_reason), before, stream.num_calls

    def _choice(self, index: int, name: str, said: Json, delta: Delta, asked: ParsedRequest, reason: str) -> Json:
        return {
            "index": index,
            name: said,
            "finish_reason": reason or None,
            "logprobs": {"content": self._logprobs(delta, asked), "refusal": None} if asked.logprobs else None,
            **_ids_of(delta, asked),
            "streamrl": captured(delta),
        }

    def _logprobs(self, delta: Delta, asked: ParsedRequest) -> list[Json]:
        return content_logprobs(delta, asked.extras.top, told_as_text(self._texts.name(asked.ids_as_tokens)))


def usage_of(asked: ParsedRequest, completion_tokens: int) -> Json:
    """Tokens of the prompts, each counted once, and of all completions."""
    prompt_tokens = sum(map(len, asked.prompts))
    total = prompt_tokens + completion_tokens
    return {"prompt_tokens": prompt_tokens, "completion_tokens": completion_tokens, "total_tokens": total}


def of_prompts(asked: ParsedRequest, one_prompt: bool) -> Json:
    """What an answer says of its prompts. one_prompt: as `ChunkForm` has it."""
    prompts = [prompt.tolist() for prompt in asked.prompts]
    more = {"prompt_token_ids": prompts[0]} if asked.return_token_ids and one_prompt else {}
    return {**more, "streamrl": {"prompt_token_ids": prompts}}


def of_scores(choices: Sequence[tuple[int, Delta]], asked: ParsedRequest, text: Callable[[int], str] | None) -> Json:
    """vLLM's log-probs of the one prompt of a request, where they were asked for. text: as of `prompt_logprobs`."""
    if (top := asked.extras.prompt_top) is None:
        return {}
    (_, first), *_ = choices
    return {"prompt_logprobs": prompt_logprobs(asked.prompts[0].tolist(), first.prompt, top, text)}


def event(value: Json) -> bytes:
    """One server-sent event."""
    return b"data: " + json_bytes(value) + b"\n\n"


def named_event(value: Json) -> bytes:
    """One server-sent event that is called as its `type`."""
    return b"event: " + str(value["type"]).encode() + b"\n" + event(value)


def model_object(name: str, created: int, context: int, versions: Sequence[tuple[int, int]]) -> Json:
    """The one model, as OpenAI words it. versions: those that replicas serve now."""
    serving = [str(Version(*version)) for version in sorted(set(versions))]
    more = {"max_model_len": context, "streamrl": {"versions": serving}}
    return {"id": name, "object": "model", "created": created, "owned_by": "streamrl", **more}


def models(model: Json) -> Json:
    """The answer of `/v1/models`."""
    return {"object": "list", "data": [model]}


def _head(head: Head, kind: str, choices: Sequence[Json]) -> Json:
    return {"id": head.id, "object": kind, "created": head.created, "model": head.model, "choices": list(choices)}


def _tool_call(call: ToolCall, asked: ParsedRequest) -> Json:
    if call.name in asked.text_tools:
        return {"id": call.id, "type": "custom", "custom": {"name": call.name, INPUT: text_of(call.arguments)}}
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def _of_thoughts(said: ParsedMessage) -> Json:
    return {"reasoning_content": said.thoughts} if said.thoughts else {}


def _of_calls(calls: list[Json]) -> Json:
    return {"tool_calls": calls} if calls else {}


def _reason(finish_reason: str, num_calls: int) -> str:
    """As OpenAI words it: a message that stopped behind calls is a turn of the tools."""
    return "tool_calls" if num_calls and finish_reason == FinishReason.STOP else finish_reason


def captured(delta: Delta) -> Json:
    """What is told of a choice's tokens under `streamrl`."""
    spans = [[start, str(Version(incarnation, step))] for start, incarnation, step in delta.spans]
    return {"token_ids": delta.token_ids, "logprobs": delta.logprobs, "version_spans": spans}


def _ids_of(delta: Delta, asked: ParsedRequest) -> Json:
    return {"token_ids": delta.token_ids} if asked.return_token_ids else {}
