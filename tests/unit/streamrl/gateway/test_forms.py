"""Calls and thoughts of models whose marks are special tokens, in each dialect, whole and in streams."""

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from support.engines.calling_model import TOOL, write_harmony_tokenizer, write_mistral_tokenizer
from support.gateway.agent_sessions import gateway_of
from support.gateway.local_gateway import LocalGateway
from support.gateway.told_answers import ASKED, MESSAGES, WITH_TOOLS, Told, events_of, streamed, text_of, told

from streamrl.config.schema.run import GatewayConfig
from streamrl.conversations.formats.harmony import MARKS
from streamrl.conversations.tool_calls import MessageReader, ParsedMessage

TOKENIZERS = {"mistral": write_mistral_tokenizer, "openai": write_harmony_tokenizer}
THOUGHTS = {"mistral": "mistral", "openai": "openai_gptoss"}
SPECIAL = {"mistral": ("[TOOL_CALLS]", "[THINK]", "[/THINK]"), "openai": MARKS}
SCRIPT = {"template": None, "latency_steps": 8, "heavy_tail": 0.5, "most": 12}


@pytest.fixture(params=TOKENIZERS)
def form(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
async def gateway(form: str, tmp_path: Path) -> AsyncIterator[LocalGateway]:
    settings = GatewayConfig(enabled=True, stream_weights={"train": 0.0}, reasoning_parser=THOUGHTS[form])
    async with gateway_of(tmp_path, **SCRIPT, finish=TOKENIZERS[form], settings=settings) as opened:
        yield opened


async def answered(gateway: LocalGateway, path: str, stream: bool) -> Told:
    if stream:
        return streamed(path, await events_of(gateway, path, **WITH_TOOLS[path]))
    status, answer = await gateway.ask(path, {"model": "run", **ASKED[path], **WITH_TOOLS[path]})
    assert status == 200, answer
    return told(path, answer)


def read(form: str, text: str, finish_reason: str) -> ParsedMessage:
    reader = MessageReader(
        "n", {"add": TOOL["function"]["parameters"]}, True, False, call_form=form, thought_form=THOUGHTS[form]
    )
    return reader.parse(0, text, finish_reason)


@pytest.mark.parametrize("path", ASKED)
async def test_what_stands_between_special_tokens_is_read(path: str, form: str, gateway: LocalGateway) -> None:
    seen = {(stream, kind): 0 for stream in (False, True) for kind in ("calls", "thoughts")}
    # What is sampled decides what an answer has.
    for number in range(600):
        if min(seen.values()) > 1:
            break
        stream = bool(number % 2)
        found = await answered(gateway, path, stream)
        whole = await text_of(gateway, found.ids)
        expected = read(form, whole, "stop" if found.ids[-1] == 2 else "length")
        assert found[:2] == (expected.thoughts, expected.content), whole
        assert [json.loads(one) for one in found.arguments] == [json.loads(call.arguments) for call in expected.calls]
        if not any(mark in expected.content for mark in SPECIAL[form]):
            assert not any(mark in found.text for mark in SPECIAL[form])
        seen[stream, "calls"] += bool(found.arguments)
        seen[stream, "thoughts"] += bool(found.thoughts)
    assert min(seen.values()) > 1, seen


async def test_a_session_goes_on_behind_calls_between_special_tokens(tmp_path: Path) -> None:
    async with gateway_of(tmp_path, **SCRIPT, finish=write_mistral_tokenizer) as gateway:
        for number in range(600):
            headers = {"authorization": f"Bearer {gateway.token()}", "x-session-id": f"agent-{number}"}
            body = {"model": "run", **ASKED["/v1/chat/completions"], **WITH_TOOLS["/v1/chat/completions"]}
            _, answer = await gateway.ask("/v1/chat/completions", body, headers=headers)
            choice = answer["choices"][0]
            if choice["finish_reason"] != "tool_calls":
                continue
            call = choice["message"]["tool_calls"][0]
            result = {"role": "tool", "tool_call_id": call["id"], "content": "2"}
            turns = [*MESSAGES, choice["message"], result]
            status, second = await gateway.ask("/v1/chat/completions", {**body, "messages": turns}, headers=headers)
            assert status == 200, second
            ids = [*answer["streamrl"]["prompt_token_ids"][0], *choice["streamrl"]["token_ids"]]
            assert second["streamrl"]["prompt_token_ids"][0][: len(ids)] == ids
            assert len(call["id"]) == 9
            return
    raise AssertionError("no answer stopped behind a call")


@pytest.mark.parametrize("parser", ["auto", "none"])
async def test_without_tools_or_a_parser_special_tokens_are_left_out(parser: str, tmp_path: Path) -> None:
    settings = GatewayConfig(enabled=True, stream_weights={"train": 0.0}, tool_call_parser=parser)
    more = {} if parser == "auto" else WITH_TOOLS["/v1/chat/completions"]
    async with gateway_of(tmp_path, **SCRIPT, finish=write_mistral_tokenizer, settings=settings) as gateway:
        hidden = 0
        for _ in range(60):
            _, answer = await gateway.chat("1", max_tokens=12, **more)
            found = told("/v1/chat/completions", answer)
            whole = plain = await text_of(gateway, found.ids)
            for mark in SPECIAL["mistral"]:
                plain = plain.replace(mark, "")
            assert (found.text, found.thoughts, found.arguments) == (plain, "", [])
            hidden += plain != whole
        assert hidden
