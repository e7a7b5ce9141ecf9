"""What servers tell beside their tokens, in the forms of each, and what the books make of it."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from support.engines.fake_server import likeliest, logprob, token
from support.engines.fake_sglang import fake_sglang
from support.engines.fake_vllm import FakeVllm
from support.engines.sglang_requests import pieces

from streamrl.engines.server.books import Running
from streamrl.engines.server.contract import Piece
from streamrl.engines.server.http import Http
from streamrl.engines.server.process.private_folder import make_private_folder, remove_private_folder
from streamrl.engines.server.sglang.answers import ChunkReader
from streamrl.engines.server.vllm.answers import read_prompt
from streamrl.engines.server.vllm.contract import VllmContract
from streamrl.errors import ComponentError, DataError
from streamrl.types import (
    FinishReason,
    GenerationRequest,
    PartialTokens,
    PromptLogprobs,
    SamplingParams,
    TopLogprobs,
    Version,
    VersionSpan,
)

PROMPT = np.array([token(place) for place in range(4)], np.int32)
FIRST = Version(0, 1)


def request(*, new: int = 5, top: int = 0, prompt: bool = False, so_far: int = 0) -> GenerationRequest:
    ids = np.arange(50, 50 + so_far, dtype=np.int32)
    known = PartialTokens("r", 0, ids, np.zeros(so_far, np.float32), (VersionSpan(0, FIRST),)) if so_far else None
    sampling = SamplingParams(max_new_tokens=new + so_far)
    return GenerationRequest("r", PROMPT, 7, sampling, (), known, top_logprobs=top, prompt_logprobs=prompt)


def told(places: range, most: int) -> list[list[tuple[int, float]]]:
    return [likeliest(place, most) for place in places]


def listed(top: TopLogprobs) -> list[list[tuple[int, float]]]:
    return [list(zip(*row, strict=True)) for row in zip(top.token_ids.tolist(), top.logprobs.tolist(), strict=True)]


@pytest.fixture
def private() -> Iterator[Path]:
    folder = make_private_folder("streamrl-test")
    yield folder
    remove_private_folder(folder)


async def of_vllm(fake: FakeVllm, folder: Path, one: GenerationRequest) -> list[Piece]:
    """The pieces of a request."""
    fake.at_once = True
    contract = VllmContract(Http(socket=folder / "socket"))
    with fake.served(folder / "socket"):
        try:
            return [piece async for piece in contract.generate(one)]
        finally:
            await contract.close()


async def of_sglang(one: GenerationRequest, *, incremental: bool = True) -> list[Piece]:
    async with fake_sglang() as (fake, contract):
        fake.incremental = incremental
        return await pieces(contract, one)


def assert_told(parts: list[Piece], top: int, *, prompt: bool) -> None:
    assert [row for part in parts for row in listed(part.top_logprobs)] == told(range(5), top)
    scores = [part.prompt for part in parts]
    assert scores[1:] == [None] * (len(parts) - 1)
    if not prompt:
        assert scores[0] is None
        return
    assert scores[0].logprobs.tolist() == [logprob(place) for place in range(1, 4)]
    assert listed(scores[0].top_logprobs) == told(range(1, 4), top)


@pytest.mark.parametrize("prompt", [True, False])
@pytest.mark.parametrize("top", [1, 4, 20])
async def test_vllm_tells_the_likeliest_whether_the_sampled_token_is_one_or_not(
    private: Path, top: int, prompt: bool
) -> None:
    fake = FakeVllm()
    assert_told(await of_vllm(fake, private, request(top=top, prompt=prompt)), top, prompt=prompt)
    bodies = [body for _, body in fake.calls]
    assert [body["sampling_params"].get("prompt_logprobs") for body in bodies] == ([top] if prompt else []) + [None]
    assert bodies[0]["token_ids"] == PROMPT.tolist()
    assert len({body["cache_salt"] for body in bodies}) == 1


@pytest.mark.parametrize("incremental", [True, False])
@pytest.mark.parametrize("prompt", [True, False])
@pytest.mark.parametrize("top", [1, 4, 20])
async def test_sglang_tells_the_likeliest_in_chunks_of_both_kinds(top: int, prompt: bool, incremental: bool) -> None:
    parts = await of_sglang(request(top=top, prompt=prompt), incremental=incremental)
    assert len(parts) > 1
    assert_told(parts, top, prompt=prompt)


async def test_log_probs_of_the_prompt_need_no_likeliest_tokens(private: Path) -> None:
    for parts in (
        await of_vllm(FakeVllm(), private, request(prompt=True)),
        await of_sglang(request(prompt=True)),
    ):
        assert parts[0].prompt.logprobs.tolist() == [logprob(place) for place in range(1, 4)]
        assert parts[0].prompt.top_logprobs is parts[0].top_logprobs is None


async def test_of_what_a_request_came_with_the_prompt_alone_is_scored(private: Path) -> None:
    one = request(prompt=True, top=2, so_far=3)
    one = replace(one, so_far=replace(one.so_far, token_ids=np.array([token(place) for place in (4, 5, 6)], np.int32)))
    for parts in (await of_vllm(FakeVllm(), private, one), await of_sglang(one)):
        assert parts[0].prompt.logprobs.tolist() == [logprob(place) for place in range(1, 4)]
        assert len(parts[0].prompt.top_logprobs.token_ids) == 3


async def test_a_prompt_that_vllm_refuses_to_score_is_an_error_of_the_request(private: Path) -> None:
    fake = FakeVllm()
    fake.answers["/inference/v1/generate"] = 400, {"error": {"message": "too many"}}
    (piece,) = await of_vllm(fake, private, request(prompt=True))
    assert (piece.finish_reason, piece.error) == (
        FinishReason.ERROR,
        "POST /inference/v1/generate answers 400: too many",
    )


@pytest.mark.parametrize(
    "answer",
    [
        b"{",
        b"{}",
        b'{"prompt_logprobs": [null]}',
        b'{"prompt_logprobs": [null, {"7": {"logprob": -1}}, {"12": {"logprob": -1}}, {"13": {"logprob": -1}}]}',
        b'{"prompt_logprobs": [null, {"11": {"logprob": -1}}, {"12": {"logprob": -1}}, null]}',
    ],
)
def test_an_answer_of_vllm_that_does_not_score_each_token_of_the_prompt_is_refused(answer: bytes) -> None:
    with pytest.raises(ComponentError, match=r"of the prompt|of a prompt"):
        read_prompt(answer, PROMPT, 0)


def test_what_cannot_be_drawn_is_no_likely_token_for_either() -> None:
    row = b'{"11": {"logprob": -1}, "5": {"logprob": -9999.0}}'
    scores = read_prompt(b'{"prompt_logprobs": [null, ' + row + b"]}", PROMPT[:2], 3)
    told = [[(11, -1.0), (-1, -np.inf), (-1, -np.inf)]]
    assert listed(scores.top_logprobs) == told
    likely = [[[-1.0, 11, None], [-3.4028234663852886e38, 5, None], [None, 6, None]]]
    meta = {"completion_tokens": 1, "output_token_logprobs": [[-1.0, 11, None]], "output_top_logprobs": likely}
    piece = ChunkReader(5, 3).read(msgspec.json.encode({"output_ids": [11], "meta_info": meta}))
    assert listed(piece.top_logprobs) == told


@pytest.mark.parametrize("rows", [[], [[-0.5, 99, None]] * 4, [[None, 10, None], [-0.5, 11, None]]])
def test_a_chunk_of_sglang_that_does_not_score_the_prompt_is_refused(rows: list[Any]) -> None:
    chunk = {"output_ids": [], "meta_info": {"completion_tokens": 0, "input_token_logprobs": rows}}
    with pytest.raises(DataError, match="prompt"):
        ChunkReader(5, 0, PROMPT).read(msgspec.json.encode(chunk))


def test_sglang_may_call_the_last_token_of_the_vocabulary_another_in_a_prompt() -> None:
    rows = [[None, 10, None], [-0.5, 11, None], [-1.0, 0, None], [-0.25, 13, None]]
    chunk = {"output_ids": [], "meta_info": {"completion_tokens": 0, "input_token_logprobs": rows}}
    piece = ChunkReader(5, 0, PROMPT).read(msgspec.json.encode(chunk))
    assert piece.prompt.logprobs.tolist() == [-0.5, -1.0, -0.25]


def test_a_chunk_of_sglang_without_the_likeliest_of_its_tokens_is_refused() -> None:
    meta = {"completion_tokens": 1, "output_token_logprobs": [[-0.5, 10, None]]}
    with pytest.raises(DataError, match="the likeliest tokens of 0 places came for 1 tokens"):
        ChunkReader(5, 2).read(msgspec.json.encode({"output_ids": [10], "meta_info": meta}))


def piece(start: int, stop: int, *, top: int = 2, reason: FinishReason | None = None, **more: Any) -> Piece:
    places = range(start, stop)
    rows = told(places, top)
    likely = TopLogprobs(
        np.array([[token_id for token_id, _ in row] for row in rows], np.int32),
        np.array([[one for _, one in row] for row in rows], np.float32),
    )
    ids, logprobs = [token(place) for place in places], [logprob(place) for place in places]
    spans = (VersionSpan(0, FIRST),) if reason else ()
    return Piece(np.array(ids, np.int32), np.array(logprobs, np.float32), reason, spans, "", likely, **more)


@pytest.mark.parametrize("so_far", [0, 3])
def test_the_books_tell_each_part_with_its_tokens_and_the_prompt_once(so_far: int) -> None:
    scores = PromptLogprobs(np.array([-1.0, -2.0, -3.0], np.float32))
    running = Running(request(top=2, prompt=True, so_far=so_far), [FIRST], 0.0)
    running.add(piece(0, 2, prompt=scores))
    first = running.partial(1)
    running.add(piece(2, 4))
    second = running.partial(1)
    last = piece(4, 5, reason=FinishReason.LENGTH)
    running.add(last)
    result = running.result(last)
    assert (first.prompt, second.prompt, result.prompt) == (scores, None, scores)
    nothing = [[(-1, -np.inf)] * 2] * so_far
    assert listed(first.top_logprobs) == nothing + told(range(2), 2)
    assert listed(second.top_logprobs) == told(range(2, 4), 2)
    assert listed(result.top_logprobs) == nothing + told(range(5), 2)


def test_the_books_of_a_request_that_asked_for_nothing_tell_nothing() -> None:
    running = Running(request(), [FIRST], 0.0)
    last = replace(piece(0, 5, reason=FinishReason.LENGTH), top_logprobs=None)
    running.add(last)
    part, result = running.partial(1), running.result(last)
    assert part.top_logprobs is part.prompt is result.top_logprobs is result.prompt is None
