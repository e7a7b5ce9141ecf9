"""What a client may not ask: each time a clear 4xx with a code, and the gateway goes on."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from support.gateway.local_gateway import ENDLESS, NO_TOOLS, LocalGateway, local_gateway

from streamrl.config.schema.run import GatewayConfig

TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}

BAD_COMPLETIONS: dict[str, tuple[dict[str, Any], int, str]] = {
    "another model": ({"model": "gpt-4"}, 404, "model_not_found"),
    "a model that is half a character": ({"model": "\ud800"}, 404, "model_not_found"),
    "no model": ({"model": None}, 400, "invalid_value"),
    "a prompt over the context": ({"prompt": "1" * 100}, 400, "context_length_exceeded"),
    "a completion over the context": ({"max_tokens": 10**9}, 400, "context_length_exceeded"),
    "an integer beyond all": ({"max_tokens": 10**400}, 400, "context_length_exceeded"),
    "a million completions": ({"n": 10**6}, 400, "too_many_completions"),
    "too many prompts": ({"prompt": ["1"] * 65}, 400, "too_many_completions"),
    "no completions": ({"n": 0}, 400, "invalid_value"),
    "a negative temperature": ({"temperature": -1}, 400, "invalid_value"),
    "a temperature next to nothing": ({"temperature": 1e-30}, 400, "invalid_value"),
    "a temperature beyond all": ({"temperature": 1e9}, 400, "invalid_value"),
    "top_p of nothing": ({"top_p": 0}, 400, "invalid_value"),
    "min_p above one": ({"min_p": 1.5}, 400, "invalid_value"),
    "a seed beyond 64 bits": ({"seed": 2**63}, 400, "invalid_value"),
    "an empty prompt": ({"prompt": []}, 400, "empty_prompt"),
    "an empty list of ids among prompts": ({"prompt": [[1], []]}, 400, "empty_prompt"),
    "letters that the model has not": ({"prompt": "hello"}, 400, "not_encodable"),
    "half a character": ({"prompt": "\ud800"}, 400, "not_encodable"),
    "an id that is none": ({"prompt": [1, 10**6]}, 400, "token_out_of_range"),
    "a negative id": ({"prompt": [-1]}, 400, "invalid_value"),
    "a stop id that is none": ({"stop_token_ids": [10**6]}, 400, "token_out_of_range"),
    "an empty stop string": ({"stop": ""}, 400, "empty_stop"),
    "many stop strings": ({"stop": ["1"] * 17}, 400, "too_many_stops"),
    "no tokens": ({"max_tokens": 0}, 400, "invalid_value"),
    "log-probs of the prompt": ({"echo": True, "logprobs": 1}, 400, "unsupported_parameter"),
    "log-probs of the prompt as vLLM has them": ({"prompt_logprobs": 0}, 400, "unsupported_parameter"),
    "best_of": ({"best_of": 2}, 400, "unsupported_parameter"),
    "a penalty": ({"presence_penalty": 0.5}, 400, "unsupported_parameter"),
    "a bias": ({"logit_bias": {"1": 5}}, 400, "unsupported_parameter"),
    "alternatives": ({"logprobs": 5}, 400, "unsupported_parameter"),
    "more alternatives than are told": ({"logprobs": 21}, 400, "invalid_value"),
    "alternatives of a chat": ({"top_logprobs": 5}, 400, "unsupported_parameter"),
    "a parameter that nobody knows": ({"temprature": 1}, 400, "unknown_parameter"),
    "a boolean for a number": ({"max_tokens": True}, 400, "invalid_value"),
    "text for a boolean": ({"stream": "maybe"}, 400, "invalid_value"),
}
BAD_CHATS: dict[str, tuple[dict[str, Any], int, str]] = {
    "no messages": ({"messages": []}, 400, "invalid_value"),
    "a message without a role": ({"messages": [{"content": "1"}]}, 400, "missing_parameter"),
    "a picture": (
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
        400,
        "invalid_value",
    ),
    "a tool that is text": ({"tools": ["add"]}, 400, "invalid_value"),
    "a tool without a function": ({"tools": [{"type": "function"}]}, 400, "missing_parameter"),
    "a tool of another type": ({"tools": [{**TOOL, "type": "retrieval"}]}, 400, "invalid_value"),
    "a tool without a name": ({"tools": [{"type": "function", "function": {}}]}, 400, "missing_parameter"),
    "a tool that must be called": ({"tools": [TOOL], "tool_choice": "required"}, 400, "unsupported_parameter"),
    "JSON to order": ({"response_format": {"type": "json_object"}}, 400, "unsupported_parameter"),
    "alternatives": ({"logprobs": True, "top_logprobs": 3}, 400, "unsupported_parameter"),
    "alternatives without log-probs": ({"top_logprobs": 3}, 400, "invalid_value"),
    "the last message again": ({"echo": True}, 400, "unsupported_parameter"),
    "no tokens": ({"max_tokens": 0}, 400, "invalid_value"),
    "a conversation over the context": (
        {"messages": [{"role": "u", "content": "1" * 90}]},
        400,
        "context_length_exceeded",
    ),
    "letters that the model has not": ({"messages": [{"role": "u", "content": "hello"}]}, 400, "not_encodable"),
}
BAD_BODIES: dict[str, tuple[bytes, str]] = {
    "nothing": (b"", "missing_parameter"),
    "no JSON": (b"{", "invalid_json"),
    "half a character of UTF-8": (b'{"model": "run", "prompt": "\xff"}', "invalid_body"),
    "a list": (b"[]", "invalid_value"),
    "a number that is none": (b'{"model": "run", "prompt": "1", "temperature": NaN}', "invalid_value"),
    "nested without end": (b'{"model": "run", "prompt": ' + b"[" * 10**5, "nested_too_deep"),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("gateway")


def refused(answer: Any) -> str:
    """The code, of an error in OpenAI's shape."""
    assert set(answer) == {"error"}, answer
    assert set(answer["error"]) == {"message", "type", "param", "code"}
    assert answer["error"]["message"]
    return answer["error"]["code"]


async def still_answers(gateway: LocalGateway) -> None:
    status, answer = await gateway.complete(max_tokens=4)
    assert (status, answer["choices"][0]["index"]) == (200, 0)


async def test_what_is_wrong_with_a_request_is_said_with_a_code(tmp_path: Path) -> None:
    async with local_gateway(tmp_path) as gateway:
        for name, (change, status, code) in BAD_COMPLETIONS.items():
            for stream in (False, True):
                got, answer = await gateway.complete(**{"stream": stream, **change})
                assert (got, refused(answer)) == (status, code), name
        for name, (change, status, code) in BAD_CHATS.items():
            got, answer = (
                await gateway.chat(**change)
                if "messages" not in change
                else await gateway.ask("/v1/chat/completions", {"model": "run", **change})
            )
            assert (got, refused(answer)) == (status, code), name
        for name, (body, code) in BAD_BODIES.items():
            got, answer = await gateway.ask("/v1/completions", body, method="POST")
            assert (got, refused(answer)) == (400, code), name
        await still_answers(gateway)
        assert gateway.actor._pool.running == 0


async def test_values_that_change_nothing_are_taken(tmp_path: Path) -> None:
    neutral = {"echo": False, "best_of": 1, "presence_penalty": 0, "logit_bias": {}, "user": "me", "suffix": None}
    chat = {"tool_choice": "auto", "response_format": {"type": "text"}, "metadata": {"a": "b"}, "top_logprobs": 0}
    async with local_gateway(tmp_path) as gateway:
        assert (await gateway.complete(**neutral, top_k=-1, top_p=1, min_p=0))[0] == 200
        assert (await gateway.chat(**chat, max_completion_tokens=3, tools=[TOOL]))[0] == 200
        parts = [{"type": "text", "text": "1"}, {"type": "text", "text": "+1"}]
        _, answer = await gateway.chat(content=parts)
        _, again = await gateway.chat(content="1+1")
    assert answer["streamrl"] == again["streamrl"]


async def test_tools_reach_a_template_that_knows_them_and_are_refused_by_another(tmp_path: Path) -> None:
    async with local_gateway(tmp_path / "knows") as gateway:
        _, without = await gateway.chat()
        _, with_tools = await gateway.chat(tools=[TOOL, TOOL])
        _, unused = await gateway.chat(tools=[TOOL], tool_choice="none")
    lengths = [len(answer["streamrl"]["prompt_token_ids"][0]) for answer in (without, with_tools, unused)]
    assert lengths == [lengths[0], lengths[0] + 3, lengths[0]]
    async with local_gateway(tmp_path / "not", template=NO_TOOLS) as gateway:
        status, answer = await gateway.chat(tools=[TOOL])
        assert (status, refused(answer)) == (400, "tools_not_supported")
        assert (await gateway.chat())[0] == 200


@pytest.mark.parametrize(
    ("template", "code"),
    [
        (None, "no_chat_template"),
        ("{{ raise_exception('roles must alternate') }}", "template_refused"),
        ("{{ messages[0].content.x.y }}", "template_refused"),
        ("{{ ''.__class__.__mro__ }}1", "template_refused"),
        ("{% for i in range(10**9) %}1{% endfor %}", "template_refused"),
    ],
)
async def test_a_template_that_is_not_there_or_takes_no_such_messages_is_said(
    template: str | None, code: str, tmp_path: Path
) -> None:
    async with local_gateway(tmp_path, template=template) as gateway:
        status, answer = await gateway.chat()
        assert (status, refused(answer)) == (400, code)
        await still_answers(gateway)


async def test_a_body_has_its_limit_whether_it_says_its_length_or_not(tmp_path: Path) -> None:
    async def chunks() -> Any:
        yield b'{"model": "run", "prompt": "'
        for _ in range(3):
            yield b"1" * 1000

    async with local_gateway(tmp_path, gateway=GatewayConfig(enabled=True, max_body_bytes=2000)) as gateway:
        status, answer = await gateway.complete(prompt="1" * 3000)
        assert (status, refused(answer)) == (413, "body_too_long")
        headers = {"authorization": f"Bearer {gateway.token()}"}
        async with gateway.http.post(f"{gateway.url}/v1/completions", data=chunks(), headers=headers) as response:
            assert (response.status, refused(json.loads(await response.text()))) == (413, "body_too_long")
        await still_answers(gateway)


async def test_one_request_more_than_the_limit_is_told_to_come_back(tmp_path: Path) -> None:
    settings = GatewayConfig(enabled=True, max_requests=2, max_completions=3)
    async with local_gateway(tmp_path, gateway=settings, **ENDLESS) as gateway:
        running = [asyncio.create_task(gateway.complete(prompt="1", max_tokens=10**5)) for _ in range(2)]
        await gateway.busy(requests=2)
        headers = {"authorization": f"Bearer {gateway.token()}"}
        async with gateway.http.post(f"{gateway.url}/v1/completions", json={}, headers=headers) as response:
            assert response.status == 429
            assert response.headers["retry-after"] == "1"
            assert refused(await response.json()) == "too_many_requests"
        assert (await gateway.ask("/healthz"))[0] == 200
        for task in running:
            task.cancel()
        await gateway.idle()
        assert (await gateway.complete(n=4))[1]["error"]["code"] == "too_many_completions"


async def test_before_a_replica_serves_there_is_nothing_to_ask(tmp_path: Path) -> None:
    async with local_gateway(tmp_path, ready=False) as gateway:
        assert (await gateway.ask("/healthz"))[0] == 200
        for path, body in (("/readyz", None), ("/v1/completions", {"model": "run", "prompt": "1"})):
            status, answer = await gateway.ask(path, body)
            assert (status, refused(answer)) == (503, "no_replica")
        status, answer = await gateway.ask("/v1/completions", {"model": "run", "prompt": "1", "stream": True})
        assert (status, refused(answer)) == (503, "no_replica")
