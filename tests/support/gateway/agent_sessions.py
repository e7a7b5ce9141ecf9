"""Agents at a gateway: their calls under a session, and its reward."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from support.engines.calling_model import write_calling_tokenizer
from support.gateway.local_gateway import LocalGateway
from support.gateway.sent_trajectories import gateway_of as fresh_gateway

from streamrl.buffers.ledger.records import Step
from streamrl.gateway.auth import Scope
from streamrl.gateway.sessions.session_body import HEADER

PROMPT = [1, 2, 3]
CALLS = {"template": None, "finish": write_calling_tokenizer, "latency_steps": 8, "heavy_tail": 0.5}
"""Of a gateway whose replica calls tools."""


@asynccontextmanager
async def gateway_of(folder: Path, **options: Any) -> AsyncIterator[LocalGateway]:
    """Its replica serves version 0.1, and so the queue has to know of a step that made it: nobody learns here."""
    async with fresh_gateway(folder, **options) as gateway:
        gateway.queue._actor._queue._journal.write(Step(0, []))  # type: ignore[union-attr]
        yield gateway


async def call(gateway: LocalGateway, session: Any, prompt: Any = PROMPT, **more: Any) -> tuple[int, Any]:
    headers = {"authorization": f"Bearer {gateway.token(Scope.GENERATE)}"}
    if session is not None:
        headers[HEADER] = session
    body = {"model": "run", "prompt": prompt, "max_tokens": 4, **more}
    return await gateway.ask("/v1/completions", body, headers=headers)


async def ids_of(gateway: LocalGateway, session: str, prompt: list[int] = PROMPT, **more: Any) -> list[int]:
    status, answer = await call(gateway, session, prompt, **more)
    assert status == 200, answer
    ids: list[int] = answer["choices"][0]["streamrl"]["token_ids"]
    return ids


async def reward(gateway: LocalGateway, session: str, value: Any = 1.0, **more: Any) -> tuple[int, Any]:
    headers = {"authorization": f"Bearer {gateway.token(Scope.SUBMIT)}"}
    return await gateway.ask(f"/api/sessions/{session}/reward", {"reward": value, **more}, headers=headers)
