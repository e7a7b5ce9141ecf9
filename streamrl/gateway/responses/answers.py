"""What a client of `/v1/responses` is answered, whole and in events. Pure.

Beyond OpenAI's fields, under `streamrl`: `prompt_token_ids`, and `token_ids`, `logprobs` and `version_spans` of what
was sampled, as in a chat; in a stream they come with the last event.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from streamrl.conversations.tool_calls import MessageReader, ParsedMessage, ToolCall
from streamrl.gateway.openai.answers import Head, Json, captured, named_event
from streamrl.gateway.openai.choice import Delta, joined
from streamrl.gateway.openai.custom_tools import text_of
from streamrl.gateway.openai.logprobs import content_logprobs, told_as_text
from streamrl.gateway.openai.requests import ParsedRequest
from streamrl.gateway.refusal import Refusal, invalid
from streamrl.gateway.responses.items import CustomTool, FunctionTool, ResponsesRequest
from streamrl.types import FinishReason

_IN_PROGRESS: Final = {"status": "in_progress"}


class ResponseForm:
    """Of one request. reader: of its answer. keep: takes the id of the response, what it said, and its items."""

    prefix = "resp_"

    def __init__(
        self,
        body: ResponsesRequest,
        reader: MessageReader,
        keep: Callable[[str, ParsedMessage, list[Json]], None],
        name: Callable[[int], str],
    ) -> None:
        """name: what log-probs call a token."""
        self._body = body
        self._entry = told_as_text(name)
        self._scores: list[Json] = []
        """Log-probs of the message that is open, where they are asked for."""
        self._scores_told = 0
        self._reader = reader
        self._keep = keep
        self._stream = reader.stream(0)
        self._deltas: list[Delta] = []
        self._items: list[Json] = []
        """Those that are complete."""
        self._calls: list[ToolCall] = []
        self._text: str | None = None
        """Of the message that is open."""
        self._thoughts: str | None = None
        """Of the item of thoughts that is open."""
        self._sequence = 0

    def whole(self, head: Head, choices: Sequence[tuple[int, Delta]], asked: ParsedRequest, tokens: int) -> Json:
        ((_, delta),) = choices
        said = self._reader.parse(0, delta.text, delta.finish_reason)
        items = [_reasoning(head, said.thoughts)] if said.thoughts else []
        if said.content or not (said.calls or items):
            cut = delta.finish_reason == FinishReason.LENGTH and not said.calls
            items.append(_message(head, len(items), said.content, self._logprobs(delta, asked), cut))
        items += [_call(call, asked) for call in said.calls]
        self._keep(head.id, said, items)
        return self._response(head, asked, items, delta, tokens)

    def step(self, head: Head, index: int, delta: Delta, asked: ParsedRequest) -> bytes:
        self._deltas.append(delta)
        return b"".join(self._events(head, delta, asked))

    def closing(self, head: Head, asked: ParsedRequest, tokens: int) -> bytes:
        whole = joined(self._deltas)
        thoughts, texts = (
            [item["content"][0]["text"] for item in self._items if item["type"] == kind]
            for kind in ("reasoning", "message")
        )
        self._keep(head.id, ParsedMessage("".join(texts), tuple(self._calls), "".join(thoughts)), self._items)
        response = self._response(head, asked, self._items, whole, tokens)
        return self._event(f"response.{response['status']}", response=response)

    def broken(self, refusal: Refusal) -> bytes:
        return self._event("error", code=refusal.code, message=refusal.message, param=refusal.param)

    def _events(self, head: Head, delta: Delta, asked: ParsedRequest) -> Iterator[bytes]:
        if not delta.start:
            begun = self._response(head, asked, [], None, 0)
            yield self._event("response.created", response=begun)
            yield self._event("response.in_progress", response=begun)
        said = self._stream.take(delta.text, delta.finish_reason)
        self._scores += self._logprobs(delta, asked)
        if said.thoughts:
            yield from self._think(head, said.thoughts)
        if said.content or said.calls or delta.finish_reason:
            yield from self._end_thoughts(head)
        if said.content:
            yield from self._say(head, said.content)
        for call in said.calls:
            yield from self._end_message(head)
            yield from self._tell(call, asked)
        if delta.finish_reason:
            if self._text is None and not self._items:
                yield from self._say(head, "")
            yield from self._end_message(head, delta.finish_reason == FinishReason.LENGTH)

    def _think(self, head: Head, text: str) -> Iterator[bytes]:
        yield from self._end_message(head)
        index = len(self._items)
        place = {"item_id": _reasoning(head, "", index)["id"], "output_index": index, "content_index": 0}
        if self._thoughts is None:
            self._thoughts = ""
            empty = {**_reasoning(head, "", index), "content": [], "status": "in_progress"}
            yield self._event("response.output_item.added", output_index=index, item=empty)
        self._thoughts += text
        yield self._event("response.reasoning_text.delta", **place, delta=text)

    def _end_thoughts(self, head: Head) -> Iterator[bytes]:
        if self._thoughts is None:
            return
        index = len(self._items)
        item, self._thoughts = _reasoning(head, self._thoughts, index), None
        place = {"item_id": item["id"], "output_index": index, "content_index": 0}
        yield self._event("response.reasoning_text.done", **place, text=item["content"][0]["text"])
        yield self._event("response.output_item.done", output_index=index, item=item)
        self._items.append(item)

    def _say(self, head: Head, text: str) -> Iterator[bytes]:
        place = self._place(head)
        if self._text is None:
            self._text = ""
            empty = {**_message(head, len(self._items), ""), "status": "in_progress", "content": []}
            yield self._event("response.output_item.added", output_index=len(self._items), item=empty)
            yield self._event("response.content_part.added", **place, part=_part(""))
        self._text += text
        if text:
            fresh, self._scores_told = self._scores[self._scores_told :], len(self._scores)
            yield self._event("response.output_text.delta", **place, delta=text, logprobs=fresh)

    def _end_message(self, head: Head, cut: bool = False) -> Iterator[bytes]:
        if self._text is None:
            return
        place, text, self._text = self._place(head), self._text, None
        item = _message(head, len(self._items), text, self._scores, cut)
        yield self._event("response.output_text.done", **place, text=text, logprobs=self._scores)
        yield self._event("response.content_part.done", **place, part=_part(text, self._scores))
        yield self._event("response.output_item.done", output_index=len(self._items), item=item)
        self._items.append(item)

    def _tell(self, call: ToolCall, asked: ParsedRequest) -> Iterator[bytes]:
        item, index = _call(call, asked), len(self._items)
        place = {"item_id": item["id"], "output_index": index}
        if item["type"] == "function_call":
            field, kind, done = "arguments", "response.function_call_arguments", {"name": call.name}
        else:
            field, kind, done = "input", "response.custom_tool_call_input", {}
        yield self._event("response.output_item.added", output_index=index, item={**item, field: "", **_IN_PROGRESS})
        yield self._event(f"{kind}.delta", **place, delta=item[field])
        yield self._event(f"{kind}.done", **place, **done, **{field: item[field]})
        yield self._event("response.output_item.done", output_index=index, item=item)
        self._items.append(item)
        self._calls.append(call)

    def _logprobs(self, delta: Delta, asked: ParsedRequest) -> list[Json]:
        """Of tokens of a text that is the whole answer; none where nobody asked for them."""
        return content_logprobs(delta, asked.extras.top, self._entry) if asked.logprobs else []

    def _place(self, head: Head) -> Json:
        index = len(self._items)
        return {"item_id": _message_id(head, index), "output_index": index, "content_index": 0}

    def _event(self, kind: str, **more: Any) -> bytes:
        self._sequence += 1
        return named_event({"type": kind, "sequence_number": self._sequence - 1, **more})

    def _response(self, head: Head, asked: ParsedRequest, items: list[Json], ended: Delta | None, tokens: int) -> Json:
        """The object of all answers. ended: None while it goes on."""
        body, prompts = self._body, [prompt.tolist() for prompt in asked.prompts]
        cut = ended is not None and ended.finish_reason == FinishReason.LENGTH
        status = "in_progress" if ended is None else "incomplete" if cut else "completed"
        read, sampled = len(asked.prompts[0]), {} if ended is None else captured(ended)
        usage = {
            "input_tokens": read,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": read + tokens,
        }
        return {
            "id": head.id,
            "object": "response",
            "created_at": head.created,
            "status": status,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "metadata": body.metadata,
            "model": head.model,
            "output": items,
            "parallel_tool_calls": asked.parallel_calls,
            "previous_response_id": body.previous_response_id,
            "reasoning": {"effort": None if body.reasoning is None else body.reasoning.effort, "summary": None},
            "store": body.store is not False,
            "temperature": asked.sampling.temperature,
            "text": body.text or {"format": {"type": "text"}},
            "tool_choice": body.tool_choice or "auto",
            "tools": [_tool(tool) for tool in body.tools or ()],
            "top_logprobs": asked.extras.top,
            "top_p": asked.sampling.top_p,
            "truncation": "disabled",
            "usage": None if ended is None else usage,
            "streamrl": {"prompt_token_ids": prompts, **sampled},
        }


def said_as_message(said: ParsedMessage) -> Json:
    """An answer as the message of a chat that goes on."""
    calls = [
        {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
        for call in said.calls
    ]
    thoughts = {"reasoning_content": said.thoughts} if said.thoughts else {}
    return {"role": "assistant", "content": said.content} | thoughts | ({"tool_calls": calls} if calls else {})


def check_logprobs(body: ResponsesRequest, asked: ParsedRequest) -> None:
    """Raises Refusal for log-probs of a text that may be a part of what was sampled: a token may be in both parts."""
    reads = "tool calls" if asked.tools is not None else "thoughts" if asked.thinks is not None else ""
    if reads and (param := body.param_of_logprobs):
        what = f"{param} asks for log-probs of a text beside which {reads} are read, and a token may belong to both"
        way_out = "`streamrl` of the response has those of all sampled tokens, and so has a chat"
        raise invalid("unsupported_parameter", f"{what}: leave it out; {way_out}", param)


def _message(head: Head, index: int, text: str, logprobs: Sequence[Json] = (), cut: bool = False) -> Json:
    """cut: it was not ended, and goes on where it is sent back as the last."""
    status = "incomplete" if cut else "completed"
    said = {"type": "message", "id": _message_id(head, index), "status": status, "role": "assistant"}
    return {**said, "content": [_part(text, logprobs)]}


def _reasoning(head: Head, text: str, index: int = 0) -> Json:
    """index: of the item. Some models think again behind a text."""
    content = [{"type": "reasoning_text", "text": text}]
    name = f"rs_{head.id.removeprefix(ResponseForm.prefix)}{f'_{index}' if index else ''}"
    return {"type": "reasoning", "id": name, "summary": [], "content": content, "status": "completed"}


def _message_id(head: Head, index: int) -> str:
    return f"msg_{head.id.removeprefix(ResponseForm.prefix)}_{index}"


def _part(text: str, logprobs: Sequence[Json] = ()) -> Json:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": list(logprobs)}


def _call(call: ToolCall, asked: ParsedRequest) -> Json:
    names = {"call_id": call.id, "name": call.name}
    if call.name in asked.text_tools:
        said = {"type": "custom_tool_call", "id": f"ctc_{call.id}", "input": text_of(call.arguments)}
    else:
        said = {"type": "function_call", "id": f"fc_{call.id}", "arguments": call.arguments}
    return {**said, "status": "completed", **names}


def _tool(tool: FunctionTool | CustomTool) -> Json:
    if isinstance(tool, FunctionTool):
        return tool.model_dump() | {"strict": False}
    return tool.model_dump(exclude_none=True)
