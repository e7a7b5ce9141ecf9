"""Who goes on with what a replica owed when it is gone: one that serves no older version than it has."""

import asyncio
from dataclasses import replace
from typing import Any

import numpy as np
import ray

from streamrl.gateway.token_updates import TokenUpdate, given_up
from streamrl.services.gateway.pool import Begun, Pool, Replaced
from streamrl.types import GenerationRequest, SamplingParams, Version


class Replica:
    """Serves `version`; tells the news that a test gives it, and notes what it is asked."""

    def __init__(self, version: Version) -> None:
        self.version = version
        self.asked: list[GenerationRequest] = []
        self.news: asyncio.Queue[list[TokenUpdate] | Exception] = asyncio.Queue()

    def __getattr__(self, method: str) -> Any:
        if method.startswith("_"):
            raise AttributeError(f"{type(self).__name__} has no {method}")
        return type("Method", (), {"remote": lambda _, *told: getattr(self, f"_{method}")(*told)})()

    async def _open_client_requests(self) -> None: ...

    async def _client_updates(self, session: int, gateway: str) -> tuple[Version, list[TokenUpdate]]:
        told = await self.news.get()
        if isinstance(told, Exception):
            raise told
        return self.version, told

    async def _order_client_requests(
        self, session: int, begin: list[GenerationRequest], abort: list[str], gateway: str
    ) -> None:
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
    replica.news.put_nowait([TokenUpdate("r", 0, [5, 6], [-1.0, -0.5], [(0, *replica.version)])])
    await turns()
    assert (await one.updates.get()).token_ids == [5, 6]
    one.shown = shown
    return one


async def test_what_another_replica_goes_on_with_asks_for_all_that_was_asked_for() -> None:
    pool, first, other = Pool(0, 60.0, lambda _: None), Replica(Version(0, 3)), Replica(Version(0, 3))
    pool.serve({"rollout-0": first})
    await turns()
    (one,) = pool.begin([replace(request("r"), top_logprobs=5, prompt_logprobs=True)])
    await turns()
    first.news.put_nowait([TokenUpdate("r", 0, [5, 6], [-1.0, -0.5], [(0, 0, 3)])])
    await turns()
    one.shown = True
    pool.serve({"rollout-0": first, "rollout-1": other})
    other.news.put_nowait([])
    await turns()
    first.news.put_nowait(ray.exceptions.ActorDiedError())
    await turns()
    told = [(again.top_logprobs, again.prompt_logprobs, again.so_far is None) for again in (*first.asked, *other.asked)]
    assert told == [(5, True, True), (5, True, False)]
    await pool.close()


async def test_what_was_shown_waits_for_a_replica_that_serves_its_version() -> None:
    pool, first, other = Pool(0, 60.0, lambda _: None), Replica(Version(0, 3)), Replica(Version(0, 2))
    pool.serve({"rollout-0": first})
    await turns()
    one = await begun(pool, first, shown=True)
    pool.serve({"rollout-0": first, "rollout-1": other})
    other.news.put_nowait([])
    await turns()
    first.news.put_nowait(ray.exceptions.ActorDiedError())
    await turns()
    assert (other.asked, one.updates.empty()) == ([], True)
    other.version = Version(0, 3)
    other.news.put_nowait([])
    await turns()
    (again,) = other.asked
    assert again.so_far.token_ids.tolist() == [5, 6]
    assert again.so_far.version_spans[0].version == Version(0, 3)
    other.news.put_nowait([TokenUpdate("r", 0, [5, 6, 2], [-1.0, -0.5, -0.1], [(0, 0, 3)], "stop")])
    await turns()
    assert (await one.updates.get()).finish_reason == "stop"
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
    assert await one.updates.get() == Replaced("r")
    (again,) = other.asked
    assert again.so_far is None
    await pool.close()


async def test_what_was_shown_ends_when_nobody_goes_on_with_it_in_time() -> None:
    pool, first = Pool(0, 0.0, lambda _: None), Replica(Version(0, 3))
    pool.serve({"rollout-0": first})
    await turns()
    one = await begun(pool, first, shown=True)
    first.news.put_nowait(ray.exceptions.ActorDiedError())
    refusal = await one.updates.get()
    assert (refusal.status, refusal.code) == (502, "replica_died")
    assert pool.running == 0
    await pool.close()


async def test_what_a_replica_gave_up_goes_on_behind_what_had_come() -> None:
    told: list[str] = []
    pool, replica = Pool(0, 60.0, told.append), Replica(Version(0, 3))
    pool.serve({"rollout-0": replica})
    await turns()
    one = await begun(pool, replica, shown=True)
    replica.news.put_nowait([given_up("r"), given_up("of somebody who left")])
    await turns()
    _, again = replica.asked
    assert (again.request_id, again.so_far.token_ids.tolist()) == ("r", [5, 6])
    assert (one.owed, pool._routes._owed) == (7, {"rollout-0": 7})
    assert told == ["rollout-0 was not asked for too long and gave up 2 requests; they go on"]
    replica.news.put_nowait([TokenUpdate("r", 0, [5, 6, 2], [-1.0, -0.5, -0.1], [(0, 0, 3)], "stop")])
    await turns()
    assert (await one.updates.get()).finish_reason == "stop"
    await pool.close()


async def test_a_channel_that_fails_by_a_bug_is_told_and_another_replica_goes_on() -> None:
    told: list[str] = []
    pool, first, other = Pool(0, 60.0, told.append), Replica(Version(0, 3)), Replica(Version(0, 3))
    pool.serve({"rollout-0": first})
    await turns()
    await begun(pool, first, shown=True)
    pool.serve({"rollout-0": first, "rollout-1": other})
    other.news.put_nowait([])
    await turns()
    first.news.put_nowait(TypeError("a bug"))
    await turns()
    assert [one.so_far.token_ids.tolist() for one in other.asked] == [[5, 6]]
    assert len(told) == 1
    assert "rollout-0" in told[0]
    assert "a bug" in told[0]
    await pool.close()


def turn(name: str, conversation: str, prompt: int = 50) -> GenerationRequest:
    ids = np.ones(prompt, np.int32)
    return GenerationRequest(name, ids, 0, SamplingParams(max_new_tokens=20), (2,), conversation=conversation)


async def test_turns_of_a_conversation_stay_on_a_replica_until_it_is_busier_by_more_than_their_prompt_is_worth() -> (
    None
):
    pool, replicas = Pool(0, 60.0, lambda _: None), {name: Replica(Version(0, 3)) for name in "ab"}
    pool.serve(replicas)
    await turns()
    (first,) = pool.begin([turn("0", "talk")])
    pool.leave([first])
    (busy,) = pool.begin([request("1")])
    assert (first.channel, busy.channel) == ("a", "a")
    (second,) = pool.begin([turn("2", "talk")])
    assert second.channel == "a"
    (other,) = pool.begin([turn("3", "another")])
    assert other.channel == "b"
    (third,) = pool.begin([turn("4", "talk", prompt=5)])
    assert third.channel == "b"
    (fourth,) = pool.begin([turn("5", "talk")])
    assert fourth.channel == "b"
    await pool.close()


async def test_a_conversation_whose_replica_is_gone_goes_on_elsewhere() -> None:
    pool, replicas = Pool(0, 60.0, lambda _: None), {name: Replica(Version(0, 3)) for name in "ab"}
    pool.serve(replicas)
    await turns()
    pool.begin([turn("0", "talk")])
    pool.serve({"b": replicas["b"]})
    await turns()
    (second,) = pool.begin([turn("1", "talk")])
    assert second.channel == "b"
    await pool.close()
