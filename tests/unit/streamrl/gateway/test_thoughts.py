"""Thoughts at the gateway, in each dialect, whole and in streams; and in a session they change no id."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from support.engines.calling_model import write_thinking_tokenizer
from support.gateway.agent_sessions import gateway_of
from support.gateway.local_gateway import LocalGateway

from streamrl.config.schema.run import GatewayConfig

THINKING = {"template": None, "finish": write_thinking_tokenizer, "latency_steps": 8, "heavy_tail": 0.5, "most": 12}
SETTINGS = GatewayConfig(enabled=True, stream_weights={"train": 0.0}, reasoning_parser="think")
MESSAGES = [{"role": "user", "content": "1"}]
ASKED = {
    "/v1/chat/completions": {"messages": MESSAGES, "max_tokens": 12},
    "/v1/messages": {"messages": MESSAGES, "max_tokens": 12},
    "/v1/responses": {"input": "1", "max_output_tokens": 12},
}


@pytest.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[LocalGateway]:
    async with gateway_of(tmp_path, **THINKING, settings=SETTINGS) as opened:
        yield opened


async def text_of(gateway: LocalGateway, token_ids: list[int]) -> str:
    """Of sampled ids, without the token that ended them."""
    _, answer = await gateway.ask("/detokenize", {"tokens": [one for one in token_ids if one > 2]})
    return answer["prompt"]


def told(path: str, answer: dict[str, Any]) -> tuple[str, str, list[int]]:
    """(thoughts, text, ids) of a whole answer."""
    match path:
        case "/v1/chat/completions":
            message = answer["choices"][0]["message"]
            ids = answer["choices"][0]["streamrl"]["token_ids"]
            return message.get("reasoning_content", ""), message["content"] or "", ids
        case "/v1/messages":
            thoughts = [block["thinking"] for block in answer["content"] if block["type"] == "thinking"]
            texts = [block["text"] for block in answer["content"] if block["type"] == "text"]
        case _:
            thoughts = [item["content"][0]["text"] for item in answer["output"] if item["type"] == "reasoning"]
            texts = [item["content"][0]["text"] for item in answer["output"] if item["type"] == "message"]
    return "".join(thoughts), "".join(texts), answer["streamrl"]["token_ids"]


async def events_of(gateway: LocalGateway, path: str) -> list[dict[str, Any]]:
    headers = {"authorization": f"Bearer {gateway.token()}"}
    body = {"model": "run", **ASKED[path], "stream": True}
    async with gateway.http.post(gateway.url + path, json=body, headers=headers) as response:
        lines = (await response.text()).split("\n")
    return [json.loads(line[6:]) for line in lines if line.startswith("data: {")]


def streamed(path: str, events: list[dict[str, Any]]) -> tuple[str, str, list[int]]:
    match path:
        case "/v1/chat/completions":
            parts = [choice for one in events for choice in one["choices"]]
            deltas = [part["delta"] for part in parts]
            thoughts = [delta.get("reasoning_content", "") for delta in deltas]
            texts = [delta.get("content") or "" for delta in deltas]
            return "".join(thoughts), "".join(texts), [i for part in parts for i in part["streamrl"]["token_ids"]]
        case "/v1/messages":
            deltas = [one["delta"] for one in events if one["type"] == "content_block_delta"]
            thoughts = [delta.get("thinking", "") for delta in deltas]
            texts = [delta.get("text", "") for delta in deltas]
            return "".join(thoughts), "".join(texts), events[-2]["streamrl"]["token_ids"]
        case _:
            thoughts = [one["delta"] for one in events if one["type"] == "response.reasoning_text.delta"]
            texts = [one["delta"] for one in events if one["type"] == "response.output_text.delta"]
            whole = events[-1]["response"]
            assert told(path, whole)[:2] == ("".join(thoughts), "".join(texts))
            done = [one["item"] for one in events if one["type"] == "response.output_item.done"]
            assert done == whole["output"]
            return "".join(thoughts), "".join(texts), whole["streamrl"]["token_ids"]


@pytest.mark.parametrize("path", ASKED)
async def test_thoughts_are_told_apart_from_the_text(path: str, gateway: LocalGateway) -> None:
    both = {"whole": 0, "stream": 0}
    # What is sampled decides whether an answer has both parts.
    for number in range(400):
        if number >= 40 and min(both.values()) > 2:
            break
        way = "stream" if number % 2 else "whole"
        if way == "stream":
            found = streamed(path, await events_of(gateway, path))
        else:
            status, answer = await gateway.ask(path, {"model": "run", **ASKED[path]})
            assert status == 200, answer
            found = told(path, answer)
        thoughts, text, ids = found
        before, _, after = (await text_of(gateway, ids)).partition("</think>")
        assert (thoughts, text) == (before.strip(), after.lstrip())
        both[way] += bool(thoughts) and bool(text)
    assert min(both.values()) > 2, both


async def test_a_session_goes_on_behind_thoughts_that_were_told_apart(gateway: LocalGateway) -> None:
    for number in range(400):
        headers = {"authorization": f"Bearer {gateway.token()}", "x-session-id": f"agent-{number}"}
        body = {"model": "run", **ASKED["/v1/chat/completions"]}
        _, answer = await gateway.ask("/v1/chat/completions", body, headers=headers)
        choice = answer["choices"][0]
        message = choice["message"]
        if choice["finish_reason"] != "stop" or not message.get("reasoning_content") or not message["content"]:
            continue
        said = {"role": "assistant", "content": message["content"]}  # most clients leave thoughts out
        turns = [*MESSAGES, said, {"role": "user", "content": "2"}]
        status, second = await gateway.ask("/v1/chat/completions", {**body, "messages": turns}, headers=headers)
        assert status == 200, second
        ids = [*answer["streamrl"]["prompt_token_ids"][0], *choice["streamrl"]["token_ids"]]
        assert second["streamrl"]["prompt_token_ids"][0][: len(ids)] == ids
        _, rewarded = await gateway.ask(f"/api/sessions/agent-{number}/reward", {"reward": 1.0})
        assert (rewarded["branches"], rewarded["turns"]) == (1, 2)
        return
    raise AssertionError("no answer had thoughts and a text")


async def test_without_the_parser_thoughts_are_text(tmp_path: Path) -> None:
    async with gateway_of(tmp_path, **THINKING) as gateway:
        for _ in range(400):
            _, answer = await gateway.chat("1", max_tokens=12)
            message = answer["choices"][0]["message"]
            assert "reasoning_content" not in message
            if "</think>" in message["content"]:
                return
    raise AssertionError("no answer ended its thoughts")
