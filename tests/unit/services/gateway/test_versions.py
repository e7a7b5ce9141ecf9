"""Who waits for a version: told when it is there, after a bounded time anyhow, and by one call to the store."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
import torch
from support.gateway.local_gateway import Direct, local_gateway, until
from support.learner.probe_learner import open_run

from streamrl.config import Config
from streamrl.gateway.refusal import Refusal
from streamrl.services.gateway.versions import VersionService
from streamrl.services.weights.actor import WeightStoreActor
from streamrl.types import Version
from streamrl.weights.manifest import encode
from streamrl.weights.shm.shm import ShmPublisher


class Store(WeightStoreActor):
    """Counts the calls of those who only look."""

    looks = 0

    async def newer_step(self, version: Version | None) -> Version | None:
        self.looks += 1
        return await super().newer_step(version)


async def publish(store: Store, publisher: ShmPublisher, version: Version) -> None:
    await store.publish(encode(publisher.publish([("w", torch.zeros(2))], version)))


async def test_however_many_wait_the_store_is_asked_once_for_each_version(tmp_path: Path) -> None:
    run = open_run(Config(), tmp_path)
    store = Store(str(run.path), 60.0)
    service = VersionService(Direct(store))
    with ShmPublisher(run.run_id, run.key()) as publisher:
        waiting = [asyncio.ensure_future(service.newest(after)) for after in (-1, 0, 1) for _ in range(20)]
        await publish(store, publisher, Version(0, 1))
        await until(lambda: sum(one.done() for one in waiting) == 40)
        await publish(store, publisher, Version(0, 2))
        told = await asyncio.gather(*waiting)
        await until(lambda: store.looks == 3)
        assert told == [Version(0, 1)] * 40 + [Version(0, 2)] * 20
        # After a resume the newest version may be of a lower step: it is told, and who wants more waits on.
        late = asyncio.ensure_future(service.newest(2))
        await publish(store, publisher, Version(1, 1))
        await until(lambda: store.looks == 4)
        assert not late.done()
        await publish(store, publisher, Version(1, 3))
        assert await late == Version(1, 3)
    await store.close()
    await service.close()


async def test_a_question_is_held_for_a_bounded_time(tmp_path: Path) -> None:
    run = open_run(Config(), tmp_path)
    store = Store(str(run.path), 60.0)
    service = VersionService(Direct(store), hold_s=0.01)
    assert await service.newest(0) is None
    with ShmPublisher(run.run_id, run.key()) as publisher:
        await publish(store, publisher, Version(0, 1))
        assert await service.newest(0) == Version(0, 1)
        assert await service.newest(1) == Version(0, 1)
    await service.close()


@pytest.mark.parametrize("how", ["closed", "dead"])
async def test_when_the_store_is_gone_whoever_waits_is_told(how: str, tmp_path: Path) -> None:
    run = open_run(Config(), tmp_path)
    store = Store(str(run.path), 60.0)
    handle = Direct(store)
    service = VersionService(handle)
    waiting = asyncio.ensure_future(service.newest(0))
    await until(lambda: store.looks == 1)
    if how == "closed":
        await store.close()
    else:
        handle.die()
    with pytest.raises(Refusal, match="run_not_ready"):
        await waiting
    with pytest.raises(Refusal, match="run_not_ready"):
        await service.newest(0)


@pytest.mark.parametrize("after", ["x", "-2", "1.5", "", str(2**63), "1e3"])
async def test_a_step_is_a_number(after: str, tmp_path: Path) -> None:
    async with local_gateway(tmp_path) as gateway:
        status, answer = await gateway.ask(f"/api/versions?after={after}")
        assert (status, answer["error"]["code"], answer["error"]["param"]) == (400, "invalid_value", "query.after")


async def test_the_newest_version_is_told_by_its_name(tmp_path: Path) -> None:
    async with local_gateway(tmp_path) as gateway:
        assert await gateway.ask("/api/versions") == (200, {"version": "0.1"})
        asking: asyncio.Task[Any] = asyncio.create_task(gateway.ask("/api/versions?after=1"))
        await until(lambda: gateway.actor._versions._listening is not None)
        await gateway.take_up(2)
        assert await asking == (200, {"version": "0.2"})
