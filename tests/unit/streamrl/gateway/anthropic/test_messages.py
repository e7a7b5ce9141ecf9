"""Anthropic's Messages: a conversation becomes the chat that it is, and its answer Anthropic's words."""

import json
from pathlib import Path
from typing import Any

import pytest
from support.gateway.agent_sessions import CALLS, gateway_of
from support.gateway.local_gateway import LocalGateway, local_gateway

from streamrl.gateway.anthropic.messages import MessagesRequest
from streamrl.gateway.refusal import Refusal

ASKED = {"model": "run", "max_tokens": 6, "messages": [{"role": "user", "content": "1"}]}
TOOL = {"name": "add", "description": "Adds.", "input_schema": {"type": "object", "properties": {"a": {}}}}


def chat_of(**body: Any) -> dict[str, Any]:
    return MessagesRequest(**{**ASKED, **body}).chat().model_dump(exclude_none=True)


def test_a_conversation_with_tools_becomes_the_messages_of_a_chat() -> None:
    call = {"type": "tool_use", "id": "c1", "name": "add", "input": {"a": 1}}
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}]},
        {
            "role": "assistant",
            "content": [{"type": "thinking", "thinking": "hm", "signature": "x"}, {"type": "text", "text": "b"}, call],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "c1", "content": [{"type": "text", "text": "2"}]},
                {"type": "text", "text": "c"},
            ],
        },
    ]
    system = [{"type": "text", "text": "be "}, {"type": "text", "text": "brief"}]
    chat = chat_of(messages=messages, system=system, tools=[TOOL], stop_sequences=["x"], top_k=0)
    function = {"name": "add", "arguments": '{"a": 1}'}
    assert chat["messages"] == [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "a"},
        {
            "role": "assistant",
            "content": "b",
            "reasoning_content": "hm",
            "tool_calls": [{"id": "c1", "type": "function", "function": function}],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "2"},
        {"role": "user", "content": "c"},
    ]
    parameters = TOOL["input_schema"]
    said = {"name": "add", "description": "Adds.", "parameters": parameters}
    assert chat["tools"] == [{"type": "function", "function": said}]
    assert (chat["stop"], chat["top_k"], chat["max_tokens"]) == (["x"], 0, 6)


DOCUMENT = {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "x"}}
RESULT = {"type": "search_result", "source": "s", "title": "t", "content": [{"type": "text", "text": "y"}]}


def test_documents_and_search_results_are_texts_in_tags() -> None:
    question = {"type": "text", "text": "a"}
    parts = {"type": "content", "content": [{"type": "text", "text": "p"}, {"type": "text", "text": "q"}]}
    titled = {"type": "document", "source": parts, "title": "T", "context": "C", "citations": {"enabled": False}}
    result = {"type": "tool_result", "tool_use_id": "c1", "content": [RESULT, question]}
    chat = chat_of(messages=[{"role": "user", "content": [DOCUMENT, titled, question, result]}])
    document = "<document>\n<document_content>\nx\n</document_content>\n</document>\n"
    known = "<source>\nT\n</source>\n<context>\nC\n</context>\n"
    other = f"<document>\n{known}<document_content>\npq\n</document_content>\n</document>\n"
    inner = "<source>\ns\n</source>\n<title>\nt\n</title>\n<content>\ny\n</content>\n"
    assert chat["messages"] == [
        {"role": "user", "content": f"{document}{other}a"},
        {"role": "tool", "tool_call_id": "c1", "content": f"<search_result>\n{inner}</search_result>\na"},
    ]


@pytest.mark.parametrize("block", [DOCUMENT, RESULT])
def test_a_text_that_is_to_be_cited_is_refused(block: dict[str, Any]) -> None:
    with pytest.raises(Refusal, match=f"{block['type']}.*leave `citations` out"):
        chat_of(messages=[{"role": "user", "content": [{**block, "citations": {"enabled": True}}]}])


async def test_a_document_that_is_no_text_is_told_by_its_type(tmp_path: Path) -> None:
    source = {"type": "base64", "media_type": "application/pdf", "data": "x"}
    async with local_gateway(tmp_path) as gateway:
        content = [{"type": "document", "source": source}]
        status, answer = await message(gateway, messages=[{"role": "user", "content": content}])
    assert (status, answer["error"]["code"]) == (400, "invalid_value")
    assert "'base64'" in answer["error"]["message"]
    assert answer["error"]["param"] == "messages.0.content.0.document.source"


def test_turns_of_the_model_that_follow_one_another_are_one() -> None:
    call = {"type": "tool_use", "id": "c1", "name": "add", "input": {}}
    turns = [{"role": "assistant", "content": content} for content in ("a", [{"type": "text", "text": "b"}], [call])]
    user = {"role": "user", "content": "c"}
    messages = chat_of(messages=[user, *turns, user, user])["messages"]
    assert [one["role"] for one in messages] == ["user", "assistant", "user", "user"]
    assert (messages[1]["content"], len(messages[1]["tool_calls"])) == ("ab", 1)
    assert chat_of(messages=[user, *turns[:2]])["continue_final_message"]


def test_the_mark_that_claude_code_sends_to_anthropic_is_no_part_of_the_prompt() -> None:
    mark = {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1.100; cc_entrypoint=cli; cch=eb6c6;"}
    you = {"type": "text", "text": "You are Claude Code.", "cache_control": {"type": "ephemeral"}}
    assert chat_of(system=[mark, you])["messages"] == chat_of(system="You are Claude Code.")["messages"]
    assert chat_of(system=[mark])["messages"] == chat_of()["messages"]


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"thinking": {"type": "disabled"}}, {"chat_template_kwargs": {"enable_thinking": False}}),
        ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, {"chat_template_kwargs": {"enable_thinking": True}}),
        ({"output_config": {"effort": "low"}}, {"reasoning_effort": "low"}),
        ({"output_config": {"format": {"type": "json_schema"}}}, {"response_format": {"type": "json_schema"}}),
        ({"output_format": {"type": "json_schema"}}, {"response_format": {"type": "json_schema"}}),
        ({"tool_choice": {"type": "none"}}, {"tool_choice": "none", "parallel_tool_calls": True}),
        ({"tool_choice": {"type": "any"}}, {"tool_choice": "required", "parallel_tool_calls": True}),
        (
            {"tool_choice": {"type": "auto", "disable_parallel_tool_use": True}},
            {"tool_choice": "auto", "parallel_tool_calls": False},
        ),
    ],
)
def test_what_a_message_asks_for_is_asked_of_the_chat(body: dict[str, Any], expected: dict[str, Any]) -> None:
    chat, plain = chat_of(**body), chat_of()
    assert {name: value for name, value in chat.items() if name not in plain} == expected


def test_a_null_says_nothing_under_any_name() -> None:
    assert chat_of(container=None, temprature=None, system=None, tools=None) == chat_of()


@pytest.mark.parametrize("name", ["container", "mcp_servers", "temprature"])
def test_what_cannot_be_kept_is_refused_by_name(name: str) -> None:
    with pytest.raises(Refusal, match=name) as refusal:
        chat_of(**{name: ["x"]})
    assert refusal.value.param == name


async def message(gateway: LocalGateway, **body: Any) -> tuple[int, Any]:
    headers = {"x-api-key": gateway.token(), "anthropic-version": "2023-06-01"}
    return await gateway.ask("/v1/messages", {**ASKED, **body}, headers=headers)


async def events_of(gateway: LocalGateway, path: str, body: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    headers = {"authorization": f"Bearer {gateway.token()}"}
    async with gateway.http.post(gateway.url + path, json={**body, "stream": True}, headers=headers) as response:
        assert response.status == 200, await response.text()
        text = await response.text()
    found = []
    for block in text.strip().split("\n\n"):
        name, data = block.split("\n")
        value = json.loads(data.removeprefix("data: "))
        assert name == f"event: {value['type']}"
        found.append((value["type"], value))
    return found


async def test_an_answer_is_that_of_the_chat_in_other_words(tmp_path: Path) -> None:
    async with local_gateway(tmp_path) as gateway:
        status, answer = await message(gateway)
        _, again = await message(gateway, stop_sequences=["="])
        _, counted = await gateway.ask("/v1/messages/count_tokens", {"model": "run", "messages": ASKED["messages"]})
    assert status == 200
    assert (answer["type"], answer["role"], answer["model"]) == ("message", "assistant", "run")
    assert [block["type"] for block in answer["content"]] == ["text"]
    assert answer["stop_reason"] in ("end_turn", "max_tokens")
    assert answer["usage"]["output_tokens"] == len(answer["streamrl"]["token_ids"])
    assert answer["usage"]["input_tokens"] == len(answer["streamrl"]["prompt_token_ids"][0]) == counted["input_tokens"]
    assert len(answer["streamrl"]["logprobs"]) == len(answer["streamrl"]["token_ids"])
    assert again["stop_reason"] in ("end_turn", "max_tokens", "stop_sequence")


async def test_a_tool_of_anthropics_own_is_told_by_its_type(tmp_path: Path) -> None:
    async with local_gateway(tmp_path) as gateway:
        status, answer = await message(gateway, tools=[{"type": "web_search_20250305", "name": "web_search"}])
    assert (status, answer["error"]["code"]) == (400, "invalid_value")
    assert "'tools.0.type': 'web_search_20250305' is not taken" in answer["error"]["message"]


async def test_a_stop_sequence_is_told(tmp_path: Path) -> None:
    async with local_gateway(tmp_path) as gateway:
        stops = [str(digit) for digit in range(10)]
        told = [(await message(gateway, stop_sequences=stops, max_tokens=20))[1] for _ in range(12)]
    ended = [one for one in told if one["stop_reason"] == "stop_sequence"]
    assert ended
    for one in ended:
        assert one["stop_sequence"] in stops
        assert one["stop_sequence"] not in one["content"][0]["text"]


async def test_a_stream_puts_together_what_the_whole_answer_is(tmp_path: Path) -> None:
    async with gateway_of(tmp_path, **CALLS) as gateway:
        kinds = set()
        for _ in range(30):
            events = await events_of(gateway, "/v1/messages", {**ASKED, "max_tokens": 8, "tools": [TOOL]})
            blocks = put_together(events)
            kinds |= {block["type"] for block in blocks}
            last = events[-2][1]
            calls = [block for block in blocks if block["type"] == "tool_use"]
            assert (last["delta"]["stop_reason"] == "tool_use") <= bool(calls)
            assert last["usage"]["output_tokens"] == len(last["streamrl"]["token_ids"])
            for block in calls:
                assert block["name"] == "add"
                assert isinstance(block["input"], dict)
    assert kinds == {"text", "tool_use"}


def put_together(events: list[tuple[str, dict[str, Any]]]) -> list[dict[str, Any]]:
    """The blocks, as a client builds them; and the order of the events is right."""
    names = [name for name, _ in events]
    assert names[0] == "message_start"
    assert names[-2:] == ["message_delta", "message_stop"]
    blocks: list[dict[str, Any]] = []
    still_open = False
    for name, event in events[1:-2]:
        if name == "content_block_start":
            assert (still_open, event["index"]) == (False, len(blocks))
            blocks.append({**event["content_block"], "said": ""})
            still_open = True
        elif name == "content_block_delta":
            assert still_open
            delta = event["delta"]
            blocks[-1]["said"] += delta["text"] if delta["type"] == "text_delta" else delta["partial_json"]
        else:
            assert name == "content_block_stop"
            still_open = False
    assert not still_open
    for block in blocks:
        said = block.pop("said")
        block |= {"text": said} if block["type"] == "text" else {"input": json.loads(said)}
    return blocks


async def test_turns_with_calls_in_a_session_are_one_branch_of_the_ids_that_were_sampled(tmp_path: Path) -> None:
    async with gateway_of(tmp_path, **CALLS) as gateway:
        session = await called_session(gateway)
        status, told = await gateway.ask(f"/api/sessions/{session}/reward", {"reward": 1.0})
    assert (status, told["branches"], told["turns"]) == (200, 1, 2)


async def called_session(gateway: LocalGateway) -> str:
    """A session whose first turn calls a tool, and whose second has its result."""
    for number in range(60):
        session = f"agent-{number}"
        headers = {"x-api-key": gateway.token(), "x-session-id": session}
        body = {**ASKED, "max_tokens": 8, "tools": [TOOL]}
        _, answer = await gateway.ask("/v1/messages", body, headers=headers)
        calls = [block for block in answer["content"] if block["type"] == "tool_use"]
        if not calls or answer["stop_reason"] != "tool_use":
            continue
        results = [{"type": "tool_result", "tool_use_id": block["id"], "content": "2"} for block in calls]
        turns = [{"role": "assistant", "content": answer["content"]}, {"role": "user", "content": results}]
        status, second = await gateway.ask(
            "/v1/messages", {**body, "messages": [*ASKED["messages"], *turns]}, headers=headers
        )
        assert status == 200, second
        ids = [*answer["streamrl"]["prompt_token_ids"][0], *answer["streamrl"]["token_ids"]]
        assert second["streamrl"]["prompt_token_ids"][0][: len(ids)] == ids
        return session
    raise AssertionError("no answer called a tool")


@pytest.mark.parametrize(
    ("change", "status", "kind", "code"),
    [
        ({"model": "claude"}, 404, "not_found_error", "model_not_found"),
        ({"max_tokens": 0}, 400, "invalid_request_error", "invalid_value"),
        ({"max_tokens": 10**6}, 400, "invalid_request_error", "context_length_exceeded"),
        ({"messages": []}, 400, "invalid_request_error", "invalid_value"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]},
            400,
            "invalid_request_error",
            "invalid_value",
        ),
        ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, 400, "invalid_request_error", "invalid_value"),
        (
            {"tools": [TOOL], "tool_choice": {"type": "any"}},
            400,
            "invalid_request_error",
            "unsupported_parameter",
        ),
        ({"stop_sequences": [""]}, 400, "invalid_request_error", "empty_stop"),
    ],
)
async def test_what_is_wrong_is_said_in_the_dialects_own_form(
    change: dict[str, Any], status: int, kind: str, code: str, tmp_path: Path
) -> None:
    async with local_gateway(tmp_path) as gateway:
        got, answer = await message(gateway, **change)
    assert got == status
    assert answer["type"] == "error"
    assert (answer["error"]["type"], answer["error"]["code"]) == (kind, code)
    assert answer["error"]["message"]


async def test_who_has_no_key_is_told_so_in_the_dialects_own_form(tmp_path: Path) -> None:
    async with local_gateway(tmp_path) as gateway:
        for headers in ({}, {"x-api-key": "wrong"}):
            status, answer = await gateway.ask("/v1/messages", ASKED, headers=headers)
            assert (status, answer["type"], answer["error"]["type"]) == (401, "error", "authentication_error")


async def test_a_client_that_sets_no_header_has_a_key_for_its_session(tmp_path: Path) -> None:
    async with gateway_of(tmp_path) as gateway:
        _, begun = await gateway.ask("/api/sessions", {})
        _, named = await gateway.ask("/api/sessions", {"session_id": "mine"})
        assert named["session"] == "mine"
        for headers in ({}, {"x-session-id": "another"}):
            status, _ = await gateway.ask("/v1/messages", ASKED, headers={"x-api-key": begun["api_key"], **headers})
            assert status == 200
        status, refused = await gateway.ask(
            f"/api/sessions/{begun['session']}/reward", {"reward": 1.0}, headers={"x-api-key": begun["api_key"]}
        )
        assert (status, refused["error"]["code"]) == (403, "insufficient_scope")
        status, told = await gateway.ask(f"/api/sessions/{begun['session']}/reward", {"reward": 1.0})
        assert (status, told["turns"]) == (200, 2)
        status, refused = await gateway.ask("/api/sessions", {"session_id": "no name"})
    assert (status, refused["error"]["code"]) == (400, "invalid_value")
