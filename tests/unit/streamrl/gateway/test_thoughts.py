"""Thoughts at the gateway, in each dialect, whole and in streams; and in a session they change no id."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from support.engines.calling_model import write_thinking_tokenizer
from support.gateway.agent_sessions import gateway_of
from support.gateway.local_gateway import LocalGateway
from support.gateway.told_answers import ASKED, MESSAGES, events_of, streamed, text_of, told

from streamrl.config.schema.run import GatewayConfig

THINKING = {"template": None, "finish": write_thinking_tokenizer, "latency_steps": 8, "heavy_tail": 0.5, "most": 12}
SETTINGS = GatewayConfig(enabled=True, stream_weights={"train": 0.0}, reasoning_parser="think")


@pytest.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[LocalGateway]:
    async with gateway_of(tmp_path, **THINKING, settings=SETTINGS) as opened:
        yield opened


@pytest.mark.parametrize("path", ASKED)
async def test_thoughts_are_told_apart_from_the_text(path: str, gateway: LocalGateway) -> None:
    both = {"whole": 0, "stream": 0}
    # What is sampled decides whether an answer has both parts.
    for number in range(400):
        if number >= 40 and min(both.values()) > 2:
            break
        way = "stream" if number % 2 else "whole"
        if way == "stream":
            found = streamed(path, await events_of(gateway, path))[:3]
        else:
            status, answer = await gateway.ask(path, {"model": "run", **ASKED[path]})
            assert status == 200, answer
            found = told(path, answer)[:3]
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
