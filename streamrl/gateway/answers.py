"""What a client is answered: OpenAI's objects, whole and in chunks, with what training needs beside them. Pure.

Beyond OpenAI's fields, under `streamrl`: of each choice `token_ids`, `logprobs` and `version_spans` (start, version) of
the sampled tokens, `start` counted from the first one of the choice; of each answer (of the first chunk, where it comes
in chunks) `prompt_token_ids`, for each prompt.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from streamrl.gateway.asked import Asked
from streamrl.gateway.choice import Delta
from streamrl.gateway.refusal import Refusal, json_bytes
from streamrl.gateway.tool_calls import Said, ToolCall, ToolCallReader, ToolCallStream
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
    """How one of the two routes words its answers."""

    prefix: str
    """Of the ids of its answers."""

    def whole(self, head: Head, choices: Sequence[Json], usage: Json) -> Json: ...

    def chunk(self, head: Head, choices: Sequence[Json]) -> Json: ...

    def choice(self, index: int, delta: Delta, logprobs: bool) -> Json:
        """One choice of a whole answer."""
        ...

    def part(self, index: int, delta: Delta, logprobs: bool) -> Json:
        """One choice of a chunk."""
        ...


class CompletionForm:
    """Of `/v1/completions`."""

    prefix = "cmpl-"

    def __init__(self, tokenizer: TextTokenizer) -> None:
        self._tokenizer = tokenizer

    def whole(self, head: Head, choices: Sequence[Json], usage: Json) -> Json:
        return {**_head(head, "text_completion", choices), "usage": usage}

    def chunk(self, head: Head, choices: Sequence[Json]) -> Json:
        return _head(head, "text_completion", choices)

    def choice(self, index: int, delta: Delta, logprobs: bool) -> Json:
        return {
            "index": index,
            "text": delta.text,
            "finish_reason": delta.finish_reason or None,
            "logprobs": self._logprobs(delta) if logprobs else None,
            "streamrl": _captured(delta),
        }

    part = choice

    def _logprobs(self, delta: Delta) -> Json:
        tokens = [_token(self._tokenizer, token_id) for token_id in delta.token_ids]
        offsets = delta.offsets
        return {"tokens": tokens, "token_logprobs": delta.logprobs, "text_offset": offsets, "top_logprobs": None}


class ChatForm:
    """Of one request of `/v1/chat/completions`. reader: of the tool calls in its answer, where they are read."""

    prefix = "chatcmpl-"

    def __init__(self, tokenizer: TextTokenizer, reader: ToolCallReader | None = None) -> None:
        self._tokenizer = tokenizer
        self._reader = reader
        self._streams: dict[int, ToolCallStream] = {}

    def whole(self, head: Head, choices: Sequence[Json], usage: Json) -> Json:
        return {**_head(head, "chat.completion", choices), "usage": usage}

    def chunk(self, head: Head, choices: Sequence[Json]) -> Json:
        return _head(head, "chat.completion.chunk", choices)

    def choice(self, index: int, delta: Delta, logprobs: bool) -> Json:
        reader = self._reader
        said = Said(delta.text) if reader is None else reader.said(index, delta.text, delta.finish_reason)
        calls = [_tool_call(call) for call in said.calls]
        message = {"role": "assistant", "content": said.content or (None if calls else ""), "refusal": None}
        reason = _reason(delta.finish_reason, len(calls))
        return self._choice(index, "message", message | _of_calls(calls), delta, logprobs, reason)

    def part(self, index: int, delta: Delta, logprobs: bool) -> Json:
        said, calls_before, calls_now = self._read(index, delta)
        calls = [{"index": calls_before + place, **_tool_call(call)} for place, call in enumerate(said.calls)]
        message = {"content": said.content or (None if calls else "")} | _of_calls(calls)
        if not delta.start:
            message = {"role": "assistant"} | message
        reason = _reason(delta.finish_reason, calls_now)
        return self._choice(index, "delta", message, delta, logprobs, reason)

    def _read(self, index: int, delta: Delta) -> tuple[Said, int, int]:
        """What a piece says, and how many calls there were before it and are now."""
        if self._reader is None:
            return Said(delta.text), 0, 0
        if not delta.start:
            self._streams[index] = self._reader.stream(index)  # it may have begun anew
        stream = self._streams[index]
        before = stream.num_calls
        said = stream.feed(delta.text)
        if delta.finish_reason:
            last = stream.flush(delta.finish_reason)
            said = Said(said.content + last.content, said.calls + last.calls)
        return said, before, stream.num_calls

    def _choice(self, index: int, name: str, said: Json, delta: Delta, logprobs: bool, reason: str) -> Json:
        return {
            "index": index,
            name: said,
            "finish_reason": reason or None,
            "logprobs": {"content": self._logprobs(delta), "refusal": None} if logprobs else None,
            "streamrl": _captured(delta),
        }

    def _logprobs(self, delta: Delta) -> list[Json]:
        tokens = [_token(self._tokenizer, token_id) for token_id in delta.token_ids]
        pairs = zip(tokens, delta.logprobs, strict=True)
        return [
            {"token": token, "logprob": logprob, "bytes": list(token.encode()), "top_logprobs": []}
            for token, logprob in pairs
        ]


def usage_of(asked: Asked, completion_tokens: int) -> Json:
    """Tokens of the prompts, each counted once, and of all completions."""
    prompt_tokens = sum(map(len, asked.prompts))
    total = prompt_tokens + completion_tokens
    return {"prompt_tokens": prompt_tokens, "completion_tokens": completion_tokens, "total_tokens": total}


def captured_prompts(asked: Asked) -> Json:
    """What an answer says of its prompts under `streamrl`."""
    return {"prompt_token_ids": [prompt.tolist() for prompt in asked.prompts]}


def event(value: Json) -> bytes:
    """One server-sent event."""
    return b"data: " + json_bytes(value) + b"\n\n"


def error_event(refusal: Refusal) -> bytes:
    """The last word of a stream that broke off. No `[DONE]` follows: the answer is not whole."""
    return event(refusal.body())


def models(name: str, created: int, context: int, versions: Sequence[tuple[int, int]]) -> Json:
    """The answer of `/v1/models`. versions: those that replicas serve now."""
    serving = [str(Version(*version)) for version in sorted(set(versions))]
    more = {"max_model_len": context, "streamrl": {"versions": serving}}
    return {
        "object": "list",
        "data": [{"id": name, "object": "model", "created": created, "owned_by": "streamrl", **more}],
    }


def _head(head: Head, kind: str, choices: Sequence[Json]) -> Json:
    return {"id": head.id, "object": kind, "created": head.created, "model": head.model, "choices": list(choices)}


def _tool_call(call: ToolCall) -> Json:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def _of_calls(calls: list[Json]) -> Json:
    return {"tool_calls": calls} if calls else {}


def _reason(finish_reason: str, num_calls: int) -> str:
    """As OpenAI words it: a message that stopped behind calls is a turn of the tools."""
    return "tool_calls" if num_calls and finish_reason == FinishReason.STOP else finish_reason


def _captured(delta: Delta) -> Json:
    spans = [[start, str(Version(incarnation, step))] for start, incarnation, step in delta.spans]
    return {"token_ids": delta.token_ids, "logprobs": delta.logprobs, "version_spans": spans}


def _token(tokenizer: TextTokenizer, token_id: int) -> str:
    return tokenizer.decode(np.array([token_id], np.int32))
