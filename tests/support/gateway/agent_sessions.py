"""Agents at a gateway: their calls under a session, its reward, and what of it is trained where turns follow a
grammar."""

import math
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from support.engines.bytewise_model import write_sharp_model
from support.engines.calling_model import write_calling_tokenizer
from support.gateway.local_gateway import LocalGateway
from support.gateway.sent_trajectories import SETTINGS
from support.gateway.sent_trajectories import gateway_of as fresh_gateway
from support.gateway.torch_gateway import LONG, torch_gateway

from streamrl.buffers.ledger.records import Step
from streamrl.conversations.branches import Branch
from streamrl.gateway.auth import Scope
from streamrl.gateway.sessions.capture import LEAST_LEFT
from streamrl.gateway.sessions.session_body import HEADER
from streamrl.models.load import load_model

Array = npt.NDArray[np.float64]
CLOSE = 1e-3
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


# ---- under a grammar


@asynccontextmanager
async def grammar_gateway(folder: Path, **options: Any) -> AsyncIterator[LocalGateway]:
    """Its replica is sure of what it says, and follows grammars."""
    settings = {**LONG, "finish": write_sharp_model, "trains": True, "gateway": SETTINGS, **options}
    async with torch_gateway(folder, **settings) as gateway:
        assert gateway.queue is not None
        gateway.queue._actor._queue._journal.write(Step(0, []))  # its version was made by a step
        yield gateway


def left_by_grammar(folder: Path, before: Sequence[int], sampled: Sequence[int], logprobs: Sequence[float]) -> Array:
    """float64 [n]: the log of what a grammar left of the model's own probability in the place of each sampled token, by
    transformers' own forward."""
    ids = torch.tensor([[*before, *sampled]])
    with torch.inference_mode():
        own = torch.log_softmax(load_model(folder, "float32")(ids).logits[0, len(before) - 1 : -1].double(), dim=-1)
    return own.gather(1, ids[0, len(before) :, None])[:, 0].numpy() - np.array(logprobs)


def chosen(folder: Path, prompt: Sequence[int], sampled: Sequence[int], logprobs: Sequence[float]) -> list[bool]:
    """Whether the model itself would have chosen each sampled token."""
    left = left_by_grammar(folder, prompt, sampled, logprobs)
    assert (np.abs(left - math.log(LEAST_LEFT)) > CLOSE).all(), "one of them is too near to the bound to say"
    return (left > math.log(LEAST_LEFT)).tolist()


def trained(branch: Branch) -> list[tuple[int, bool]]:
    """The ids of a row, and whether they are trained."""
    row: list[tuple[int, bool]] = []
    for turn in branch.turns:
        row += [*((one, False) for one in turn.prompt_ids), *((one, True) for one in turn.token_ids)]
    return row
