"""Shared memory has a budget: the learner waits, and says so, until nobody needs an older version."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from support.learner.probe_learner import built, open_run
from support.runs.probe_parts import Handle

from streamrl.config.schema.run import Config, ModelConfig, WeightsConfig
from streamrl.errors import DeadlineError, ResourceError
from streamrl.observability.logs import release
from streamrl.services.learner.actor import LearnerRank
from streamrl.services.run.folder import RunFolder
from streamrl.services.weights.actor import WeightStoreActor
from streamrl.types import Version
from streamrl.weights.folder import shm_folder
from streamrl.weights.manifest import encode
from streamrl.weights.shm.shm import ShmPublisher

V1, V2, V3 = (Version(0, step) for step in (1, 2, 3))
TENSORS = [("w", torch.zeros(1000))]
CONFIG = Config(model=ModelConfig(preset="tiny-qwen3"))


def test_a_version_beyond_the_budget_is_refused_with_the_figures_and_fits_when_another_is_gone(tmp_path: Path) -> None:
    with ShmPublisher("run", b"key" * 11, tmp_path / "weights", byte_budget=8000) as publisher:
        publisher.publish(TENSORS, V1)
        publisher.publish(TENSORS, V2)
        why = r"hold 8,000 bytes, it takes 4,000, and weights.byte_budget is 8,000"
        with pytest.raises(ResourceError, match=rf"version 0\.3 has no room: .*{why}"):
            publisher.publish(TENSORS, V3)
        assert sorted(path.name for path in (tmp_path / "weights").iterdir()) == ["0.1.weights", "0.2.weights"]
        publisher.unlink(V1)
        assert publisher.lack(4000) == ""
        publisher.publish(TENSORS, V3)


def test_versions_of_a_learner_that_died_count_too(tmp_path: Path) -> None:
    ShmPublisher("run", b"key" * 11, tmp_path / "weights").publish(TENSORS, V1)
    with ShmPublisher("run", b"key" * 11, tmp_path / "weights", byte_budget=7999) as publisher:
        assert "hold 4,000 bytes" in publisher.lack(4000)
        publisher.unlink(V1)
        assert publisher.lack(4000) == ""


async def turns() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def published(folder: Path) -> tuple[WeightStoreActor, ShmPublisher]:
    """A store with two versions, the older of which a replica has been given and has not taken up yet."""
    run = open_run(CONFIG, folder)
    store = WeightStoreActor(str(folder), 60.0)
    publisher = ShmPublisher(run.run_id, run.key(), folder / "weights")
    await store.join("rollout-0")
    await store.publish(encode(publisher.publish(TENSORS, V1)))
    await store.newer_than("rollout-0", None)
    assert await store.publish(encode(publisher.publish(TENSORS, V2))) == ([], {})
    return store, publisher


@pytest.mark.parametrize("how", ["acknowledged", "left", "began again"])
async def test_a_version_is_handed_back_the_moment_nobody_needs_it_any_more(how: str, tmp_path: Path) -> None:
    store, publisher = await published(tmp_path)
    gone = asyncio.ensure_future(store.retired())
    await turns()
    assert not gone.done()
    ways = {"left": store.leave, "began again": store.join}
    asks = None
    if how == "acknowledged":
        await store.newer_than("rollout-0", V1)
        await turns()
        assert not gone.done()  # it may serve from that memory, until it serves the next
        asks = asyncio.ensure_future(store.newer_than("rollout-0", V2))
    else:
        await ways[how]("rollout-0")
    async with asyncio.timeout(60):
        assert await gone == [V1]
        await store.close()
        assert asks is None or await asks is None
    publisher.close()


async def test_a_version_that_was_evaluated_is_handed_back_when_the_evaluation_lets_go(tmp_path: Path) -> None:
    store, publisher = await published(tmp_path)
    await store.pin(V1, "evaluation")
    await store.leave("rollout-0")
    gone = asyncio.ensure_future(store.retired())
    await turns()
    assert not gone.done()
    await store.unpin(V1, "evaluation")
    async with asyncio.timeout(60):
        assert await gone == [V1]
    publisher.close()


async def test_who_waits_for_a_version_is_woken_when_the_store_closes(tmp_path: Path) -> None:
    store, publisher = await published(tmp_path)
    gone = asyncio.ensure_future(store.retired())
    await turns()
    await store.close()
    async with asyncio.timeout(60):
        assert await gone == []
    publisher.close()


def test_a_core_says_what_a_further_version_waits_for(tmp_path: Path) -> None:
    with built(CONFIG, tmp_path) as core:
        size = core._versions._version_bytes()
    config = msgspec.structs.replace(CONFIG, weights=WeightsConfig(byte_budget=size * 9 // 4))
    with built(config, tmp_path / "run") as core:
        written = core.publish(core.snapshot_weights())
        assert written is not None
        assert written.manifest.total_bytes <= size
        assert core.lack_of_memory() == ""
        core.incarnation = 1
        core.publish(core.snapshot_weights())
        assert f"weights.byte_budget is {size * 9 // 4:,}" in core.lack_of_memory()
        core.unlink([Version(0, 0)])
        assert core.lack_of_memory() == ""


@asynccontextmanager
async def built_rank(config: Config, run: RunFolder, controller: Handle, **store: Any) -> AsyncIterator[LearnerRank]:
    """Rank 0 of a learner whose model is loaded."""
    handle = Handle(publish=lambda *_: ([], {}), **store)
    rank = LearnerRank(0, str(run.path), msgspec.to_builtins(config), str(run.path / "store"), Handle(), handle)
    threads = torch.get_num_threads()
    try:
        await rank.build(controller)
        yield rank
    finally:
        await rank.close()
        await asyncio.to_thread(rank._compute.shutdown)
        rank._observer.close()
        release()
        torch.set_num_threads(threads)


async def publish(rank: LearnerRank) -> None:
    """A version, to its end."""
    await (await rank._publisher.begin(rank._compute))


async def test_what_an_earlier_learner_left_goes_but_for_what_the_store_still_has(tmp_path: Path) -> None:
    run = open_run(CONFIG, tmp_path / "run")
    async with built_rank(CONFIG, run, Handle(published=lambda _: None), kept=lambda: [Version(0, 0)]) as rank:
        for incarnation in range(3):
            rank._core.incarnation = incarnation
            await publish(rank)  # as of learners that died before the store could hand anything back
        await rank.enter(3)
        assert {path.stem for path in shm_folder(run.run_id).glob("*.weights")} == {"0.0"}


async def waiting(folder: Path, **store: Any) -> tuple[list[str], str]:
    """What is told while the third version of a learner with room for two waits, and how it ended."""
    with built(CONFIG, folder / "size") as core:
        budget = core._versions._version_bytes() * 9 // 4
    config = msgspec.structs.replace(CONFIG, weights=WeightsConfig(byte_budget=budget))
    run = open_run(config, folder / "run")
    told: list[str] = []
    controller = Handle(
        report=lambda events: told.extend(facts["text"] for _, facts in events), published=lambda _: None
    )
    kept = [Version(incarnation, 0) for incarnation in range(3)]
    async with built_rank(config, run, controller, kept=lambda: kept, **store) as rank:
        try:
            for incarnation in range(3):
                await rank.enter(incarnation)
                await publish(rank)
            await rank._flushed()
        except (ResourceError, DeadlineError) as error:
            return told, str(error)
    return told, "published"


async def test_the_learner_waits_for_room_says_so_once_and_goes_on(tmp_path: Path) -> None:
    # What is handed back first is gone already, and gives no room.
    handed_back = iter([[Version(9, 9)], [Version(0, 0)]])
    told, ended = await waiting(tmp_path, retired=lambda: next(handed_back))
    assert ended == "published"
    (text,) = told
    assert text.startswith("version 2.0 waits for shared memory: older versions that are still needed hold ")


async def test_a_learner_that_waits_for_room_in_vain_ends_with_the_figures(tmp_path: Path) -> None:
    _, ended = await waiting(tmp_path, retired=lambda: [])
    assert ended.startswith("weights: version 2.0 has no room: older versions")
