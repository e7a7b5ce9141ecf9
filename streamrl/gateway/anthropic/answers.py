"""What a client of `/v1/messages` is answered, whole and in events. Pure.

Beyond Anthropic's fields, under `streamrl`: `prompt_token_ids`, and `token_ids`, `logprobs` and `version_spans` of what
was sampled, as in a chat; in a stream the latter come with the last event but one.
"""

import json
from collections.abc import Iterator, Sequence

from streamrl.conversations.tool_calls import MessageReader, ToolCall
from streamrl.gateway.openai.answers import Head, Json, captured, named_event
from streamrl.gateway.openai.choice import Delta, joined
from streamrl.gateway.openai.requests import ParsedRequest
from streamrl.gateway.refusal import Refusal
from streamrl.types import FinishReason


class MessageForm:
    """Of one request. reader: of its answer."""

    prefix = "msg_"

    def __init__(self, reader: MessageReader) -> None:
        self._reader = reader
        self._stream = reader.stream(0)
        self._deltas: list[Delta] = []
        self._blocks = 0
        self._open = ""
        """The type of the block that goes on; "" where none does."""

    def whole(self, head: Head, choices: Sequence[tuple[int, Delta]], asked: ParsedRequest, tokens: int) -> Json:
        ((_, delta),) = choices
        said = self._reader.parse(0, delta.text, delta.finish_reason)
        thoughts = [_thought(said.thoughts)] if said.thoughts else []
        texts = [{"type": "text", "text": said.content}] if said.content or not (said.calls or thoughts) else []
        blocks = [*thoughts, *texts, *(_tool_use(call, json.loads(call.arguments)) for call in said.calls)]
        message = _message(head, asked, blocks, tokens) | _ending(delta, len(said.calls))
        return {**message, "streamrl": {**_prompts(asked), **captured(delta)}}

    def step(self, head: Head, index: int, delta: Delta, asked: ParsedRequest) -> bytes:
        self._deltas.append(delta)
        return b"".join(self._events(head, delta, asked))

    def closing(self, head: Head, asked: ParsedRequest, tokens: int) -> bytes:
        whole = joined(self._deltas)
        ending = _ending(whole, self._stream.num_calls)
        usage = {"output_tokens": tokens}
        last = {"type": "message_delta", "delta": ending, "usage": usage, "streamrl": captured(whole)}
        return named_event(last) + named_event({"type": "message_stop"})

    def broken(self, refusal: Refusal) -> bytes:
        return named_event(error_body(refusal))

    def _events(self, head: Head, delta: Delta, asked: ParsedRequest) -> Iterator[bytes]:
        if not delta.start:
            message = {**_message(head, asked, [], 0), "streamrl": _prompts(asked)}
            yield named_event({"type": "message_start", "message": message})
        said = self._stream.take(delta.text, delta.finish_reason)
        if said.thoughts:
            yield from self._goes_on(_thought(""), {"type": "thinking_delta", "thinking": said.thoughts})
        if said.content:
            yield from self._goes_on({"type": "text", "text": ""}, {"type": "text_delta", "text": said.content})
        for call in said.calls:
            yield from self._end_open()
            yield from self._call(call)
        if delta.finish_reason:
            yield from self._end_open()

    def _goes_on(self, block: Json, delta: Json) -> Iterator[bytes]:
        """More of a block of that type, which begins here unless it is open."""
        if self._open != block["type"]:
            yield from self._end_open()
            self._open = block["type"]
            yield self._of_block("content_block_start", content_block=block)
        yield self._of_block("content_block_delta", delta=delta)

    def _end_open(self) -> Iterator[bytes]:
        if self._open:
            self._open = ""
            yield self._end_block()

    def _call(self, call: ToolCall) -> Iterator[bytes]:
        yield self._of_block("content_block_start", content_block=_tool_use(call, {}))
        arguments = {"type": "input_json_delta", "partial_json": call.arguments}
        yield self._of_block("content_block_delta", delta=arguments)
        yield self._end_block()

    def _end_block(self) -> bytes:
        ended = self._of_block("content_block_stop")
        self._blocks += 1
        return ended

    def _of_block(self, kind: str, **more: Json) -> bytes:
        return named_event({"type": kind, "index": self._blocks, **more})


def error_body(refusal: Refusal) -> Json:
    """A refusal in Anthropic's shape; `code` and `param` are ours."""
    told = {"type": _kind(refusal.status), "message": refusal.message, "code": refusal.code, "param": refusal.param}
    return {"type": "error", "error": told}


def _kind(status: int) -> str:
    kinds = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 413: "request_too_large"}
    kinds |= {429: "rate_limit_error", 503: "overloaded_error", 504: "timeout_error"}
    return kinds.get(status, "invalid_request_error" if status < 500 else "api_error")


def _message(head: Head, asked: ParsedRequest, content: list[Json], tokens: int) -> Json:
    read = {"cache_creation_input_tokens": 0, "cache_read_input_tokens": 0}
    usage = {"input_tokens": len(asked.prompts[0]), **read, "output_tokens": tokens}
    said = {"id": head.id, "type": "message", "role": "assistant", "model": head.model, "content": content}
    return {**said, "stop_reason": None, "stop_sequence": None, "usage": usage}


def _ending(delta: Delta, num_calls: int) -> Json:
    if delta.stop:
        return {"stop_reason": "stop_sequence", "stop_sequence": delta.stop}
    if delta.finish_reason != FinishReason.STOP:
        return {"stop_reason": "max_tokens", "stop_sequence": None}
    return {"stop_reason": "tool_use" if num_calls else "end_turn", "stop_sequence": None}


def _thought(text: str) -> Json:
    """Without a signature: whoever sends it back is believed."""
    return {"type": "thinking", "thinking": text, "signature": ""}


def _tool_use(call: ToolCall, given: Json) -> Json:
    return {"type": "tool_use", "id": call.id, "name": call.name, "input": given}


def _prompts(asked: ParsedRequest) -> Json:
    return {"prompt_token_ids": [prompt.tolist() for prompt in asked.prompts]}
