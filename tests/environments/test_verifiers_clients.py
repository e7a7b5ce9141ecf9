"""The clients of verifiers 0.4: the one that evaluates, in each of its dialects, and the one that trains."""

from collections.abc import AsyncIterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from support.gateway.agent_sessions import gateway_of
from support.gateway.local_gateway import LocalGateway
from support.gateway.torch_gateway import LONG

pytestmark = pytest.mark.skipif(find_spec("verifiers") is None, reason="make test-environments")

MOST = 8
SAID = [{"role": "user", "content": "1+1="}]
KEY = "STREAMRL_TEST_KEY"


@pytest.fixture
async def gateway(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[LocalGateway]:
    async with gateway_of(tmp_path, **LONG) as opened:
        monkeypatch.setenv(KEY, opened.token())
        yield opened


def dialects() -> dict[str, tuple[Any, dict[str, Any]]]:
    from verifiers.v1.dialects.anthropic import AnthropicDialect
    from verifiers.v1.dialects.chat import ChatDialect
    from verifiers.v1.dialects.responses import ResponsesDialect

    return {
        "chat": (ChatDialect(), {"messages": SAID, "max_tokens": MOST}),
        "responses": (ResponsesDialect(), {"input": SAID, "max_output_tokens": MOST}),
        "messages": (AnthropicDialect(), {"messages": SAID, "max_tokens": MOST}),
    }


async def rewarded(gateway: LocalGateway, session: str) -> tuple[int, int]:
    """(branches, turns) of what a session came to."""
    status, told = await gateway.ask(f"/api/sessions/{session}/reward", {"reward": 1.0})
    assert status == 200, told
    return told["branches"], told["turns"]


@pytest.mark.parametrize("name", ["chat", "responses", "messages"])
async def test_the_eval_client_answers_streams_and_has_its_rollout_as_a_session(
    gateway: LocalGateway, name: str
) -> None:
    from verifiers.v1.clients import EvalClientConfig, resolve_client
    from verifiers.v1.types import SamplingConfig

    dialect, asked = dialects()[name]
    client = resolve_client(EvalClientConfig(base_url=f"{gateway.url}/v1", api_key_var=KEY))
    body = {"model": "run", **asked}
    response = await client.get_response(dialect, body, SamplingConfig(), session_id="agent")
    assert response.usage is not None
    assert 0 < response.usage.completion_tokens <= MOST
    assert response.raw["streamrl"]["prompt_token_ids"]
    relayed = await client.relay(dialect, {**body, "stream": True}, session_id="agent")
    events = [piece async for piece in relayed.chunks]
    await relayed.close()
    assert relayed.content_type.startswith("text/event-stream")
    assert len(events) > 1
    if name == "messages":
        counted = await client.relay_aux(dialect, "/v1/messages/count_tokens", {"model": "run", "messages": SAID})
        assert counted["input_tokens"] == response.usage.input_tokens
    await client.close()
    branches, _ = await rewarded(gateway, "agent")
    assert branches == 2


async def test_the_train_client_has_the_ids_that_were_sampled_and_their_log_probs(
    gateway: LocalGateway, tmp_path: Path
) -> None:
    from verifiers.v1.clients import TrainClientConfig, resolve_client
    from verifiers.v1.dialects.chat import ChatDialect
    from verifiers.v1.types import SamplingConfig

    config = TrainClientConfig(
        base_url=f"{gateway.url}/v1", api_key_var=KEY, renderer_model_name=str(tmp_path / "model")
    )
    client = resolve_client(config)
    sampling = SamplingConfig(max_tokens=MOST, temperature=1.0)
    body = {"model": "run", "messages": SAID}
    response = await client.get_response(ChatDialect(), body, sampling, session_id="agent")
    await client.close()
    tokens = response.tokens
    assert tokens is not None
    assert 0 < len(tokens.completion_ids) <= MOST
    assert len(tokens.completion_logprobs) == len(tokens.completion_ids)
    assert await rewarded(gateway, "agent") == (1, 1)
