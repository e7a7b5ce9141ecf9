"""What the sender of a wrong body is told: his own path, the kind that he meant, and the way out."""

from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError
from support.gateway.agent_sessions import gateway_of

from streamrl.gateway.anthropic.messages import MessagesRequest
from streamrl.gateway.openai.bodies import ChatRequest, CompletionRequest
from streamrl.gateway.responses.items import ResponsesRequest
from streamrl.gateway.validation import no_route, refusal_of

IMAGE = {"type": "image_url", "image_url": {"url": "secret"}}
USER = {"role": "user", "content": "1"}
CALL = {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "add", "input": {}}]}
RESULT = {"type": "tool_result", "tool_use_id": "t", "content": [{"type": "image", "source": {}}]}

NEAR = "there is /v1/chat/completions: a base URL ends with /v1, without a slash"


def chat(*parts: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": [{"type": "text", "text": "1"}, *parts]}]}


@pytest.mark.parametrize(
    ("body", "given", "param", "words"),
    [
        (
            ChatRequest,
            chat(IMAGE),
            "messages.0.content.1.type",
            "'image_url' is not taken: .*'text'.; only text is read",
        ),
        (ChatRequest, {"messages": "hi"}, "messages", "valid list"),
        (ChatRequest, {"messages": [USER], "seed": 1.5}, "seed", "valid integer"),
        (CompletionRequest, {"prompt": None}, "prompt", "a valid string or a valid list"),
        (CompletionRequest, {"prompt": [-1]}, "prompt.0", "greater than or equal to 0"),
        (CompletionRequest, {"prompt": [1.5]}, "prompt.0", "valid integer"),
        (
            ResponsesRequest,
            {"input": [USER, {"role": "user", "content": [{"type": "input_image"}]}]},
            "input.1.content.0.type",
            "'input_image' is not taken",
        ),
        (
            ResponsesRequest,
            {"input": [{"type": "web_search_call", "id": "w"}]},
            "input.0.type",
            "'web_search_call' is not taken: .*one of 'function_call', .*'message'",
        ),
        (ResponsesRequest, {"input": [{"type": "function_call", "call_id": "c"}]}, "input.0.name", "Field required"),
        (
            MessagesRequest,
            {"max_tokens": 1, "messages": [CALL, {"role": "user", "content": [RESULT]}]},
            None,
            "'image'",
        ),
    ],
)
def test_the_error_that_is_told_is_of_what_was_meant(
    body: type[BaseModel], given: dict[str, Any], param: str | None, words: str
) -> None:
    with pytest.raises(ValidationError) as caught:
        body.model_validate({"model": "run", **given})
    refusal = refusal_of(caught.value.errors())
    if param is not None:
        assert refusal.param == param
    assert refusal.param is not None
    assert not any(name in refusal.param.split(".") for name in ("str", "list", "TextPart"))
    assert "secret" not in refusal.message
    with pytest.raises(type(refusal), match=words):
        raise refusal


@pytest.mark.parametrize(
    ("path", "near"),
    [
        ("/v1/chat/completions/", NEAR),
        ("/v1/v1/chat/completions", NEAR),
        ("//v1/chat/completions", NEAR),
        ("/chat/completions", NEAR),
        ("/v1/embeddings", "/docs lists those that there are"),
    ],
)
def test_a_path_that_is_nearly_a_route_is_told_the_route(path: str, near: str) -> None:
    told = no_route("POST", path, ["/v1/chat/completions", "/healthz"])
    assert told == f"there is no route POST '{path}'; {near}"


async def test_a_request_that_cannot_be_read_is_told_why(tmp_path: Path) -> None:
    body, path = b'{"model": "run", "messages": []}', "/v1/chat/completions"
    async with gateway_of(tmp_path) as gateway:
        key = {"authorization": f"Bearer {gateway.token()}"}

        async def told(path: str, data: bytes, **headers: str) -> str:
            status, answer = await gateway.ask(path, data, headers={**key, **headers})
            assert status in (400, 404)
            return answer["error"]["message"]

        form = {"content-type": "application/x-www-form-urlencoded"}  # what curl sends with -d
        assert "send `content-type: application/json`" in await told(path, body, **form)
        assert "send JSON in UTF-8, not packed" in await told(path, b'{"model": "\xff"}')
        assert "there is /v1/chat/completions" in await told(f"/v1{path}", body)
