"""What an answer says in each dialect, whole and in a stream."""

import json
from typing import Any, NamedTuple

from support.engines.calling_model import TOOL
from support.gateway.local_gateway import LocalGateway

MESSAGES = [{"role": "user", "content": "1"}]
ASKED: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": MESSAGES, "max_tokens": 12},
    "/v1/messages": {"messages": MESSAGES, "max_tokens": 12},
    "/v1/responses": {"input": "1", "max_output_tokens": 12},
}
WITH_TOOLS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"tools": [TOOL]},
    "/v1/messages": {"tools": [{"name": "add", "input_schema": TOOL["function"]["parameters"]}]},
    "/v1/responses": {"tools": [{"type": "function", **TOOL["function"]}]},
}


class Told(NamedTuple):
    """arguments: of each call, as text."""

    thoughts: str
    text: str
    ids: list[int]
    arguments: list[str]


async def text_of(gateway: LocalGateway, token_ids: list[int]) -> str:
    """Of sampled ids, without the token that ended them."""
    _, answer = await gateway.ask("/detokenize", {"tokens": [one for one in token_ids if one > 2]})
    return answer["prompt"]


def told(path: str, answer: dict[str, Any]) -> Told:
    """Of a whole answer."""
    match path:
        case "/v1/chat/completions":
            message = answer["choices"][0]["message"]
            ids = answer["choices"][0]["streamrl"]["token_ids"]
            calls = [call["function"]["arguments"] for call in message.get("tool_calls", ())]
            return Told(message.get("reasoning_content", ""), message["content"] or "", ids, calls)
        case "/v1/messages":
            blocks = answer["content"]
            thoughts = [block["thinking"] for block in blocks if block["type"] == "thinking"]
            texts = [block["text"] for block in blocks if block["type"] == "text"]
            calls = [json.dumps(block["input"]) for block in blocks if block["type"] == "tool_use"]
        case _:
            items = answer["output"]
            thoughts = [item["content"][0]["text"] for item in items if item["type"] == "reasoning"]
            texts = [item["content"][0]["text"] for item in items if item["type"] == "message"]
            calls = [item["arguments"] for item in items if item["type"] == "function_call"]
    return Told("".join(thoughts), "".join(texts), answer["streamrl"]["token_ids"], calls)


async def events_of(gateway: LocalGateway, path: str, **more: Any) -> list[dict[str, Any]]:
    headers = {"authorization": f"Bearer {gateway.token()}"}
    body = {"model": "run", **ASKED[path], "stream": True, **more}
    async with gateway.http.post(gateway.url + path, json=body, headers=headers) as response:
        lines = (await response.text()).split("\n")
    return [json.loads(line[6:]) for line in lines if line.startswith("data: {")]


def streamed(path: str, events: list[dict[str, Any]]) -> Told:
    match path:
        case "/v1/chat/completions":
            parts = [choice for one in events for choice in one["choices"]]
            deltas = [part["delta"] for part in parts]
            thoughts = [delta.get("reasoning_content", "") for delta in deltas]
            texts = [delta.get("content") or "" for delta in deltas]
            calls = [call["function"]["arguments"] for delta in deltas for call in delta.get("tool_calls", ())]
            ids = [i for part in parts for i in part["streamrl"]["token_ids"]]
            return Told("".join(thoughts), "".join(texts), ids, calls)
        case "/v1/messages":
            deltas = [one["delta"] for one in events if one["type"] == "content_block_delta"]
            thoughts = [delta.get("thinking", "") for delta in deltas]
            texts = [delta.get("text", "") for delta in deltas]
            calls = [delta["partial_json"] for delta in deltas if "partial_json" in delta]
            return Told("".join(thoughts), "".join(texts), events[-2]["streamrl"]["token_ids"], calls)
        case _:
            thoughts = [one["delta"] for one in events if one["type"] == "response.reasoning_text.delta"]
            texts = [one["delta"] for one in events if one["type"] == "response.output_text.delta"]
            whole = events[-1]["response"]
            found = told(path, whole)
            assert found[:2] == ("".join(thoughts), "".join(texts))
            places = [one["output_index"] for one in events if one["type"] == "response.output_item.done"]
            done = [one["item"] for one in events if one["type"] == "response.output_item.done"]
            assert (done, places) == (whole["output"], list(range(len(done))))
            assert len({item["id"] for item in done}) == len(done)
            return found
