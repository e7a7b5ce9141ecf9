"""A gateway that takes trajectories made elsewhere, and what a client sends it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from support.gateway.local_gateway import LONGEST_PROMPT, LocalGateway, local_gateway

from streamrl.config.schema.run import GatewayConfig
from streamrl.gateway.auth import Scope

GROUP_SIZE = 8
MOST = 24
CONTEXT = LONGEST_PROMPT + MOST
ROUTE = "/api/trajectories"
SETTINGS = GatewayConfig(enabled=True, stream_weights={"train": 0.0})


@asynccontextmanager
async def gateway_of(
    folder: Path, *, most: int = MOST, settings: GatewayConfig = SETTINGS, **options: Any
) -> AsyncIterator[LocalGateway]:
    async with local_gateway(folder, most=most, gateway=settings, trains=True, **options) as gateway:
        yield gateway


def turn(**changes: Any) -> dict[str, Any]:
    whole = {
        "prompt_token_ids": [1, 2, 3],
        "token_ids": [4, 5],
        "logprobs": [-0.5, -1.0],
        "version_spans": [[0, "0.0"]],
    }
    return {name: value for name, value in {**whole, **changes}.items() if value is not None}


def body(key: str = "a", *, turns: list[Any] | None = None, **changes: Any) -> dict[str, Any]:
    whole = {"key": key, "group": "task", "reward": 1.0, "turns": [turn()] if turns is None else turns}
    return {name: value for name, value in {**whole, **changes}.items() if value is not None}


async def offer(gateway: LocalGateway, said: Any) -> tuple[int, Any]:
    headers = {"authorization": f"Bearer {gateway.token(Scope.SUBMIT)}"}
    return await gateway.ask(ROUTE, said, headers=headers)


async def status_of(gateway: LocalGateway) -> dict[str, Any]:
    counts: dict[str, Any] = await gateway.queue.status.remote()  # type: ignore[union-attr]
    return counts
