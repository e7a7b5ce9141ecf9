"""What updates took: told by the replica with its acknowledgement, and given to the learner with its publication."""

import asyncio
from pathlib import Path

import numpy as np
import pytest
import torch
from support.learner.probe_learner import open_run
from support.runs.probe_parts import Handle, with_replica

from streamrl.config import Config
from streamrl.config.schema.rollout import RolloutConfig, SamplingConfig, ScriptedConfig
from streamrl.config.schema.run import ModelConfig
from streamrl.models.load import prepare_model_folder
from streamrl.services.rollout.actor import RolloutReplica
from streamrl.services.run.folder import RunFolder
from streamrl.services.weights.actor import WeightStoreActor
from streamrl.types import GenerationRequest, Version
from streamrl.weights.manifest import encode
from streamrl.weights.shm.shm import ShmPublisher
from streamrl.weights.update_times import UpdateLedger, UpdateTimes

V0, V1, V2 = (Version(0, step) for step in range(3))
TENSORS = [("w", torch.zeros(2))]


def test_the_ledger_gives_mean_and_maximum_of_each_part_once() -> None:
    ledger = UpdateLedger()
    assert ledger.take() == {}
    ledger.add(UpdateTimes(1.0, 0.5, 0.0))
    ledger.add(UpdateTimes(3.0, 0.5, 0.25))
    assert ledger.take() == {
        "weights/updates": 2,
        "weights/transfer_s": 2.0,
        "weights/transfer_max_s": 3.0,
        "weights/load_s": 0.5,
        "weights/load_max_s": 0.5,
        "weights/stall_s": 0.125,
        "weights/stall_max_s": 0.25,
    }
    assert ledger.take() == {}


async def test_the_store_tells_the_learner_what_the_replicas_took_when_it_publishes(tmp_path: Path) -> None:
    run = open_run(Config(model=ModelConfig(preset="tiny-qwen3")), tmp_path)
    store = WeightStoreActor(str(tmp_path), 60.0)
    with ShmPublisher(run.run_id, run.key(), tmp_path / "weights") as publisher:
        manifests = [encode(publisher.publish(TENSORS, version)) for version in (V0, V1, V2)]
        for replica in ("rollout-0", "rollout-1"):
            await store.join(replica)
        assert (await store.publish(manifests[0]))[1] == {}
        for replica in ("rollout-0", "rollout-1"):
            await store.newer_than(replica, None)
        asking = [
            asyncio.create_task(store.newer_than("rollout-0", V0, (1.0, 2.0, 3.0))),
            asyncio.create_task(store.newer_than("rollout-1", V0, (3.0, 2.0, 1.0))),
        ]
        await asyncio.sleep(0)
        figures = (await store.publish(manifests[1]))[1]
        await asyncio.gather(*asking)
        assert (figures["weights/updates"], figures["weights/transfer_s"], figures["weights/stall_max_s"]) == (2, 2, 3)
        assert (await store.publish(manifests[2]))[1] == {}


@pytest.mark.parametrize("busy", [True, False])
def test_a_replica_tells_each_update_once_with_a_stall_where_there_were_requests(busy: bool, tmp_path: Path) -> None:
    prepare_model_folder(ModelConfig(preset="tiny-qwen3"), 0, tmp_path / "model")
    endless = ScriptedConfig(latency_steps=3 * 10**6)
    sampling = SamplingConfig(max_new_tokens=10**7)
    rollout = RolloutConfig(engine="scripted", scripted=endless, sampling=sampling, journal_every_tokens=0)
    config = Config(model=ModelConfig(path=str(tmp_path / "model")), rollout=rollout)

    async def told(replica: RolloutReplica, run: RunFolder) -> list[UpdateTimes | None]:
        heard: list[UpdateTimes | None] = []
        with ShmPublisher(run.run_id, run.key()) as publisher:
            answers = [encode(publisher.publish(TENSORS, V1)), encode(publisher.publish(TENSORS, V2)), None]
            replica._store = Handle(newer_than=lambda name, version, took: (heard.append(took), answers.pop(0))[1])
            if busy:
                request = GenerationRequest("r", np.array([1], np.int32), 0, replica._log.sampling.drawn, ())
                await asyncio.wrap_future(
                    replica._thread.call(lambda engine: (engine.submit([request]), engine.step()))
                )
            await replica._follow_loop()
        return heard

    first, second, third = asyncio.run(with_replica(config, tmp_path / "run", told))
    assert first is None
    for took in (second, third):
        assert took is not None
        assert took.transfer_s >= 0
        assert took.load_s >= took.stall_s
        assert (took.stall_s > 0) == busy
