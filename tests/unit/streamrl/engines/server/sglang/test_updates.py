"""New weights for an SGLang server: the verbs and their order, and what is left when one of them fails."""

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file
from support.engines.fake_sglang import FakeSglang, fake_sglang, serving
from support.engines.sglang_requests import end, first_piece, ids, pieces, request, sampled

from streamrl.engines.server.http import Http
from streamrl.engines.server.sglang.contract import SglangContract
from streamrl.errors import ComponentError, ProcessDiedError
from streamrl.types import FinishReason, UpdateMode, Version, VersionSpan

FIRST, SECOND = Version(0, 1), Version(0, 2)
PAUSE, UPDATE, INFO, CONTINUE = "/pause_generation", "/update_weights_from_disk", "/model_info", "/continue_generation"


@pytest.fixture
async def pair() -> AsyncIterator[tuple[FakeSglang, SglangContract]]:
    async with fake_sglang() as both:
        yield both


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    save_file({"model.norm.weight": np.ones(4, np.float32)}, tmp_path / "model.safetensors")
    return tmp_path


@pytest.mark.parametrize(
    ("mode", "pause", "flush"),
    [
        (UpdateMode.KEEP, "in_place", False),
        (UpdateMode.RECOMPUTE, "retract", True),
        (UpdateMode.DRAIN, "retract", True),
    ],
)
async def test_an_update_pauses_loads_checks_the_label_and_goes_on(
    pair: tuple[FakeSglang, SglangContract], weights: Path, mode: UpdateMode, pause: str, flush: bool
) -> None:
    fake, contract = pair
    assert await contract.serves() is None
    fake.calls.clear()
    await contract.update(weights, FIRST, mode)
    assert fake.routes == [PAUSE, UPDATE, INFO, CONTINUE]
    assert fake.bodies(PAUSE) == [{"mode": pause}]
    (body,) = fake.bodies(UPDATE)
    assert body == {"model_path": str(weights), "weight_version": "0.1", "flush_cache": flush}
    assert await contract.serves() == FIRST
    assert await contract.ready()


@pytest.mark.parametrize("mode", [UpdateMode.KEEP, UpdateMode.RECOMPUTE])
async def test_an_update_under_a_running_request_shows_in_its_spans(
    pair: tuple[FakeSglang, SglangContract], weights: Path, mode: UpdateMode
) -> None:
    fake, contract = pair
    await contract.update(weights, FIRST, UpdateMode.DRAIN)
    fake.held_at = 3
    part, rest = await first_piece(contract, request())
    await fake.until(lambda: any(len(one.labels) == 3 for one in fake.requests.values()))
    await contract.update(weights, SECOND, mode)
    await fake.let_go()
    parts = [part, *await rest]
    assert ids(parts) == sampled(6)
    assert parts[-1].version_spans == (VersionSpan(0, FIRST), VersionSpan(3, SECOND))


async def test_a_new_version_never_reads_prefixes_that_another_computed(
    pair: tuple[FakeSglang, SglangContract], weights: Path
) -> None:
    fake, contract = pair
    await pieces(contract, request())
    for version in (FIRST, SECOND):
        await contract.update(weights, version, UpdateMode.KEEP)
        await pieces(contract, request())
    assert [body["extra_key"] for body in fake.bodies("/generate")] == ["default", "0.1", "0.2"]


async def test_a_request_that_the_server_has_not_begun_is_sent_again_after_an_update_that_keeps_the_cache(
    pair: tuple[FakeSglang, SglangContract], weights: Path
) -> None:
    fake, contract = pair
    fake.tokenizing = True
    running = asyncio.create_task(pieces(contract, request()))
    await fake.until(lambda: "/generate" in fake.routes)
    await contract.update(weights, FIRST, UpdateMode.KEEP)
    await fake.let_go()
    parts = await running
    assert (ids(parts), parts[-1].version_spans) == (sampled(6), (VersionSpan(0, FIRST),))
    first, second = fake.bodies("/generate")
    assert (first["extra_key"], second["extra_key"]) == ("default", "0.1")
    assert first["rid"] != second["rid"]


async def test_a_request_that_comes_during_an_update_is_sent_after_it_as_one_of_the_new_version(
    pair: tuple[FakeSglang, SglangContract], weights: Path
) -> None:
    fake, contract = pair
    fake.hangs_at = UPDATE
    updating = asyncio.create_task(contract.update(weights, FIRST, UpdateMode.RECOMPUTE))
    await fake.until(lambda: UPDATE in fake.routes)
    running = asyncio.create_task(pieces(contract, request()))
    aborted = asyncio.create_task(pieces(contract, request("g/1")))
    await contract.load()  # both have come as far as they can by its answer
    await contract.abort(["g/1"])
    assert (await aborted)[-1].finish_reason is FinishReason.ABORT
    await fake.let_go()
    await updating
    assert (await running)[-1].version_spans == (VersionSpan(0, FIRST),)
    (body,) = fake.bodies("/generate")
    assert body["extra_key"] == "0.1"


@pytest.mark.parametrize(
    "words",
    [
        {"error": {"message": "bad path"}},
        {"error": "Unauthorized"},
        {"object": "error", "message": "bad field", "type": "Bad Request", "code": 400},
    ],
)
async def test_an_update_that_is_refused_before_it_begins_leaves_the_version_before(
    pair: tuple[FakeSglang, SglangContract], weights: Path, words: Any
) -> None:
    fake, contract = pair
    await contract.update(weights, FIRST, UpdateMode.KEEP)
    fake.instead[UPDATE] = (400, words)
    with pytest.raises(ComponentError, match="update_weights_from_disk answers 400"):
        await contract.update(weights, SECOND, UpdateMode.KEEP)
    assert await contract.serves() == FIRST
    assert (await end(contract, request())).version_spans == (VersionSpan(0, FIRST),)


async def test_an_update_whose_pause_is_refused_leaves_the_version_before(
    pair: tuple[FakeSglang, SglangContract], weights: Path
) -> None:
    fake, contract = pair
    await contract.update(weights, FIRST, UpdateMode.KEEP)
    fake.instead[PAUSE] = (500, {"error": {"message": "no"}})
    with pytest.raises(ComponentError, match="pause_generation answers 500: no"):
        await contract.update(weights, SECOND, UpdateMode.KEEP)
    assert (fake.routes[-1], await contract.serves()) == (CONTINUE, FIRST)


async def test_an_update_that_failed_after_it_began_leaves_a_server_that_samples_nothing_and_says_so(
    pair: tuple[FakeSglang, SglangContract], weights: Path
) -> None:
    fake, contract = pair
    await contract.update(weights, FIRST, UpdateMode.KEEP)
    fake.instead[UPDATE] = (400, {"success": False, "message": "Failed to update weights: shapes differ."})
    with pytest.raises(ComponentError, match=r"shapes differ.*must be ended"):
        await contract.update(weights, SECOND, UpdateMode.KEEP)
    assert fake.paused == "in_place"
    assert await contract.serves() is None
    waiting = asyncio.create_task(pieces(contract, request()))
    await contract.load()  # it has come as far as it can by this answer
    assert "/generate" not in fake.routes
    waiting.cancel()


async def test_the_answer_400_although_the_weights_changed_is_not_taken_for_a_refusal(
    pair: tuple[FakeSglang, SglangContract], weights: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake, contract = pair
    fake.held_at = 2
    _, rest = await first_piece(contract, request())
    # What the contract takes care not to ask for.
    monkeypatch.setattr("streamrl.engines.server.sglang.contract._PAUSES", {UpdateMode.KEEP: ("in_place", True)})
    with pytest.raises(ComponentError, match=r"the cache was not flushed.*must be ended"):
        await contract.update(weights, FIRST, UpdateMode.KEEP)
    assert fake.label == "0.1"
    assert await contract.serves() is None
    rest.cancel()


async def test_a_server_that_goes_on_under_the_old_label_is_not_believed(
    pair: tuple[FakeSglang, SglangContract], weights: Path
) -> None:
    fake, contract = pair
    await contract.update(weights, FIRST, UpdateMode.KEEP)
    fake.stale = True
    with pytest.raises(ComponentError, match=r"as version 0\.2 and says that it serves 0\.1"):
        await contract.update(weights, SECOND, UpdateMode.KEEP)
    assert await contract.serves() is None


async def test_a_server_that_does_not_go_on_is_not_believed(
    pair: tuple[FakeSglang, SglangContract], weights: Path
) -> None:
    fake, contract = pair
    fake.instead[CONTINUE] = (500, {"error": {"message": "stuck"}})
    with pytest.raises(ComponentError, match="continue_generation answers 500: stuck"):
        await contract.update(weights, FIRST, UpdateMode.KEEP)
    assert await contract.serves() is None


async def test_an_update_that_nobody_waits_for_any_more_leaves_its_outcome_unknown(
    pair: tuple[FakeSglang, SglangContract], weights: Path
) -> None:
    fake, contract = pair
    fake.hangs_at = UPDATE
    updating = asyncio.create_task(contract.update(weights, FIRST, UpdateMode.KEEP))
    await fake.until(lambda: UPDATE in fake.routes)
    updating.cancel()
    with pytest.raises(asyncio.CancelledError):
        await updating
    assert await contract.serves() is None


async def test_weights_that_are_not_whole_are_refused_before_anything_happens(
    pair: tuple[FakeSglang, SglangContract], weights: Path
) -> None:
    fake, contract = pair
    file = weights / "model.safetensors"
    os.truncate(file, file.stat().st_size - 4)
    with pytest.raises(ComponentError, match=r"model\.safetensors cannot be read"):
        await contract.update(weights, FIRST, UpdateMode.KEEP)
    os.unlink(file)
    with pytest.raises(ComponentError, match=r"no \.safetensors file"):
        await contract.update(weights, FIRST, UpdateMode.KEEP)
    assert fake.calls == []


async def test_an_update_of_a_server_that_is_gone_says_so_and_leaves_no_version(weights: Path) -> None:
    async with serving(FakeSglang().app()) as address:
        pass
    contract = SglangContract(Http(address))
    with pytest.raises(ProcessDiedError, match="POST /pause_generation"):
        await contract.update(weights, FIRST, UpdateMode.KEEP)
    assert await contract.serves() is None
    await contract.close()
