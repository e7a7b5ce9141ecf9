"""Requests to an SGLang contract in tests, and what comes back of them."""

import asyncio
from typing import Any

import numpy as np
from support.engines.fake_server import token

from streamrl.engines.server.contract import Piece
from streamrl.engines.server.sglang.contract import SglangContract
from streamrl.types import GenerationRequest, PartialTokens, SamplingParams, Version, VersionSpan


def request(request_id: str = "g/0", *, new: int = 6, so_far: int = 0, **sampling: Any) -> GenerationRequest:
    known = np.arange(50, 50 + so_far, dtype=np.int32)
    spans = (VersionSpan(0, Version(0, 1)),)
    return GenerationRequest(
        request_id,
        prompt_ids=np.array([3, 4], np.int32),
        seed=2**62,
        sampling=SamplingParams(max_new_tokens=new + so_far, **sampling),
        stop_token_ids=(2,),
        so_far=PartialTokens(request_id, 0, known, np.zeros(so_far, np.float32), spans) if so_far else None,
    )


async def pieces(contract: SglangContract, one: GenerationRequest) -> list[Piece]:
    return [piece async for piece in contract.generate(one)]


async def end(contract: SglangContract, one: GenerationRequest) -> Piece:
    return (await pieces(contract, one))[-1]


def ids(parts: list[Piece]) -> list[int]:
    return [int(one) for part in parts for one in part.token_ids]


def sampled(count: int) -> list[int]:
    return [token(index) for index in range(count)]


async def first_piece(contract: SglangContract, one: GenerationRequest) -> tuple[Piece, "asyncio.Task[list[Piece]]"]:
    """The first piece of a request, and a task that reads the rest."""
    stream = contract.generate(one)
    piece = await anext(stream)

    async def rest() -> list[Piece]:
        return [piece async for piece in stream]

    return piece, asyncio.create_task(rest())
