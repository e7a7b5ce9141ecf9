"""A replica's shell: when it says that it serves a version, and what it does with a result that is not finite."""

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import ray
import torch
from support.learner.probe_learner import finished
from support.runs.probe_parts import Handle, with_replica

from streamrl.config import Config
from streamrl.config.schema.rollout import RolloutConfig
from streamrl.config.schema.run import ModelConfig, QueueConfig
from streamrl.errors import DataError, DeadlineError, FencedError, ProcessDiedError, ResourceError, StreamRLError
from streamrl.models.load import prepare_model_folder
from streamrl.services.rollout.actor import RolloutReplica
from streamrl.services.run.folder import RunFolder
from streamrl.services.weights.node import NodeSlot
from streamrl.types import FinishReason, GenerationResult, Version
from streamrl.weights.manifest import WeightManifest
from streamrl.weights.shm.shm import ShmPublisher


@pytest.fixture
def config(tmp_path: Path) -> Config:
    prepare_model_folder(ModelConfig(preset="tiny-qwen3"), 0, tmp_path / "model")
    return Config(
        model=ModelConfig(path=str(tmp_path / "model")),
        rollout=RolloutConfig(engine="scripted"),
        queue=QueueConfig(durability="memory", segment_bytes=2**20),
    )


def published(publisher: ShmPublisher, step: int) -> WeightManifest:
    return publisher.publish([("w", torch.full((2,), float(step)))], Version(0, step))


async def seen_by_the_queue(replica: RolloutReplica, run: RunFolder) -> list[tuple[Version, Version, bool]]:
    """(version told, version of the engine, routable) at each word to the queue, over two versions."""
    seen: list[Any] = []

    def serving(name: str, epoch: int, version: Version) -> None:
        engine = replica._thread.call(lambda one: one.version).result(20.0)
        seen.append((Version(*version), engine, replica._routable.is_set()))

    replica._queue = Handle(serving=serving)
    with ShmPublisher(run.run_id, run.key()) as publisher:
        for step in (1, 2):
            await replica._take_up(published(publisher, step))
    return seen


def test_invariant_6_the_queue_hears_of_a_version_once_the_engine_answers_under_it(config, tmp_path) -> None:
    seen = asyncio.run(with_replica(config, tmp_path / "run", seen_by_the_queue))
    first, second = Version(0, 1), Version(0, 2)
    assert seen == [(first, first, False), (second, second, True)]


@pytest.mark.parametrize(
    ("change", "error"),
    [({"signature": "0" * 64}, DataError), ({"run_id": "another"}, DataError), ({"version": Version(0, 9)}, DataError)],
)
def test_invariant_6_a_version_that_is_not_verified_is_not_served(config, tmp_path, change, error) -> None:
    async def refuse(replica: RolloutReplica, run: RunFolder) -> tuple[str, Version, bool]:
        with ShmPublisher(run.run_id, run.key()) as publisher:
            manifest = msgspec.structs.replace(published(publisher, 1), **change)
            with pytest.raises(error):
                await replica._take_up(manifest)
        engine = await asyncio.wrap_future(replica._thread.call(lambda one: one.version))
        return engine, replica._routable.is_set()

    assert asyncio.run(with_replica(config, tmp_path / "run", refuse)) == (Version(-1, -1), False)


def test_invariant_6_a_replica_takes_no_version_that_is_no_newer(config, tmp_path) -> None:
    async def go_back(replica: RolloutReplica, run: RunFolder) -> Version:
        with ShmPublisher(run.run_id, run.key()) as publisher:
            old = published(publisher, 1)
            await replica._take_up(published(publisher, 2))
            with pytest.raises(StreamRLError, match="only go up"):
                await replica._take_up(old)
        return await asyncio.wrap_future(replica._thread.call(lambda one: one.version))

    assert asyncio.run(with_replica(config, tmp_path / "run", go_back)) == Version(0, 2)


def test_invariant_12_a_result_that_is_not_finite_reaches_the_log_as_an_error_without_tokens(config, tmp_path) -> None:
    async def collect(replica: RolloutReplica, run: RunFolder) -> list[GenerationResult]:
        good = finished(0, 1)
        bad = good.result
        for name, result in (("good", bad), ("bad", None)):
            replica._rollouts._running.issue(name, good.issued)
            logprobs = bad.logprobs.copy()
            if result is None:
                logprobs[1] = np.inf
            replica._state.in_flight += 1
            ended = GenerationResult(name, bad.token_ids, logprobs, bad.version_spans, FinishReason.STOP)
            replica._collect([ended], idle=False)
        return [one.result for one in replica._writer._waiting]

    async def serve_and_collect(replica: RolloutReplica, run: RunFolder) -> list[GenerationResult]:
        with ShmPublisher(run.run_id, run.key()) as publisher:
            await replica._take_up(published(publisher, 1))
        return await collect(replica, run)

    good, bad = asyncio.run(with_replica(config, tmp_path / "run", serve_and_collect))
    assert (good.finish_reason, len(good.token_ids)) == (FinishReason.STOP, 3)
    assert (bad.finish_reason, len(bad.token_ids)) == (FinishReason.ERROR, 0)
    assert "non-finite log-prob inf at token 1 from rollout-0 under version 0." in bad.error


def test_a_replica_asks_for_groups_only_when_a_quarter_of_its_slots_is_free(config, tmp_path) -> None:
    async def room(replica: RolloutReplica, run: RunFolder) -> list[int]:
        rooms = [await replica._wait_for_capacity()]
        for number in range(48):
            replica._rollouts._running.issue(str(number), finished(0, 0).issued)
        rooms.append(await replica._wait_for_capacity())
        replica._rollouts._running.issue("one more", finished(0, 0).issued)
        waiting = asyncio.ensure_future(replica._wait_for_capacity())
        await asyncio.sleep(0)
        assert not waiting.done()
        replica._rollouts._running.ended("0")
        replica._news.set()
        return [*rooms, await waiting]

    assert asyncio.run(with_replica(config, tmp_path / "run", room)) == [8, 2, 2]


def test_a_fenced_replica_hears_it_from_the_queue(config, tmp_path) -> None:
    def refuse(*_: Any) -> None:
        raise FencedError("rollout-0 acts under epoch 0, but epoch 1 has replaced it")

    async def write(replica: RolloutReplica, run: RunFolder) -> None:
        replica._queue = Handle(accept=refuse, pause=lambda: "")
        await replica._writer._write([finished(0, 0)], 0)

    with pytest.raises(FencedError, match="epoch 1 has replaced it"):
        asyncio.run(with_replica(config, tmp_path / "run", write))


@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (DeadlineError("rendezvous of version 0.1 with the run's node took longer than 60 s"), ProcessDiedError),
        (DataError("version 0.1: tensor 'w' has digest 1"), ProcessDiedError),
        (ResourceError("no room"), ResourceError),
    ],
)
def test_a_replica_to_whose_node_no_version_comes_may_be_started_again(config, tmp_path, error, raised) -> None:
    def fetch_version(manifest: bytes) -> None:
        raise ray.exceptions.RayTaskError("fetch_version", "", error).as_instanceof_cause()

    async def fetch(replica: RolloutReplica, run: RunFolder) -> str:
        replica._slot = NodeSlot("b", str(run.path), Handle(fetch_version=fetch_version))
        with ShmPublisher(run.run_id, run.key()) as publisher, pytest.raises(raised) as caught:
            await replica._take_up(published(publisher, 1))
        return str(caught.value)

    said = asyncio.run(with_replica(config, tmp_path / "run", fetch))
    assert raised is ResourceError or str(error) in said
