"""A last message of the assistant that the answer goes on with: in each dialect one prompt, one text, exact ids."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from support.engines.calling_model import PIECES, TEMPLATE, TOOL, write_calling_tokenizer, write_thinking_tokenizer
from support.gateway.agent_sessions import CALLS, gateway_of
from support.gateway.local_gateway import LocalGateway
from support.gateway.told_answers import events_of, streamed, text_of, told

from streamrl.config.schema.run import GatewayConfig
from streamrl.gateway.anthropic.messages import CountRequest
from streamrl.gateway.sessions.session_body import HEADER

USER = {"role": "user", "content": "1"}
SAID = {"role": "assistant", "content": "hi"}
TURNS = [USER, SAID]
ITEM = {"type": "message", "id": "msg_1", "content": [{"type": "output_text", "text": "hi"}], "role": "assistant"}
GOES_ON: dict[str, tuple[str, dict[str, Any]]] = {
    "a chat": ("/v1/chat/completions", {"messages": TURNS, "continue_final_message": True}),
    "a chat as vLLM wants it": (
        "/v1/chat/completions",
        {"messages": TURNS, "continue_final_message": True, "add_generation_prompt": False},
    ),
    "a chat as Mistral and DeepSeek have it": ("/v1/chat/completions", {"messages": [USER, {**SAID, "prefix": True}]}),
    "a chat as Moonshot has it": ("/v1/chat/completions", {"messages": [USER, {**SAID, "partial": True}]}),
    "a message": ("/v1/messages", {"messages": TURNS, "max_tokens": 8}),
    "a message of blocks": (
        "/v1/messages",
        {"messages": [USER, {"role": "assistant", "content": [{"type": "text", "text": "hi"}]}], "max_tokens": 8},
    ),
    "a response as vLLM has it": ("/v1/responses", {"input": [USER, {**ITEM, "status": "incomplete"}]}),
}
ENDED: dict[str, tuple[str, dict[str, Any]]] = {
    "a chat": ("/v1/chat/completions", {"messages": TURNS}),
    "a chat that says so": (
        "/v1/chat/completions",
        {"messages": TURNS, "continue_final_message": False, "add_generation_prompt": True},
    ),
    "a response": ("/v1/responses", {"input": [USER, {**ITEM, "status": "completed"}]}),
}
THOUGHTFUL = GatewayConfig(enabled=True, stream_weights={"train": 0.0}, reasoning_parser="think")


def write_thoughtful_tokenizer(folder: Path) -> None:
    """Of a model that may think, whose template writes no mark of it."""
    marks = {PIECES[1]: "<think>", PIECES[2]: "</think>"}
    write_calling_tokenizer(folder, tuple(marks.get(piece, piece) for piece in PIECES))
    (folder / "chat_template.jinja").write_text(TEMPLATE)


@pytest.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[LocalGateway]:
    async with gateway_of(tmp_path, **CALLS) as opened:
        yield opened


async def prompt_of(gateway: LocalGateway, answer: dict[str, Any]) -> str:
    (ids,) = answer["streamrl"]["prompt_token_ids"]
    return (await gateway.ask("/detokenize", {"tokens": ids}))[1]["prompt"]


async def ask(gateway: LocalGateway, path: str, body: dict[str, Any], session: str | None = None) -> Any:
    headers = {"authorization": f"Bearer {gateway.token()}"} | ({} if session is None else {HEADER: session})
    status, answer = await gateway.ask(path, {"model": "run", **body}, headers=headers)
    assert status == 200, answer
    return answer


async def test_each_dialect_goes_on_within_the_last_message(gateway: LocalGateway) -> None:
    for name, (path, body) in GOES_ON.items():
        answer = await ask(gateway, path, body)
        assert await prompt_of(gateway, answer) == "user=1\nassistant=hi", name
        assert told(path, answer).text == await text_of(gateway, told(path, answer).ids), name
        events = await events_of(gateway, path, **body)
        found = streamed(path, events)
        assert found.text == await text_of(gateway, found.ids), name
    for name, (path, body) in ENDED.items():
        assert (await prompt_of(gateway, await ask(gateway, path, body))).endswith("assistant="), name


async def test_the_ids_of_a_conversation_are_counted_and_told_as_they_are_sampled_from(gateway: LocalGateway) -> None:
    sampled = await ask(gateway, *GOES_ON["a message"])
    counted = await ask(gateway, "/v1/messages/count_tokens", {"messages": TURNS})
    asked = {"messages": TURNS, "continue_final_message": True, "add_generation_prompt": False}
    written = await ask(gateway, "/tokenize", asked)
    assert [written["tokens"]] == sampled["streamrl"]["prompt_token_ids"]
    assert counted == {"input_tokens": written["count"]}
    closed = await ask(gateway, "/tokenize", {"messages": [USER], "add_generation_prompt": False})
    begun = await ask(gateway, "/tokenize", {"messages": [USER], "add_generation_prompt": True})
    header = (await ask(gateway, "/tokenize", {"prompt": "assistant=", "add_special_tokens": False}))["tokens"]
    assert closed["tokens"] + header == begun["tokens"]
    chat = await ask(gateway, "/v1/chat/completions", {"messages": [USER], "add_generation_prompt": False})
    assert chat["streamrl"]["prompt_token_ids"] == [closed["tokens"]]


async def test_a_message_of_which_nothing_was_said_begins(gateway: LocalGateway) -> None:
    for path, body in (
        ("/v1/chat/completions", {"messages": [USER, {**SAID, "content": ""}], "continue_final_message": True}),
        ("/v1/messages", {"messages": [USER, {**SAID, "content": []}], "max_tokens": 8}),
    ):
        assert await prompt_of(gateway, await ask(gateway, path, body)) == "user=1\nassistant="


CALL = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": "{}"}}
USE = {"type": "tool_use", "id": "c1", "name": "add", "input": {}}
BOTH = {"continue_final_message": True, "add_generation_prompt": True}
REFUSED: dict[str, tuple[str, dict[str, Any], str, str]] = {
    "both": ("/v1/chat/completions", {"messages": TURNS, **BOTH}, "invalid_value", "continue_final_message"),
    "both, of ids": ("/tokenize", {"messages": TURNS, **BOTH}, "invalid_value", "continue_final_message"),
    "a text's end": (
        "/tokenize",
        {"prompt": "1", "add_generation_prompt": False},
        "invalid_value",
        "add_generation_prompt",
    ),
    "of the user": (
        "/v1/chat/completions",
        {"messages": [USER], "continue_final_message": True},
        "invalid_value",
        "messages",
    ),
    "with calls": (
        "/v1/chat/completions",
        {"messages": [USER, {**SAID, "tool_calls": [CALL]}], "continue_final_message": True},
        "invalid_value",
        "messages",
    ),
    "with a block of a call": (
        "/v1/messages",
        {"messages": [USER, {"role": "assistant", "content": [USE]}], "max_tokens": 8},
        "invalid_value",
        "messages",
    ),
    "with thoughts alone": (
        "/v1/messages",
        {
            "messages": [USER, {"role": "assistant", "content": [{"type": "thinking", "thinking": "1"}]}],
            "max_tokens": 8,
        },
        "invalid_value",
        "messages",
    ),
}


async def test_a_message_that_cannot_go_on_is_refused_by_name(gateway: LocalGateway) -> None:
    for name, (path, body, code, param) in REFUSED.items():
        status, answer = await gateway.ask(path, {"model": "run", **body})
        assert status == 400, (name, answer)
        assert (answer["error"]["code"], answer["error"]["param"]) == (code, param), name
        assert (answer.get("type") == "error") == (path == "/v1/messages"), name


async def test_what_a_template_trims_is_refused_in_each_dialect(tmp_path: Path) -> None:
    def write(folder: Path) -> None:
        write_calling_tokenizer(folder)
        template = TEMPLATE.replace("message.content or ''", "(message.content or '') | trim")
        (folder / "chat_template.jinja").write_text(template)

    async with gateway_of(tmp_path, **{**CALLS, "finish": write}) as gateway:
        for name, (path, body) in GOES_ON.items():
            assert (await prompt_of(gateway, await ask(gateway, path, body))).endswith("assistant=hi"), name
            spaced = {key: spaced_out(value) for key, value in body.items()}
            status, answer = await gateway.ask(path, {"model": "run", **spaced})
            assert (status, answer["error"]["code"], answer["error"]["param"]) == (400, "template_refused", "messages")
            assert "white space at the end" in answer["error"]["message"], name


def spaced_out(value: Any) -> Any:
    """The same with white space behind what the assistant said."""
    if isinstance(value, list):
        return [spaced_out(one) for one in value]
    if isinstance(value, dict):
        return {key: spaced_out(one) for key, one in value.items()}
    return "hi \n" if value == "hi" else value


# ---- sessions


async def test_a_session_trains_what_was_sampled_behind_it_and_goes_on_with_the_whole_message(
    gateway: LocalGateway,
) -> None:
    for number in range(200):
        session, turns = f"agent-{number}", [USER, SAID]
        body = {"messages": turns, "max_tokens": 6, "continue_final_message": True}
        first = await ask(gateway, "/v1/chat/completions", body, session)
        choice = first["choices"][0]
        if choice["finish_reason"] != "stop" or not choice["message"]["content"]:
            continue
        whole = {"role": "assistant", "content": "hi" + choice["message"]["content"]}
        body = {"messages": [USER, whole, USER], "max_tokens": 6}
        second = await ask(gateway, "/v1/chat/completions", body, session)
        ids = [*first["streamrl"]["prompt_token_ids"][0], *choice["streamrl"]["token_ids"]]
        assert second["streamrl"]["prompt_token_ids"][0][: len(ids)] == ids
        (branch,) = gateway.actor._sessions.take(session).branches()
        assert [list(turn.token_ids) for turn in branch.turns] == [
            one["choices"][0]["streamrl"]["token_ids"] for one in (first, second)
        ]
        assert list(branch.turns[0].prompt_ids) == first["streamrl"]["prompt_token_ids"][0]
        assert (await gateway.ask("/detokenize", {"tokens": list(branch.turns[0].prompt_ids)}))[1]["prompt"].endswith(
            "hi"
        )
        return
    raise AssertionError("no answer ended")


async def test_a_session_whose_message_comes_back_without_its_begin_is_a_fork(gateway: LocalGateway) -> None:
    body = {"messages": TURNS, "max_tokens": 6}
    first = await ask(gateway, "/v1/messages", body, "agent")
    part = {"role": "assistant", "content": told("/v1/messages", first).text or "2"}
    await ask(gateway, "/v1/messages", {**body, "messages": [USER, part, USER]}, "agent")
    status, counts = await gateway.ask("/api/sessions/agent/reward", {"reward": 1.0})
    assert (status, counts["branches"], counts["turns"]) == (200, 2, 2)


async def test_calls_behind_a_begun_text_are_read_and_the_session_goes_on_behind_them(gateway: LocalGateway) -> None:
    for number in range(400):
        session = f"agent-{number}"
        body = {"messages": TURNS, "max_tokens": 8, "tools": [TOOL], "continue_final_message": True}
        first = await ask(gateway, "/v1/chat/completions", body, session)
        choice = first["choices"][0]
        message = choice["message"]
        if choice["finish_reason"] != "tool_calls" or not message["content"]:
            continue
        whole = {**message, "content": "hi" + message["content"]}
        result = {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "2"}
        body = {"messages": [USER, whole, result], "max_tokens": 6, "tools": [TOOL]}
        second = await ask(gateway, "/v1/chat/completions", body, session)
        ids = [*first["streamrl"]["prompt_token_ids"][0], *choice["streamrl"]["token_ids"]]
        assert second["streamrl"]["prompt_token_ids"][0][: len(ids)] == ids
        _, counts = await gateway.ask(f"/api/sessions/{session}/reward", {"reward": 1.0})
        assert (counts["branches"], counts["turns"]) == (1, 2)
        return
    raise AssertionError("no answer called a tool behind a text")


async def test_an_answer_that_was_cut_off_goes_on_in_its_very_ids_thoughts_and_all(tmp_path: Path) -> None:
    async with gateway_of(
        tmp_path, **{**CALLS, "finish": write_thinking_tokenizer}, most=24, settings=THOUGHTFUL
    ) as gateway:
        for number in range(600):
            session = f"agent-{number}"
            first = await ask(gateway, "/v1/chat/completions", {"messages": [USER], "max_tokens": 12}, session)
            choice = first["choices"][0]
            cut = choice["message"]
            if choice["finish_reason"] != "length" or not cut.get("reasoning_content") or not cut["content"].strip():
                continue
            ids = [*first["streamrl"]["prompt_token_ids"][0], *choice["streamrl"]["token_ids"]]
            part = {"role": "assistant", "content": cut["content"]}
            body = {"messages": [USER, part], "max_tokens": 3, "continue_final_message": True}
            second = await ask(gateway, "/v1/chat/completions", body, session)
            assert second["streamrl"]["prompt_token_ids"] == [ids]
            choice = second["choices"][0]
            ids += choice["streamrl"]["token_ids"]
            whole = {"role": "assistant", "content": cut["content"] + choice["message"]["content"]}
            goes_on = choice["finish_reason"] != "stop"
            body = {"messages": [USER, whole] + ([] if goes_on else [USER]), "continue_final_message": goes_on}
            third = await ask(gateway, "/v1/chat/completions", {**body, "max_tokens": 2}, session)
            assert third["streamrl"]["prompt_token_ids"][0][: len(ids)] == ids
            _, counts = await gateway.ask(f"/api/sessions/{session}/reward", {"reward": 1.0})
            assert (counts["branches"], counts["turns"]) == (1, 3)
            return
    raise AssertionError("no answer with thoughts was cut off within its text")


async def test_thoughts_that_a_client_began_go_on(tmp_path: Path) -> None:
    async with gateway_of(
        tmp_path, **{**CALLS, "finish": write_thoughtful_tokenizer}, most=12, settings=THOUGHTFUL
    ) as gateway:
        turns = [USER, {"role": "assistant", "content": "<think>hi"}]
        for number in range(400):
            session = f"agent-{number}"
            first = await ask(gateway, "/v1/messages", {"messages": turns, "max_tokens": 12}, session)
            found = told("/v1/messages", first)
            before, _, after = (await text_of(gateway, found.ids)).partition("</think>")
            assert (found.thoughts, found.text) == (before.strip(), after.lstrip())
            if not (found.thoughts and found.text) or first["stop_reason"] != "end_turn":
                continue
            # As after an answer without a begin: most clients leave thoughts out.
            later = [USER, {"role": "assistant", "content": found.text}, USER]
            second = await ask(gateway, "/v1/messages", {"messages": later, "max_tokens": 2}, session)
            ids = [*first["streamrl"]["prompt_token_ids"][0], *found.ids]
            assert second["streamrl"]["prompt_token_ids"][0][: len(ids)] == ids
            return
    raise AssertionError("no answer had thoughts and a text")


def test_a_count_asks_for_what_a_message_asks_for_and_is_had_of_what_cannot_go_on() -> None:
    used = {"role": "assistant", "content": [{"type": "text", "text": "hi"}, USE]}
    for messages, expected in ((TURNS, True), ([USER], None), ([USER, used], None)):
        assert CountRequest(model="run", messages=messages).chat().continue_final_message is expected
