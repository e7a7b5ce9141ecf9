"""A gateway behind a proxy that leaves its prefix in the paths."""

from pathlib import Path

import openai
import pytest
from support.gateway.local_gateway import local_gateway
from support.gateway.raw_http import answers, exchange

import streamrl
from streamrl.config.schema.run import GatewayConfig

BEHIND = GatewayConfig(enabled=True, path_prefix="/team/llm")


@pytest.mark.parametrize("prefix", ["", "/team/llm"])
async def test_with_the_prefix_and_without_it_a_request_reaches_its_route(prefix: str, tmp_path: Path) -> None:
    async with local_gateway(tmp_path, gateway=BEHIND) as gateway:
        assert await gateway.ask(f"{prefix}/readyz") == (200, {"status": "ready"})
        async with openai.AsyncOpenAI(base_url=f"{gateway.url}{prefix}/v1", api_key=gateway.token()) as client:
            said = await client.completions.create(model="run", prompt="1+1=", max_tokens=4)
        assert said.usage is not None
        assert said.usage.completion_tokens == 4
        async with streamrl.connect(f"{gateway.url}{prefix}", token=gateway.token()) as client:
            assert len(await client.sample("1+1=", max_tokens=4)) == 1


@pytest.mark.parametrize(
    "path", ["/team/llm/v1/message", "/team/llmx/healthz", "/team/healthz", "/team/llm/team/llm/healthz"]
)
async def test_what_has_another_prefix_or_no_route_behind_it_is_not_found(path: str, tmp_path: Path) -> None:
    async with local_gateway(tmp_path, gateway=BEHIND) as gateway:
        status, told = await gateway.ask(path)
        assert (status, told["error"]["code"]) == (404, "not_found")


async def test_a_refusal_behind_a_prefix_has_the_form_of_its_dialect(tmp_path: Path) -> None:
    async with local_gateway(tmp_path, gateway=BEHIND) as gateway:
        status, told = await gateway.ask("/team/llm/v1/messages", {"model": "run"})
        assert (status, told["type"], told["error"]["param"]) == (400, "error", "messages")


async def test_the_prefix_without_a_slash_leads_to_the_page(tmp_path: Path) -> None:
    async with local_gateway(tmp_path, gateway=BEHIND) as gateway:
        raw = b"GET /team/llm HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"
        data = await exchange(gateway.port, raw)
        assert [answer.status for answer in answers(data)] == [307]
        assert b"\r\nlocation: llm/\r\n" in data
        assert b"<title>streamrl</title>" in (await gateway.ask("/team/llm/"))[1].encode()
