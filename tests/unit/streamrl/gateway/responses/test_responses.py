"""OpenAI's Responses, by its own client: items become the chat that they are, and answers are its objects."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import openai
import pytest
from support.gateway.agent_sessions import CALLS, gateway_of
from support.gateway.local_gateway import LocalGateway, local_gateway

from streamrl.gateway.refusal import Refusal
from streamrl.gateway.responses.items import ResponsesRequest
from streamrl.gateway.responses.past import OVERHEAD, PastResponses

TOOL = {"type": "function", "name": "add", "description": "Adds.", "parameters": {"type": "object"}, "strict": False}
LOGPROBS = "message.output_text.logprobs"
CALL = {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "add", "arguments": '{"a":1}'}


def chat_of(**body: Any) -> dict[str, Any]:
    asked = ResponsesRequest(**{"model": "run", "input": "1", **body})
    return asked.chat(asked.messages([])).model_dump(exclude_none=True)


def test_items_become_the_messages_of_a_chat() -> None:
    items = [
        {"role": "user", "content": [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]},
        {"type": "reasoning", "id": "rs_1", "summary": []},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "c", "annotations": []}]},
        CALL,
        {**CALL, "call_id": "c2"},
        {"type": "function_call_output", "call_id": "c1", "output": "2"},
        {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "3"}]},
        {**CALL, "call_id": "c3"},
        {"role": "developer", "content": "d"},
    ]
    chat = chat_of(input=items, instructions="be brief", tools=[TOOL], max_output_tokens=5)
    calls = [
        {"id": f"c{number}", "type": "function", "function": {"name": "add", "arguments": '{"a":1}'}}
        for number in (1, 2, 3)
    ]
    assert chat["messages"] == [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "ab"},
        {"role": "assistant", "content": "c", "tool_calls": calls[:2]},
        {"role": "tool", "tool_call_id": "c1", "content": "2"},
        {"role": "tool", "tool_call_id": "c2", "content": "3"},
        {"role": "assistant", "content": "", "tool_calls": calls[2:]},
        {"role": "developer", "content": "d"},
    ]
    said = {"name": "add", "description": "Adds.", "parameters": {"type": "object"}}
    assert (chat["tools"], chat["max_tokens"]) == ([{"type": "function", "function": said}], 5)


def test_thoughts_that_come_back_are_of_the_answer_behind_them() -> None:
    def thought(text: str) -> dict[str, Any]:
        content = [{"type": "reasoning_text", "text": text}]
        return {"type": "reasoning", "id": "rs_1", "summary": [], "content": content, "status": "completed"}

    said = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "c"}]}
    output = {"type": "function_call_output", "call_id": "c1", "output": "2"}
    hidden = {"type": "reasoning", "id": "rs_2", "summary": [], "content": None, "encrypted_content": "x"}
    user = {"role": "user", "content": "a"}
    first, second = [thought("p"), said, thought("q"), CALL, output], [thought("r"), CALL, output]
    found = [
        (message["role"], message.get("reasoning_content"), len(message.get("tool_calls", ())))
        for message in chat_of(input=[user, *first, *second, hidden, said, thought("s"), user])["messages"]
    ]
    calls = [("assistant", "pq", 1), ("tool", None, 0), ("assistant", "r", 1), ("tool", None, 0)]
    assert found == [("user", None, 0), *calls, ("assistant", None, 0), ("user", None, 0)]


def test_what_a_model_refused_is_what_it_said() -> None:
    refused = {"type": "message", "role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]}
    assert chat_of(input=[refused])["messages"] == [{"role": "assistant", "content": "no"}]


@pytest.mark.parametrize(
    ("body", "code", "param"),
    [
        ({"metadata": {"a": float("inf")}}, "non_finite", "metadata"),
        ({"tools": [{**TOOL, "parameters": {"maximum": float("nan")}}]}, "non_finite", "tools"),
        ({"tool_choice": float("nan")}, "non_finite", "tool_choice"),
        ({"text": {"verbosity": float("nan")}}, "non_finite", "text"),
        ({"metadata": [1]}, "invalid_value", "metadata"),
    ],
)
def test_what_a_response_repeats_must_have_a_form_in_json(body: dict[str, Any], code: str, param: str) -> None:
    with pytest.raises(Refusal) as refused:
        chat_of(**body)
    assert (refused.value.code, refused.value.param) == (code, param)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"reasoning": {"effort": "low", "summary": "auto"}}, {"reasoning_effort": "low"}),
        ({"text": {"format": {"type": "text"}}}, {}),
        ({"text": {"format": {"type": "json_object"}}}, {"response_format": {"type": "json_object"}}),
        ({"tool_choice": "required"}, {"tool_choice": "required"}),
        ({"parallel_tool_calls": False}, {"parallel_tool_calls": False}),
        ({"client_metadata": {"a": "b"}, "context_management": None, "stream_options": None}, {}),
        ({"temprature": None, "moderation": None, "max_tool_calls": 3}, {}),
        ({"include": ["reasoning.encrypted_content"], "store": False, "user": "me", "truncation": "disabled"}, {}),
    ],
)
def test_what_a_response_asks_for_is_asked_of_the_chat(body: dict[str, Any], expected: dict[str, Any]) -> None:
    chat, plain = chat_of(**body), chat_of()
    assert {name: value for name, value in chat.items() if name not in plain} == expected


def test_what_nobody_knows_is_not_included() -> None:
    known = ["web_search_call.results", "file_search_call.results", "message.input_image.image_url", LOGPROBS]
    assert chat_of(include=known)["logprobs"]
    for names in (["reasoning.encrypted"], [LOGPROBS, "reasoning.encrypted"]):
        with pytest.raises(Refusal, match=f"'reasoning.encrypted'.* may name: .*{LOGPROBS}") as refused:
            chat_of(include=names)
        assert (refused.value.code, refused.value.param) == ("invalid_value", "include")


@pytest.mark.parametrize("name", ["background", "truncation", "temprature", "conversation"])
def test_what_cannot_be_kept_is_refused_by_name(name: str) -> None:
    with pytest.raises(Refusal, match=name) as refusal:
        chat_of(**{name: "auto"})
    assert refusal.value.param == name


def test_the_responses_that_were_used_last_are_kept_within_their_bytes() -> None:
    message = [{"role": "user", "content": "x" * 100}]
    size = OVERHEAD * len(json.dumps(message, separators=(",", ":")))
    past = PastResponses(2 * size)
    for name in ("a", "b"):
        past.keep(name, message)
    assert past.messages("a") == message
    past.keep("c", message)
    assert past.num_bytes == 2 * size
    with pytest.raises(Refusal, match="'b' is not kept"):
        past.messages("b")


def test_the_items_of_a_response_are_kept_and_forgotten_with_it() -> None:
    items = [{"id": "msg_a_0", "text": "x"}, {"id": "fc_1", "text": "y"}]
    past = PastResponses(2**20)
    past.keep("a", [], items)
    of_one = past.num_bytes
    assert of_one > OVERHEAD * len(json.dumps(items, separators=(",", ":")))
    assert [past.item(item["id"]) for item in items] == items
    past = PastResponses(2 * of_one)
    past.keep("a", [], items)
    past.keep("b", [], [{**items[0], "id": "msg_b_0"}])
    assert past.item("fc_1") == items[1], "and with that it was used last"
    past.keep("c", [], [{**items[0], "id": "msg_c_0"}, items[1] | {"id": "fc_2"}])
    assert (past.item("msg_a_0"), past.num_bytes) == (items[0], 2 * of_one)
    for name in ("msg_b_0", "msg_d_0"):
        with pytest.raises(Refusal, match=f"{name}.*send the item itself") as refused:
            past.item(name)
        assert (refused.value.status, refused.value.code) == (404, "item_not_found")
    past.keep("d", [{"role": "user", "content": "x" * 1000}])
    assert past.num_bytes == 0
    assert past.messages(None) == []


@pytest.mark.parametrize(
    ("body", "asked"),
    [
        ({}, (None, None)),
        ({"top_logprobs": 0}, (None, 0)),
        ({"include": ["reasoning.encrypted_content"]}, (None, None)),
        ({"include": [LOGPROBS]}, (True, None)),
        ({"include": [LOGPROBS], "top_logprobs": 3}, (True, 3)),
        ({"top_logprobs": 3}, (True, 3)),
    ],
)
def test_log_probs_are_asked_of_the_chat(body: dict[str, Any], asked: tuple[bool | None, int | None]) -> None:
    chat = chat_of(**body)
    assert (chat.get("logprobs"), chat.get("top_logprobs")) == asked


@asynccontextmanager
async def client_of(gateway: LocalGateway) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key=gateway.token(), max_retries=0) as client:
        yield client


async def test_an_answer_is_an_object_of_the_client(tmp_path: Path) -> None:
    async with local_gateway(tmp_path) as gateway, client_of(gateway) as client:
        answer = await client.responses.create(model="run", input="1", max_output_tokens=6)
        _, chat = await gateway.chat("1", max_tokens=1)
    assert answer.status in ("completed", "incomplete")
    assert answer.output_text == answer.output[0].content[0].text
    assert answer.streamrl["prompt_token_ids"] == chat["streamrl"]["prompt_token_ids"]
    assert answer.usage.output_tokens == len(answer.streamrl["token_ids"]) == len(answer.streamrl["logprobs"])
    assert (answer.incomplete_details is not None) == (answer.status == "incomplete")


async def test_log_probs_of_a_text_are_those_of_its_tokens_whole_and_in_events(tmp_path: Path) -> None:
    async with local_gateway(tmp_path) as gateway, client_of(gateway) as client:
        asked = {"model": "run", "input": "1", "max_output_tokens": 20, "include": [LOGPROBS]}
        whole = await client.responses.create(**asked)
        events = [event async for event in await client.responses.create(**asked, stream=True)]
    streamed, by_kind = events[-1].response, {event.type: event for event in events}
    for response in (whole, streamed):
        (part,) = response.output[0].content
        assert [one.logprob for one in part.logprobs] == response.streamrl["logprobs"]
        assert "".join(one.token for one in part.logprobs) == part.text == response.output_text
        assert [bytes(one.bytes).decode() for one in part.logprobs] == [one.token for one in part.logprobs]
    scores = [(one.token, one.logprob) for one in streamed.output[0].content[0].logprobs]
    done = by_kind["response.output_text.done"].logprobs
    assert [(one.token, one.logprob) for one in done] == scores
    told = [one for event in events if event.type == "response.output_text.delta" for one in event.logprobs]
    # The end token comes behind the last text.
    assert [(one.token, one.logprob) for one in told] == scores[: len(told)]
    assert {token for token, _ in scores[len(told) :]} <= {""}


async def test_a_message_that_was_cut_off_says_so_and_goes_on_where_it_comes_back(tmp_path: Path) -> None:
    async with local_gateway(tmp_path, latency_steps=6, heavy_tail=1.0) as gateway, client_of(gateway) as client:
        user, seen = {"role": "user", "content": "1"}, set()
        for _ in range(60):
            asked = {"model": "run", "input": [user], "max_output_tokens": 6}
            whole = await client.responses.create(**asked)
            events = [event async for event in await client.responses.create(**asked, stream=True)]
            for answer in (whole, events[-1].response):
                assert answer.output[-1].status == answer.status
            done = next(event.item for event in events if event.type == "response.output_item.done")
            assert done.status == events[-1].response.status
            seen.add(whole.status)
            if whole.status == "incomplete" and whole.output_text and len(seen) == 2:
                break
        items = [item.model_dump() for item in whole.output]
        later = await client.responses.create(model="run", input=[user, *items], max_output_tokens=2)
        _, text = await gateway.ask("/detokenize", {"tokens": later.streamrl["prompt_token_ids"][0]})
    assert seen == {"completed", "incomplete"}
    assert text["prompt"].endswith(whole.output_text)


@pytest.mark.parametrize("more", [{"include": [LOGPROBS]}, {"top_logprobs": 0, "include": [LOGPROBS]}])
async def test_log_probs_of_a_text_beside_which_calls_are_read_are_refused_by_name(
    more: dict[str, Any], tmp_path: Path
) -> None:
    async with gateway_of(tmp_path, **CALLS) as gateway:
        status, answer = await gateway.ask("/v1/responses", {"model": "run", "input": "1", "tools": [TOOL], **more})
    assert (status, answer["error"]["code"], answer["error"]["param"]) == (400, "unsupported_parameter", "include")
    assert "tool calls" in answer["error"]["message"]


async def test_a_stream_ends_with_the_response_that_its_events_put_together(tmp_path: Path) -> None:
    async with gateway_of(tmp_path, **CALLS) as gateway, client_of(gateway) as client:
        kinds = set()
        for _ in range(30):
            stream = await client.responses.create(
                model="run", input="1", max_output_tokens=8, tools=[TOOL], stream=True
            )
            events = [event async for event in stream]
            assert [event.sequence_number for event in events] == list(range(len(events)))
            assert [event.type for event in events[:2]] == ["response.created", "response.in_progress"]
            response = events[-1].response
            assert events[-1].type == f"response.{response.status}"
            done = [event.item for event in events if event.type == "response.output_item.done"]
            assert done == response.output
            texts = "".join(event.delta for event in events if event.type == "response.output_text.delta")
            assert texts == response.output_text
            kinds |= {item.type for item in response.output}
    assert kinds == {"message", "function_call"}


async def test_a_conversation_goes_on_from_the_response_before_as_from_its_items(tmp_path: Path) -> None:
    async with gateway_of(tmp_path, **CALLS) as gateway, client_of(gateway) as client:
        asked = {"model": "run", "max_output_tokens": 8, "tools": [TOOL]}
        first, session = await called(client, asked)
        results = [
            {"type": "function_call_output", "call_id": item.call_id, "output": "2"}
            for item in first.output
            if item.type == "function_call"
        ]
        named = await client.responses.create(input=results, previous_response_id=first.id, **asked)
        items = [{"role": "user", "content": "1"}, *(item.model_dump() for item in first.output), *results]
        given = await client.responses.create(input=items, extra_headers={"x-session-id": session}, **asked)
        ids = [*first.streamrl["prompt_token_ids"][0], *first.streamrl["token_ids"]]
        assert given.streamrl["prompt_token_ids"][0][: len(ids)] == ids
        assert named.previous_response_id == first.id
        texts = [
            (await gateway.ask("/detokenize", {"tokens": one.streamrl["prompt_token_ids"][0]}))[1]
            for one in (named, given)
        ]
        assert texts[0]["prompt"].count("tool=2") == texts[1]["prompt"].count("tool=2") == len(results)
        status, told = await gateway.ask(f"/api/sessions/{session}/reward", {"reward": 1.0})
    assert (status, told["branches"], told["turns"]) == (200, 1, 2)


async def test_items_that_are_named_by_their_ids_are_those_that_were_told(tmp_path: Path) -> None:
    async with gateway_of(tmp_path, **CALLS) as gateway, client_of(gateway) as client:
        asked = {"model": "run", "max_output_tokens": 8, "tools": [TOOL]}
        first, session = await called(client, asked)
        results = [
            {"type": "function_call_output", "call_id": item.call_id, "output": "2"}
            for item in first.output
            if item.type == "function_call"
        ]
        named = [{"type": "item_reference", "id": item.id} for item in first.output]
        items = [{"role": "user", "content": "1"}, *named, *results]
        second = await client.responses.create(input=items, extra_headers={"x-session-id": session}, **asked)
        ids = [*first.streamrl["prompt_token_ids"][0], *first.streamrl["token_ids"]]
        assert second.streamrl["prompt_token_ids"][0][: len(ids)] == ids
        told = {"type": "item_reference", "id": second.output[0].id}
        streamed = [event async for event in await client.responses.create(input="1", stream=True, **asked)]
        of_stream = {"type": "item_reference", "id": streamed[-1].response.output[0].id}
        for item in (told, of_stream):
            await client.responses.create(input=[item], **asked)
        unkept = await client.responses.create(input="1", store=False, **asked)
        for item in (unkept.output[0].id, "msg_x"):
            with pytest.raises(openai.NotFoundError, match="send the item itself"):
                await client.responses.create(input=[{"type": "item_reference", "id": item}], **asked)
        status, told = await gateway.ask(f"/api/sessions/{session}/reward", {"reward": 1.0})
    assert (status, told["branches"], told["turns"]) == (200, 1, 2)


async def called(client: openai.AsyncOpenAI, asked: dict[str, Any]) -> tuple[Any, str]:
    """A response that calls a tool in words that the template can write again, and its session."""
    for number in range(400):
        session = f"agent-{number}"
        answer = await client.responses.create(input="1", extra_headers={"x-session-id": session}, **asked)
        calls = [item.arguments for item in answer.output if item.type == "function_call"]
        if answer.status == "completed" and calls and set(calls) == {'{"a":1}'}:
            return answer, session
    raise AssertionError("no answer called a tool")


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"model": "gpt-4"}, "model_not_found"),
        ({"input": []}, "invalid_value"),
        ({"max_output_tokens": 10**6}, "context_length_exceeded"),
        ({"previous_response_id": "resp_x"}, "response_not_found"),
        ({"tools": [{"type": "web_search"}]}, "invalid_value"),
        ({"text": {"format": {"type": "json_object"}}}, "unsupported_parameter"),
        ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]}, "invalid_value"),
    ],
)
async def test_what_is_wrong_is_said_with_a_code(change: dict[str, Any], code: str, tmp_path: Path) -> None:
    async with local_gateway(tmp_path) as gateway:
        status, answer = await gateway.ask("/v1/responses", {"model": "run", "input": "1", **change})
    assert status in (400, 404)
    assert answer["error"]["code"] == code
