"""Who goes on with what a replica owed when it is gone: one that serves no older version than it has."""

import asyncio
from typing import Any

import numpy as np
import ray

from services.gateway.pool import Begun, Pool, Replaced
from streamrl.gateway.news import News
from streamrl.types import GenerationRequest, SamplingParams, Version


class Replica:
    """Serves `version`; tells the news that a test gives it, and notes what it is asked."""

    def __init__(self, version: Version) -> None:
        self.version = version
        self.asked: list[GenerationRequest] = []
        self.news: asyncio.Queue[list[News] | None] = asyncio.Queue()

    def __getattr__(self, method: str) -> Any:
        return type("Method", (), {"remote": lambda _, *told: getattr(self, f"_{method}")(*told)})()

    async def _open_guests(self) -> None: ...

    async def _guest_news(self, session: int) -> tuple[Version, list[News]]:
        told = await self.news.get()
        if told is None:
            raise ray.exceptions.ActorDiedError
        return self.version, told

    async def _order_guests(self, session: int, begin: list[GenerationRequest], abort: list[str]) -> None:
        self.asked += begin


async def turns() -> None:
    for _ in range(30):
        await asyncio.sleep(0)


def request(name: str) -> GenerationRequest:
    return GenerationRequest(name, np.array([1], np.int32), 0, SamplingParams(max_new_tokens=9), (2,))


async def begun(pool: Pool, replica: Replica, *, shown: bool) -> Begun:
    """A request of which two tokens came, under the replica's version."""
    (one,) = pool.begin([request("r")])
    await turns()
    replica.news.put_nowait([News("r", 0, [5, 6], [-1.0, -0.5], [(0, *replica.version)])])
    await turns()
    assert (await one.words.get()).token_ids == [5, 6]
    one.shown = shown
    return one


async def test_what_was_shown_waits_for_a_replica_that_serves_its_version() -> None:
    pool, first, other = Pool(0, 60.0, lambda _: None), Replica(Version(0, 3)), Replica(Version(0, 2))
    pool.serve({"rollout-0": first})
    await turns()
    one = await begun(pool, first, shown=True)
    pool.serve({"rollout-0": first, "rollout-1": other})
    other.news.put_nowait([])
    await turns()
    first.news.put_nowait(None)
    await turns()
    assert (other.asked, one.words.empty()) == ([], True)
    other.version = Version(0, 3)
    other.news.put_nowait([])
    await turns()
    (again,) = other.asked
    assert again.so_far.token_ids.tolist() == [5, 6]
    assert again.so_far.version_spans[0].version == Version(0, 3)
    other.news.put_nowait([News("r", 0, [5, 6, 2], [-1.0, -0.5, -0.1], [(0, 0, 3)], "stop")])
    await turns()
    assert (await one.words.get()).finish_reason == "stop"
    assert pool.running == 0
    await pool.close()


async def test_what_was_not_shown_begins_anew_on_a_replica_that_is_behind() -> None:
    pool, first, other = Pool(0, 60.0, lambda _: None), Replica(Version(0, 3)), Replica(Version(0, 2))
    pool.serve({"rollout-0": first})
    await turns()
    one = await begun(pool, first, shown=False)
    pool.serve({"rollout-0": first, "rollout-1": other})
    await turns()
    other.news.put_nowait([])
    pool.serve({"rollout-1": other})  # it left
    await turns()
    assert await one.words.get() == Replaced("r")
    (again,) = other.asked
    assert again.so_far is None
    await pool.close()


async def test_what_was_shown_ends_when_nobody_goes_on_with_it_in_time() -> None:
    pool, first = Pool(0, 0.0, lambda _: None), Replica(Version(0, 3))
    pool.serve({"rollout-0": first})
    await turns()
    one = await begun(pool, first, shown=True)
    first.news.put_nowait(None)
    refusal = await one.words.get()
    assert (refusal.status, refusal.code) == (502, "replica_died")
    assert pool.running == 0
    await pool.close()
