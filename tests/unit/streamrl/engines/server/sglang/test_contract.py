"""What an SGLang contract asks of a server with its routes and its bad habits, and makes of the answers."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pytest
from support.engines.fake_server import logprob
from support.engines.fake_sglang import FakeSglang, fake_sglang, serving
from support.engines.sglang_requests import end, first_piece, ids, pieces, request, sampled

from streamrl.engines.server.http import Http
from streamrl.engines.server.sglang.contract import SglangContract
from streamrl.errors import ComponentError, ConfigError, ProcessDiedError
from streamrl.types import FinishReason, Version, VersionSpan

STARTED_WITH = Version(-1, -1)


@pytest.fixture
async def pair() -> AsyncIterator[tuple[FakeSglang, SglangContract]]:
    async with fake_sglang() as both:
        yield both


@pytest.mark.parametrize("incremental", [True, False])
async def test_a_completion_comes_in_pieces_with_its_log_probs_and_versions(
    pair: tuple[FakeSglang, SglangContract], incremental: bool
) -> None:
    fake, contract = pair
    fake.incremental = incremental
    parts = await pieces(contract, request(new=5))
    assert len(parts) > 1
    assert ids(parts) == sampled(5)
    assert np.concatenate([part.logprobs for part in parts]).tolist() == [logprob(index) for index in range(5)]
    assert [part.finish_reason for part in parts[:-1]] == [None] * (len(parts) - 1)
    assert (parts[-1].finish_reason, parts[-1].version_spans) == (FinishReason.LENGTH, (VersionSpan(0, STARTED_WITH),))


async def test_a_request_says_all_that_shapes_its_distribution_and_nothing_is_left_to_defaults(
    pair: tuple[FakeSglang, SglangContract],
) -> None:
    fake, contract = pair
    await pieces(contract, request(new=4, so_far=3, temperature=0.7))
    (body,) = fake.bodies("/generate")
    assert body["input_ids"] == [3, 4, 50, 51, 52]
    assert (body["stream"], body["return_logprob"], body["logprob_start_len"]) == (True, True, -1)
    assert body["sampling_params"] == {
        "max_new_tokens": 4,
        "temperature": 0.7,
        "top_p": 1.0,
        "top_k": -1,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "frequency_penalty": 0.0,
        "presence_penalty": 0.0,
        "stop_token_ids": [2],
        "ignore_eos": False,
        "sampling_seed": 2**62,
    }


@pytest.mark.parametrize(("name", "value"), [("top_p", 0.9), ("top_k", 5), ("min_p", 0.1)])
async def test_a_truncated_distribution_is_refused_since_the_log_probs_would_be_of_another(
    pair: tuple[FakeSglang, SglangContract], name: str, value: float
) -> None:
    fake, contract = pair
    piece = await end(contract, request(**{name: value}))
    assert piece.finish_reason is FinishReason.ERROR
    assert f"{name} is {value}" in piece.error
    assert fake.calls == []


@pytest.mark.parametrize(
    "words",
    [
        {"error": {"message": "prompt too long"}},
        {"error": "prompt too long"},
        {"object": "error", "message": "prompt too long", "type": "Bad Request", "code": 400},
        "prompt too long",
    ],
)
async def test_a_refused_request_ends_as_one_error_with_the_servers_words(
    pair: tuple[FakeSglang, SglangContract], words: Any
) -> None:
    fake, contract = pair
    fake.instead["/generate"] = (400, words)
    (piece,) = await pieces(contract, request())
    assert piece.finish_reason is FinishReason.ERROR
    assert piece.error == "POST /generate answers 400: prompt too long"


async def test_a_fault_of_the_server_is_not_one_of_the_request(pair: tuple[FakeSglang, SglangContract]) -> None:
    fake, contract = pair
    fake.instead["/generate"] = (500, "Internal Server Error")
    with pytest.raises(ComponentError, match="POST /generate answers 500: Internal Server Error"):
        await pieces(contract, request())


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"nan_at": 3}, "log-prob of token 3"),
        ({"spans": False}, "weight_versions"),
        ({"ending": {"type": "preempted"}}, "'preempted'"),
        ({"ending": {"type": "stop", "matched": "NaN happened"}}, "NaN happened"),
        ({"ending": {"type": "stop", "matched": 2}}, "stopped by token 2"),
    ],
)
async def test_what_makes_no_sense_is_an_error_of_its_request_alone(
    pair: tuple[FakeSglang, SglangContract], change: dict[str, Any], words: str
) -> None:
    fake, contract = pair
    for name, value in change.items():
        setattr(fake, name, value)
    piece = await end(contract, request())
    assert piece.finish_reason is FinishReason.ERROR
    assert words in piece.error


async def test_a_connection_that_breaks_in_the_middle_means_that_nobody_answers(
    pair: tuple[FakeSglang, SglangContract],
) -> None:
    fake, contract = pair
    fake.reset_at = 4
    stream = contract.generate(request())
    assert ids([await anext(stream)]) == sampled(2)
    with pytest.raises(ProcessDiedError, match="POST /generate"):
        [piece async for piece in stream]


async def test_nobody_there_means_not_ready_and_every_verb_says_so() -> None:
    async with serving(FakeSglang().app()) as address:
        pass
    contract = SglangContract(Http(address))
    assert not await contract.ready()
    for verb in (contract.identify(), contract.load(), contract.serves(), pieces(contract, request())):
        with pytest.raises(ProcessDiedError, match="the connection broke"):
            await verb
    await contract.close()


async def test_a_paused_server_is_not_ready(pair: tuple[FakeSglang, SglangContract]) -> None:
    fake, contract = pair
    assert await contract.ready()
    fake.paused = "in_place"
    assert not await contract.ready()


async def test_the_release_is_asked_for_and_an_unknown_one_refused(pair: tuple[FakeSglang, SglangContract]) -> None:
    fake, contract = pair
    assert await contract.identify() == "0.5.23"
    fake.info["version"] = "0.5.21"
    with pytest.raises(ConfigError, match=r"0\.5\.21"):
        await contract.identify()
    fake.instead["/server_info"] = (401, {"error": "Unauthorized"})
    with pytest.raises(ComponentError, match="GET /server_info answers 401: Unauthorized"):
        await contract.identify()


async def test_the_load_is_what_the_server_says(pair: tuple[FakeSglang, SglangContract]) -> None:
    fake, contract = pair
    load = await contract.load()
    assert (load.running, load.waiting, load.kv_use) == (3, 2, 0.25)
    fake.instead["/v1/loads?include=core"] = fake.instead["/v1/loads"] = (200, {"loads": "?"})
    with pytest.raises(ComponentError, match="makes no sense"):
        await contract.load()


async def test_an_abort_ends_its_own_request_with_what_it_has_and_no_other(
    pair: tuple[FakeSglang, SglangContract],
) -> None:
    fake, contract = pair
    fake.held_at = 2
    # One name begins the other: the server would take both.
    part, rest = await first_piece(contract, request("g/1"))
    _, others = await first_piece(contract, request("g/11"))
    await contract.abort(["g/1", "nobody"])
    parts = [part, *await rest]
    assert (parts[-1].finish_reason, ids(parts)) == (FinishReason.ABORT, sampled(2))
    assert parts[-1].version_spans == (VersionSpan(0, STARTED_WITH),)
    await fake.let_go()
    assert (await others)[-1].finish_reason is FinishReason.LENGTH
    assert len(fake.bodies("/abort_request")) == 1


async def test_an_abort_before_the_first_piece_never_waits_for_the_server(
    pair: tuple[FakeSglang, SglangContract],
) -> None:
    fake, contract = pair
    fake.tokenizing = True  # the server loses an abort of such a request
    running = asyncio.create_task(pieces(contract, request()))
    await fake.until(lambda: "/generate" in fake.routes)
    await contract.abort(["g/0"])
    (piece,) = await running
    assert (piece.finish_reason, ids([piece])) == (FinishReason.ABORT, [])


async def test_an_abort_that_the_server_refuses_is_an_error(pair: tuple[FakeSglang, SglangContract]) -> None:
    fake, contract = pair
    fake.held_at = 2
    _, rest = await first_piece(contract, request())
    fake.instead["/abort_request"] = (500, {"error": {"message": "no"}})
    with pytest.raises(ComponentError, match="POST /abort_request answers 500: no"):
        await contract.abort(["g/0"])
    await fake.let_go()
    await rest


async def test_no_name_is_used_twice_since_the_server_ends_whatever_has_the_name_of_one_that_is_over(
    pair: tuple[FakeSglang, SglangContract],
) -> None:
    fake, contract = pair
    fake.held_at = 2
    stream = contract.generate(request())
    await anext(stream)
    await stream.aclose()
    await fake.let_go()
    assert ids(await pieces(contract, request())) == sampled(6)
    another = SglangContract(Http(fake.address))
    await pieces(another, request())
    await another.close()
    rids = [body["rid"] for body in fake.bodies("/generate")]
    assert len(set(rids)) == 3
