"""The SGLang contract against a real server: what is sampled is what transformers says of the same tokens and weights.

One server serves the whole file; the test that breaks it comes last.
"""

import asyncio
import shutil
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from real_models import CONTEXT, furthest, logprobs_of, logprobs_with_old_cache, reference, write_model, write_update
from real_servers import SGLANG_PYTHON, sglang_server
from safetensors.numpy import save_file
from transformers import PreTrainedModel

from streamrl.engines.server.contract import Piece
from streamrl.engines.server.http import Http
from streamrl.engines.server.sglang_contract import SglangContract
from streamrl.errors import ComponentError
from streamrl.types import (
    FinishReason,
    FloatArray,
    GenerationRequest,
    PartialTokens,
    SamplingParams,
    UpdateMode,
    Version,
    VersionSpan,
)
from streamrl.weights.folder import SHM_ROOT

pytestmark = [
    pytest.mark.skipif(not SGLANG_PYTHON.exists(), reason=f"no {SGLANG_PYTHON}: `make engines` makes it"),
    # A server takes one to three minutes to start.
    pytest.mark.timeout(900),
]

CLOSE = 1e-5
RUNNING = 32
PROMPT = (5, 9, 14, 7, 20, 11, 3, 18)


@dataclass(frozen=True)
class Models:
    """folders: of versions 0.0, 0.1, ...; references: their models."""

    folders: list[Path]
    references: list[PreTrainedModel]

    def of(self, version: Version) -> PreTrainedModel:
        return self.references[version.step]


@dataclass(frozen=True)
class Sampled:
    """A completion, whole."""

    prompt: tuple[int, ...]
    ids: list[int]
    logprobs: FloatArray
    spans: tuple[VersionSpan, ...]
    reason: FinishReason
    error: str


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    root = tmp_path_factory.mktemp("models")
    whole = [write_model(root / f"model-{seed}", seed) for seed in range(3)]
    folders = [write_update(root / f"update-{seed}", folder) for seed, folder in enumerate(whole)]
    return Models(folders, [reference(folder) for folder in whole])


@pytest.fixture(scope="module")
def server(models: Models) -> Iterator[Path]:
    """Its socket. When it is over nothing of it is left."""
    shared = set(SHM_ROOT.glob("sglang*"))
    with sglang_server(models.folders[0].parent / "model-0", slots=RUNNING + 4, context=CONTEXT) as socket:
        yield socket
    assert not socket.parent.exists()
    assert set(SHM_ROOT.glob("sglang*")) <= shared


@pytest.fixture
async def contract(server: Path, models: Models) -> AsyncIterator[SglangContract]:
    """With version 0.0, and no request of an earlier test."""
    contract = SglangContract(Http(socket=server))
    await contract.update(models.folders[0], Version(0, 0), UpdateMode.DRAIN)
    yield contract
    await contract.close()


def request(
    request_id: str, *, new: int, prompt: tuple[int, ...] = PROMPT, temperature: float = 1.0, stop: tuple[int, ...] = ()
) -> GenerationRequest:
    sampling = SamplingParams(max_new_tokens=new, temperature=temperature)
    return GenerationRequest(request_id, np.array(prompt, np.int32), 1, sampling, stop)


async def complete(
    contract: SglangContract, one: GenerationRequest, heard: Callable[[Piece], None] = lambda _: None
) -> Sampled:
    pieces = []
    async for piece in contract.generate(one):
        heard(piece)
        pieces.append(piece)
    ids = [int(token) for piece in pieces for token in piece.token_ids]
    logprobs = np.concatenate([piece.logprobs for piece in pieces])
    last = pieces[-1]
    assert last.finish_reason is not None
    prompt = tuple(one.prompt_ids.tolist())
    return Sampled(prompt, ids, logprobs, last.version_spans, last.finish_reason, last.error)


async def under_way(
    contract: SglangContract, requests: list[GenerationRequest], least: int
) -> list["asyncio.Task[Sampled]"]:
    """The requests, each of which has given `least` tokens."""
    counts = dict.fromkeys(range(len(requests)), 0)
    all_there = asyncio.Event()

    def hear(number: int, piece: Piece) -> None:
        counts[number] += len(piece.token_ids)
        if min(counts.values()) >= least:
            all_there.set()

    tasks = [
        asyncio.create_task(complete(contract, one, lambda piece, number=number: hear(number, piece)))
        for number, one in enumerate(requests)
    ]
    await all_there.wait()
    return tasks


def distance(model: PreTrainedModel, one: Sampled, temperature: float = 1.0) -> float:
    return furthest(one.logprobs, logprobs_of(model, one.prompt, one.ids, temperature))


async def test_the_server_says_what_it_is_and_that_it_is_ready_and_only_its_user_reaches_it(
    contract: SglangContract, server: Path
) -> None:
    assert server.parent.stat().st_mode & 0o777 == 0o700
    assert await contract.identify() == "0.5.23"
    assert await contract.ready()
    assert await contract.serves() == Version(0, 0)
    load = await contract.load()
    assert (load.running, load.waiting) == (0, 0)
    assert 0.0 <= load.kv_use <= 1.0


@pytest.mark.parametrize("temperature", [1.0, 0.7])
async def test_log_probs_are_those_of_transformers_at_the_temperature_before_and_after_an_update(
    contract: SglangContract, models: Models, temperature: float
) -> None:
    for version in (Version(0, 0), Version(0, 1)):
        await contract.update(models.folders[version.step], version, UpdateMode.DRAIN)
        requests = [request(f"r/{i}", new=24, prompt=PROMPT[: 2 + i], temperature=temperature) for i in range(6)]
        for one in await asyncio.gather(*(complete(contract, each) for each in requests)):
            assert (one.reason, one.spans) == (FinishReason.LENGTH, (VersionSpan(0, version),))
            assert len(one.ids) == 24
            assert distance(models.of(version), one, temperature) <= CLOSE
            # The check can fail: neither other weights nor another temperature give these numbers.
            assert distance(models.of(Version(0, 2)), one, temperature) > 100 * CLOSE
            assert distance(models.of(version), one, 1.7 - temperature) > 100 * CLOSE


async def test_greedy_tokens_are_the_likeliest_with_their_plain_log_probs(
    contract: SglangContract, models: Models
) -> None:
    one = await complete(contract, request("r/0", new=16, temperature=0.0))
    assert distance(models.references[0], one) <= CLOSE
    again = await complete(contract, request("r/1", new=16, temperature=0.0))
    assert one.ids == again.ids


async def test_tokens_so_far_are_a_part_of_the_prompt(contract: SglangContract, models: Models) -> None:
    known = PartialTokens(
        "r/0", 0, np.array([4, 6], np.int32), np.zeros(2, np.float32), (VersionSpan(0, Version(0, 0)),)
    )
    plain = request("r/0", new=10)
    one = await complete(
        contract,
        GenerationRequest("r/0", plain.prompt_ids, 1, plain.sampling, (), so_far=known),
    )
    assert len(one.ids) == 8
    theirs = logprobs_of(models.references[0], (*PROMPT, 4, 6), one.ids, 1.0)
    assert furthest(one.logprobs, theirs) <= CLOSE


async def test_a_stop_token_ends_a_completion_and_is_its_last_token(contract: SglangContract, models: Models) -> None:
    stops = tuple(range(3, 13))
    one = await complete(contract, request("r/0", new=200, stop=stops))
    assert one.reason is FinishReason.STOP
    assert one.ids[-1] in stops
    assert not set(one.ids[:-1]) & set(stops)
    assert distance(models.references[0], one) <= CLOSE


async def test_a_completion_may_fill_the_context_to_its_last_token(contract: SglangContract, models: Models) -> None:
    one = await complete(contract, request("r/0", new=CONTEXT - len(PROMPT)))
    assert (one.reason, len(one.ids)) == (FinishReason.LENGTH, CONTEXT - len(PROMPT))
    assert distance(models.references[0], one) <= CLOSE


async def test_a_request_that_is_too_long_is_an_error_of_its_own(contract: SglangContract) -> None:
    one = await complete(contract, request("r/0", new=CONTEXT))
    assert one.reason is FinishReason.ERROR
    assert str(CONTEXT + len(PROMPT)) in one.error


@pytest.mark.parametrize("mode", [UpdateMode.KEEP, UpdateMode.RECOMPUTE])
async def test_each_token_sampled_during_updates_has_the_log_prob_of_the_version_that_its_span_names(
    contract: SglangContract, models: Models, mode: UpdateMode
) -> None:
    requests = [request(f"r/{i}", new=150, prompt=PROMPT[: 2 + i % 6]) for i in range(RUNNING)]
    tasks = await under_way(contract, requests, 20)
    await contract.update(models.folders[1], Version(0, 1), mode)
    for one in await asyncio.gather(*tasks):
        assert (one.reason, len(one.ids)) == (FinishReason.LENGTH, 150)
        assert [span.version for span in one.spans] == [Version(0, 0), Version(0, 1)]
        first = one.spans[1].start
        assert 20 <= first < 150
        old, new = models.references[:2]
        before = logprobs_of(old, one.prompt, one.ids[:first], 1.0)
        assert furthest(one.logprobs[:first], before) <= CLOSE
        recomputed = logprobs_of(new, one.prompt, one.ids, 1.0)[first:]
        kept = logprobs_with_old_cache(old, new, one.prompt, one.ids, first, 1.0)
        expected, other = (kept, recomputed) if mode is UpdateMode.KEEP else (recomputed, kept)
        assert furthest(one.logprobs[first:], expected) <= CLOSE
        assert furthest(one.logprobs[first:], other) > 100 * CLOSE


async def test_two_updates_during_one_completion_give_three_spans(contract: SglangContract, models: Models) -> None:
    tasks = await under_way(contract, [request(f"r/{i}", new=200) for i in range(4)], 10)
    await contract.update(models.folders[1], Version(0, 1), UpdateMode.RECOMPUTE)
    await contract.update(models.folders[2], Version(0, 2), UpdateMode.RECOMPUTE)
    for one in await asyncio.gather(*tasks):
        ends = [span.start for span in one.spans[1:]] + [len(one.ids)]
        assert one.spans[-1].version == Version(0, 2)
        for span, stop in zip(one.spans, ends, strict=True):
            theirs = logprobs_of(models.of(span.version), one.prompt, one.ids[:stop], 1.0)[span.start :]
            assert furthest(one.logprobs[span.start : stop], theirs) <= CLOSE


async def test_a_new_request_reads_no_prefix_that_older_weights_computed(
    contract: SglangContract, models: Models
) -> None:
    prompt = tuple(int(token) for token in np.random.default_rng(0).integers(3, 22, 200))
    await complete(contract, request("r/0", new=4, prompt=prompt))
    await contract.update(models.folders[1], Version(0, 1), UpdateMode.KEEP)
    one = await complete(contract, request("r/1", new=30, prompt=prompt))
    assert distance(models.references[1], one) <= CLOSE


async def test_a_request_that_waited_for_an_update_reads_no_prefix_that_older_weights_computed_either(
    contract: SglangContract, server: Path, models: Models
) -> None:
    prompt = tuple(int(token) for token in np.random.default_rng(1).integers(3, 22, 200))
    await complete(contract, request("r/0", new=4, prompt=prompt))
    http = Http(socket=server)
    await http.post("/pause_generation", {"mode": "in_place"})
    waiting = asyncio.create_task(complete(contract, request("r/1", new=30, prompt=prompt)))
    await contract.load()  # it is on its way to the server by this answer
    await contract.update(models.folders[1], Version(0, 1), UpdateMode.KEEP)
    one = await waiting
    assert one.spans == (VersionSpan(0, Version(0, 1)),)
    assert distance(models.references[1], one) <= CLOSE
    await http.close()


async def test_an_abort_ends_its_request_with_what_it_has_and_not_another_whose_name_begins_like_it(
    contract: SglangContract, models: Models
) -> None:
    tasks = await under_way(contract, [request("r/1", new=300), request("r/11", new=60)], 10)
    await contract.abort(["r/1", "unknown"])
    ended, other = await asyncio.gather(*tasks)
    assert ended.reason is FinishReason.ABORT
    assert 10 <= len(ended.ids) < 300
    assert ended.spans == (VersionSpan(0, Version(0, 0)),)
    assert distance(models.references[0], ended) <= CLOSE
    assert (other.reason, len(other.ids)) == (FinishReason.LENGTH, 60)


async def test_requests_that_are_aborted_at_once_end_and_leave_the_server_idle(contract: SglangContract) -> None:
    requests = [request(f"r/{i}", new=300) for i in range(16)]
    tasks = [asyncio.create_task(complete(contract, one)) for one in requests]
    await asyncio.sleep(0)
    await contract.abort([one.request_id for one in requests])
    for one in await asyncio.gather(*tasks):
        assert one.reason is FinishReason.ABORT
    # A drain would wait for what still ran.
    after = await complete(contract, request("r/x", new=5))
    assert len(after.ids) == 5


async def test_weights_of_another_shape_leave_a_server_that_says_that_it_serves_nothing(
    contract: SglangContract, models: Models, tmp_path: Path
) -> None:
    tensors = {"model.norm.weight": np.ones(64, np.float32)}
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(ComponentError):
        await contract.update(tmp_path, Version(0, 9), UpdateMode.KEEP)
    assert await contract.serves() is None
    shutil.rmtree(tmp_path)
