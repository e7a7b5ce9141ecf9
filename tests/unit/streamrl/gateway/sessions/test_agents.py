"""Agents with tools at the real gateway, by OpenAI's client: calls are read, and a conversation stays one branch."""

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest
from support.engines.calling_model import BROKEN, CODERS, COMPACT, TOOL
from support.gateway.agent_sessions import CALLS, gateway_of, reward
from support.gateway.local_gateway import LocalGateway

from streamrl.config.estimates.model_presets import SPECIAL_TOKENS
from streamrl.gateway.sessions.session_body import HEADER
from streamrl.models.tokenizer import TextTokenizer, load_tokenizer

MOST = 8


@asynccontextmanager
async def agent_at(folder: Path, **options: Any) -> AsyncIterator[tuple[LocalGateway, openai.AsyncOpenAI]]:
    async with (
        gateway_of(folder, **CALLS, **options) as gateway,
        openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key=gateway.token(), max_retries=0) as client,
    ):
        yield gateway, client


async def say(client: openai.AsyncOpenAI, messages: list[Any], session: str | None = None, **more: Any) -> Any:
    headers = {} if session is None else {HEADER: session}
    asked = {"model": "run", "max_tokens": MOST, "tools": [TOOL], **more}
    return await client.chat.completions.create(messages=messages, extra_headers=headers, **asked)


async def seeds_of(client: openai.AsyncOpenAI, *wanted: Callable[[Any], bool]) -> list[int]:
    """For each a seed by which such a choice is sampled."""
    found: dict[int, int] = {}
    for seed in range(600):
        answer = await say(client, [{"role": "user", "content": "1"}], tools=openai.NOT_GIVEN, seed=seed)
        for place, one in enumerate(wanted):
            if one(answer.choices[0]):
                found.setdefault(place, seed)
        if len(found) == len(wanted):
            return [found[place] for place in range(len(wanted))]
    raise AssertionError(f"of {len(wanted)} only {sorted(found)} are sampled by 600 seeds")


def has(text: str) -> Callable[[Any], bool]:
    return lambda choice: text in choice.message.content


def hides(place: int) -> Callable[[Any], bool]:
    """A special token there, which no text shows, in an answer that was cut off: it did not end it."""

    def found(choice: Any) -> bool:
        return choice.finish_reason == "length" and choice.streamrl["token_ids"][place] < len(SPECIAL_TOKENS)

    return found


def other_when_encoded_again(tokenizer: TextTokenizer) -> Callable[[Any], bool]:
    return lambda choice: again(tokenizer, choice.streamrl["token_ids"]) != choice.streamrl["token_ids"]


def again(tokenizer: TextTokenizer, ids: list[int]) -> list[int]:
    """Through text and back."""
    text = tokenizer.decode(np.array(ids, np.int32), special_tokens=True)
    return tokenizer.encode(text, add_special_tokens=False).tolist()


def arguments_of(message: Any) -> list[Any]:
    return [json.loads(call.function.arguments) for call in message.tool_calls or ()]


async def test_openais_client_reads_calls_whole_and_streamed_and_text_where_it_gave_no_tools(tmp_path: Path) -> None:
    async with agent_at(tmp_path) as (_, client):
        messages = [{"role": "user", "content": "1"}]
        for text, expected in ((COMPACT, {"a": 1}), (CODERS, {"a": 2})):
            (seed,) = await seeds_of(client, has(text))
            plain = (await say(client, messages, tools=[TOOL], tool_choice="none", seed=seed)).choices[0]
            assert text in plain.message.content
            assert plain.message.tool_calls is None
            choice = (await say(client, messages, seed=seed)).choices[0]
            assert expected in arguments_of(choice.message)
            assert {call.function.name for call in choice.message.tool_calls} == {"add"}
            assert choice.finish_reason == ("tool_calls" if plain.finish_reason == "stop" else "length")
            assert choice.streamrl["token_ids"] == plain.streamrl["token_ids"]
            assert "tool_call" not in (choice.message.content or "")
            streamed = await accumulated(client, messages, seed)
            assert streamed == (choice.message.content or "", arguments_of(choice.message), choice.finish_reason)
        (seed,) = await seeds_of(client, has(BROKEN))
        broken = (await say(client, messages, seed=seed)).choices[0].message
        assert BROKEN in broken.content


async def accumulated(client: openai.AsyncOpenAI, messages: list[Any], seed: int) -> tuple[str, list[Any], Any]:
    """What a client makes of a stream: content, arguments, finish reason."""
    content, calls, reason = "", list[str](), None
    async for chunk in await say(client, messages, seed=seed, stream=True):
        for choice in chunk.choices:
            content += choice.delta.content or ""
            reason = choice.finish_reason or reason
            for call in choice.delta.tool_calls or ():
                assert call.index == len(calls)
                assert call.id
                calls.append(call.function.arguments)
    return content, [json.loads(call) for call in calls], reason


async def test_a_conversation_with_tools_stays_one_branch_of_the_very_ids_that_were_sampled(tmp_path: Path) -> None:
    async with agent_at(tmp_path, most=64) as (gateway, client):
        tokenizer = load_tokenizer(tmp_path / "model")
        wanted = has(COMPACT), has(CODERS), has(BROKEN), other_when_encoded_again(tokenizer), hides(0), hides(-1)
        seeds = await seeds_of(client, *wanted)
        messages, before = [{"role": "user", "content": "1"}], list[int]()
        for seed in seeds:
            answer = await say(client, messages, "agent", seed=seed)
            (prompt,) = answer.streamrl["prompt_token_ids"]
            assert prompt[: len(before)] == before
            before = [*prompt, *answer.choices[0].streamrl["token_ids"]]
            message = answer.choices[0].message
            messages.append(message.model_dump(include={"role", "content", "tool_calls"}))
            tools = [{"role": "tool", "tool_call_id": call.id, "content": "2"} for call in message.tool_calls or ()]
            messages += tools or [{"role": "user", "content": "1"}]
        assert again(tokenizer, before) != before
        status, told = await reward(gateway, "agent")
        assert (status, told["branches"], told["turns"]) == (200, 1, len(seeds))


async def test_a_conversation_that_was_changed_is_a_fork(tmp_path: Path) -> None:
    async with agent_at(tmp_path) as (gateway, client):
        (seed,) = await seeds_of(client, has(COMPACT))
        user = {"role": "user", "content": "1"}
        said = (await say(client, [user], "agent", seed=seed)).choices[0].message
        message = said.model_dump(include={"role", "content", "tool_calls"})
        message["tool_calls"][0]["function"]["arguments"] = '{"a": 12}'
        answer = await say(client, [user, message, {"role": "tool", "content": "2"}], "agent")
        assert answer.choices[0].streamrl["token_ids"]
        status, told = await reward(gateway, "agent")
        assert (status, told["branches"], told["turns"]) == (200, 2, 2)


async def test_a_text_that_is_continued_keeps_the_ids_of_its_completion(tmp_path: Path) -> None:
    async with agent_at(tmp_path) as (gateway, client):
        (seed,) = await seeds_of(client, other_when_encoded_again(load_tokenizer(tmp_path / "model")))
        asked = {"model": "run", "max_tokens": 4, "extra_headers": {HEADER: "agent"}}
        first = await client.completions.create(prompt="user=1\nassistant=", seed=seed, **asked)
        text = "user=1\nassistant=" + first.choices[0].text
        second = await client.completions.create(prompt=text + "\nuser=2", **asked)
        begun = [*first.streamrl["prompt_token_ids"][0], *first.choices[0].streamrl["token_ids"]]
        assert second.streamrl["prompt_token_ids"][0][: len(begun)] == begun
        status, told = await reward(gateway, "agent")
        assert (status, told["branches"], told["turns"]) == (200, 1, 2)


async def test_without_a_session_calls_are_written_again_as_the_template_writes_them(tmp_path: Path) -> None:
    async with agent_at(tmp_path) as (_, client):
        call = {"id": "x", "type": "function", "function": {"name": "add", "arguments": '{"a":1}'}}
        answer = await say(client, [{"role": "assistant", "content": None, "tool_calls": [call]}], max_tokens=1)
        tokenizer = load_tokenizer(tmp_path / "model")
        expected = '1\nassistant=<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call><eos>\nassistant='
        ids = tokenizer.encode(expected.replace("<eos>", eos_text(tokenizer)), add_special_tokens=False)
        assert answer.streamrl["prompt_token_ids"] == [ids.tolist()]


def eos_text(tokenizer: Any) -> str:
    (eos,) = tokenizer.eos_token_ids
    return next(text for text, token_id in tokenizer.vocabulary().items() if token_id == eos)


@pytest.mark.parametrize(
    "calls", ["x", [7], [{}], [{"function": 3}], [{"function": {"name": "add", "arguments": "["}}], {"a": 1}]
)
async def test_calls_that_are_none_are_the_templates_to_take_or_to_refuse(calls: Any, tmp_path: Path) -> None:
    async with agent_at(tmp_path) as (gateway, _):
        body = {"model": "run", "messages": [{"role": "assistant", "tool_calls": calls}], "max_tokens": 1}
        status, answer = await gateway.ask("/v1/chat/completions", body)
        assert status in (200, 400), answer
