"""A gateway whose replicas generate for submitted prompts alone, and what a client asks of it."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
from support.gateway.local_gateway import LocalGateway, local_gateway

from streamrl.config.schema.run import GatewayConfig
from streamrl.gateway.auth import Scope

GROUP_SIZE = 8
ONLY_CLIENTS = {"train": 0.0}


@asynccontextmanager
async def gateway_of(folder: Path, *, most: int = 6, **options: Any) -> AsyncIterator[LocalGateway]:
    keys = {name: options.pop(name) for name in ("max_prompts", "max_body_bytes", "max_requests") if name in options}
    settings = GatewayConfig(enabled=True, stream_weights=ONLY_CLIENTS, **keys)
    async with local_gateway(folder, most=most, gateway=settings, trains=True, **options) as gateway:
        yield gateway


def line(key: str, prompt: str = "1+1=", **payload: Any) -> bytes:
    return json.dumps({"key": key, "prompt": prompt, "payload": payload or {"answer": "2"}}).encode() + b"\n"


@asynccontextmanager
async def submission(
    gateway: LocalGateway, body: Any, stream: str | None = None
) -> AsyncIterator[aiohttp.ClientResponse]:
    headers = {"authorization": f"Bearer {gateway.token(Scope.SUBMIT)}", "content-type": "application/x-ndjson"}
    params = {} if stream is None else {"stream": stream}
    async with gateway.http.post(gateway.url + "/api/prompts", data=body, headers=headers, params=params) as response:
        yield response


async def told(response: aiohttp.ClientResponse) -> AsyncIterator[dict[str, Any]]:
    while piece := await response.content.readline():
        yield json.loads(piece)


async def answers(gateway: LocalGateway, body: Any, stream: str | None = None) -> list[dict[str, Any]]:
    async with submission(gateway, body, stream) as response:
        assert (response.status, response.content_type) == (200, "application/x-ndjson")
        return [one async for one in told(response)]
