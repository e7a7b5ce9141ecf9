"""Tools that take a text, in chats and in responses: OpenAI's own client gets a text and sends it back."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import openai
import pytest
from support.engines.calling_model import BROKEN, CODERS, COMPACT, PIECES, write_calling_tokenizer
from support.gateway.agent_sessions import CALLS, gateway_of
from support.gateway.local_gateway import LocalGateway

from streamrl.gateway.openai.custom_tools import arguments_of, call_as_function, text_of
from streamrl.gateway.sessions.session_body import HEADER

TEXT = 'say "hi"\n'
ONE_TEXT = f'<tool_call>{{"name": "add", "arguments": {json.dumps({"input": TEXT})}}}</tool_call>'
OTHER = '<tool_call>{"name":"add","arguments":{"input":1}}</tool_call>'
CHAT_TOOL = {"type": "custom", "custom": {"name": "add", "description": "Adds."}}
TOOL = {"type": "custom", "name": "add", "description": "Adds.", "format": {"type": "text"}}
GRAMMAR = {"type": "grammar", "syntax": "regex", "definition": "a"}


def write_tokenizer(folder: Path) -> None:
    """Of a model that calls `add` with a text, and now and then with anything else."""
    renamed = {COMPACT: ONE_TEXT, CODERS: OTHER, BROKEN: "?"}
    write_calling_tokenizer(folder, tuple(renamed.get(piece, piece) for piece in PIECES))


@asynccontextmanager
async def client_of(folder: Path) -> AsyncIterator[tuple[LocalGateway, openai.AsyncOpenAI]]:
    async with (
        gateway_of(folder, **{**CALLS, "finish": write_tokenizer}) as gateway,
        openai.AsyncOpenAI(base_url=gateway.url + "/v1", api_key=gateway.token(), max_retries=0) as client,
    ):
        yield gateway, client


@pytest.mark.parametrize("text", ["", TEXT, '{"input": "x"}', "é\u2028", "\\"])
def test_a_text_is_the_one_argument_of_a_function(text: str) -> None:
    assert text_of(arguments_of(text)) == text
    call = {"id": "c1", "type": "custom", "custom": {"name": "add", "input": text}}
    function = {"name": "add", "arguments": arguments_of(text)}
    assert call_as_function(call) == {"id": "c1", "type": "function", "function": function}


@pytest.mark.parametrize("arguments", ['{"input":1}', '{"input":"a","b":2}', "{}"])
def test_other_arguments_are_told_as_they_are(arguments: str) -> None:
    assert text_of(arguments) == arguments


@pytest.mark.parametrize("call", [None, "c", {"type": "custom"}, {"type": "custom", "custom": {"input": 1}}])
def test_what_is_no_such_call_stays_what_it_is(call: Any) -> None:
    assert call_as_function(call) is call


async def test_a_chat_calls_with_a_text_whole_and_in_a_stream_and_goes_on_in_the_same_ids(tmp_path: Path) -> None:
    asked: Any = {"model": "run", "max_tokens": 8, "tools": [CHAT_TOOL]}
    user = {"role": "user", "content": "1"}
    async with client_of(tmp_path) as (gateway, client):
        told, streamed = await the_first_call(client, {**asked, "messages": [user]})
        assert {(call.type, call.custom.name) for call in told.tool_calls} == {("custom", "add")}
        assert streamed == {TEXT}
        result = {"role": "tool", "tool_call_id": told.tool_calls[0].id, "content": "2"}
        messages: Any = [user, told.model_dump(exclude_none=True), result]
        ids = [*told.ids]
        again = await client.chat.completions.create(**{**asked, "messages": messages}, extra_headers=told.session)
        assert again.streamrl["prompt_token_ids"][0][: len(ids)] == ids
        function = {"name": "add", "description": "Adds.", "parameters": {"type": "object"}}
        as_function = {**asked, "tools": [{"type": "function", "function": function}], "messages": [user]}
        plain = await client.chat.completions.create(**as_function)
        custom = await client.chat.completions.create(**{**asked, "messages": [user]})
        assert plain.streamrl == custom.streamrl
        status, session = await gateway.ask(f"/api/sessions/{told.session[HEADER]}/reward", {"reward": 1.0})
    assert (status, session["branches"], session["turns"]) == (200, 1, 2)


async def the_first_call(client: openai.AsyncOpenAI, asked: Any) -> tuple[Any, set[str]]:
    """A message that stopped behind calls with TEXT, with `ids` of its prompt and itself and its `session`; and the
    texts of such calls in streams."""
    found, texts = None, set[str]()
    for number in range(400):
        session = {HEADER: f"agent-{number}"}
        answer = await client.chat.completions.create(**asked, extra_headers=session)
        (choice,) = answer.choices
        calls = choice.message.tool_calls or []
        if found is None and choice.finish_reason == "tool_calls" and {call.custom.input for call in calls} == {TEXT}:
            found = choice.message
            found.ids = [*answer.streamrl["prompt_token_ids"][0], *choice.streamrl["token_ids"]]
            found.session = session
        stream = await client.chat.completions.create(**asked, stream=True)
        deltas = [call async for chunk in stream for call in chunk.choices[0].delta.tool_calls or ()]
        texts |= {call.custom["input"] for call in deltas if '"input"' not in call.custom["input"]}
        if found is not None and texts:
            return found, texts
    raise AssertionError("no answer called a tool")


async def test_a_response_has_such_calls_as_items_that_it_goes_on_from(tmp_path: Path) -> None:
    asked: Any = {"model": "run", "max_output_tokens": 8, "tools": [TOOL]}
    async with client_of(tmp_path) as (gateway, client):
        first, session = await a_response_that_calls(client, asked)
        assert first.tools[0].model_dump(exclude_none=True) == TOOL
        calls = [item for item in first.output if item.type == "custom_tool_call"]
        results = [{"type": "custom_tool_call_output", "call_id": call.call_id, "output": "2"} for call in calls]
        items: Any = [{"role": "user", "content": "1"}, *(item.model_dump() for item in first.output), *results]
        named: Any = [items[0], *({"type": "item_reference", "id": item.id} for item in first.output), *results]
        ids = [*first.streamrl["prompt_token_ids"][0], *first.streamrl["token_ids"]]
        for given in (items, named):
            second = await client.responses.create(input=given, extra_headers=session, **asked)
            assert second.streamrl["prompt_token_ids"][0][: len(ids)] == ids
        after = await client.responses.create(input=results, previous_response_id=first.id, **asked)
        prompt = (await gateway.ask("/detokenize", {"tokens": after.streamrl["prompt_token_ids"][0]}))[1]["prompt"]
        assert prompt.count("tool=2") == len(calls)


async def a_response_that_calls(client: openai.AsyncOpenAI, asked: Any) -> tuple[Any, dict[str, str]]:
    """Its events are those of its items."""
    for number in range(400):
        session = {HEADER: f"agent-{number}"}
        stream = await client.responses.create(input="1", extra_headers=session, stream=True, **asked)
        events = [event async for event in stream]
        response = events[-1].response
        assert [event.item for event in events if event.type == "response.output_item.done"] == response.output
        texts = [item.input for item in response.output if item.type == "custom_tool_call"]
        assert [one.input for one in events if one.type == "response.custom_tool_call_input.done"] == texts
        assert [one.delta for one in events if one.type == "response.custom_tool_call_input.delta"] == texts
        if response.status == "completed" and set(texts) == {TEXT}:
            return response, session
    raise AssertionError("no answer called a tool")


async def test_a_text_by_a_grammar_is_refused_by_the_tools_name(tmp_path: Path) -> None:
    chat = {"messages": [{"role": "user", "content": "1"}], "model": "run"}
    bound = {"type": "custom", "custom": {**CHAT_TOOL["custom"], "format": GRAMMAR}}  # type: ignore[dict-item]
    async with client_of(tmp_path) as (gateway, _):
        for path, body in (
            ("/v1/chat/completions", {**chat, "tools": [bound]}),
            ("/v1/responses", {"model": "run", "input": "1", "tools": [{**TOOL, "format": GRAMMAR}]}),
        ):
            status, answer = await gateway.ask(path, body)
            assert (status, answer["error"]["param"]) == (400, "tools")
            assert "'add' takes a text by a grammar" in answer["error"]["message"]
        chosen = {"type": "custom", "custom": {"name": "take"}}
        status, answer = await gateway.ask(
            "/v1/chat/completions", {**chat, "tools": [CHAT_TOOL], "tool_choice": chosen}
        )
        assert (status, answer["error"]["param"]) == (400, "tool_choice")
        assert "'take', which is none of `tools`" in answer["error"]["message"]
