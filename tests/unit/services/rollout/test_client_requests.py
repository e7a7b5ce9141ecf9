"""Requests of clients at a replica: told once and in time, gone with their gateway, and nobody else's business."""

import asyncio
from pathlib import Path

import numpy as np
import pytest
from support.gateway.local_gateway import ENDLESS, LocalGateway, local_gateway, until

from streamrl.errors import FencedError
from streamrl.gateway.token_updates import GIVEN_UP
from streamrl.services.rollout import client_requests
from streamrl.types import GenerationRequest, SamplingParams

PROMPT = np.array([1, 4, 5], np.int32)


def requests(*names: str, most: int = 10**5) -> list[GenerationRequest]:
    return [GenerationRequest(f"guest/{name}", PROMPT, 1, SamplingParams(max_new_tokens=most), (2,)) for name in names]


async def tokens_of(gateway: LocalGateway, session: int, *, until_end: set[str]) -> dict[str, list[int]]:
    """What is told of each request, in order, until these have ended."""
    replica, told, left = gateway.replicas["rollout-0"], {}, set(until_end)
    while left:
        _, news = await replica.client_updates(session)
        for one in news:
            sofar = told.setdefault(one.request_id, [])
            assert one.start <= len(sofar)
            assert one.token_ids[: len(sofar) - one.start] == sofar[one.start :]
            told[one.request_id] = sofar[: one.start] + one.token_ids
            left -= {one.request_id} if one.finish_reason else set()
    return told


async def test_every_token_is_told_and_the_end_tells_all_of_them(tmp_path: Path) -> None:
    async with local_gateway(tmp_path, ready=False, most=100, latency_steps=80, step_s=0.002) as gateway:
        await gateway.take_up(1)
        asked = requests("a", "b", most=60)
        await gateway.replicas["rollout-0"].order_client_requests(7, asked, [])
        told = await tokens_of(gateway, 7, until_end={one.request_id for one in asked})
    assert told["guest/a"] == told["guest/b"]  # of one prompt and seed
    assert len(told["guest/a"]) > 1


async def test_the_first_news_are_told_at_once_and_the_next_ones_not_before_their_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_requests, "WAIT_S", 3600.0)
    monkeypatch.setattr(client_requests, "TELL_S", 3600.0)
    async with local_gateway(tmp_path, ready=False, **ENDLESS) as gateway:
        await gateway.take_up(1)
        replica, clock = gateway.replicas["rollout-0"], asyncio.get_running_loop()
        await replica.order_client_requests(1, requests("a"), [])
        told = [(await replica.client_updates(1))[1]]
        caller = replica._client_requests._callers["gateway"]
        assert caller.next_message > clock.time() + 3000
        caller.next_message = due = clock.time() + 0.2
        told.append((await replica.client_updates(1))[1])
        assert clock.time() >= due
        assert [len(one) > 0 for one in told] == [True, True]
        await replica.order_client_requests(1, [], ["guest/a"])
        await gateway.idle()


async def test_a_later_gateway_ends_what_an_earlier_one_asked_for_and_fences_it(tmp_path: Path) -> None:
    async with local_gateway(tmp_path, ready=False, **ENDLESS) as gateway:
        await gateway.take_up(1)
        replica = gateway.replicas["rollout-0"]
        await replica.order_client_requests(1, requests("old"), [])
        await replica.order_client_requests(2, requests("new"), [])
        assert set(replica._client_requests._running) == {"guest/new"}
        with pytest.raises(FencedError, match="gateway 2 has replaced it"):
            await replica.order_client_requests(1, requests("late"), [])
        await replica.order_client_requests(2, [], ["guest/new"])
        await gateway.idle()


async def test_each_of_several_gateways_hears_of_its_own_requests_alone_and_ends_no_others(tmp_path: Path) -> None:
    async with local_gateway(tmp_path, ready=False, most=100, latency_steps=80, step_s=0.002) as gateway:
        await gateway.take_up(1)
        replica = gateway.replicas["rollout-0"]
        await replica.order_client_requests(3, requests("a", most=20), [])
        await replica.order_client_requests(0, requests("b", most=20), [], "ingress-1")
        told: dict[str, list[str]] = {"gateway": [], "ingress-1": []}
        for name, session in (("gateway", 3), ("ingress-1", 0)):
            while not told[name] or told[name][-1] == "":
                _, news = await replica.client_updates(session, name)
                told[name] += [one.request_id if one.finish_reason else "" for one in news]
        assert [[name for name in names if name] for names in told.values()] == [["guest/a"], ["guest/b"]]
        await replica.order_client_requests(3, requests("c"), [])
        await replica.order_client_requests(0, requests("d"), [], "ingress-1")
        await replica.order_client_requests(4, [], [])
        assert set(replica._client_requests._running) == {"guest/d"}
        await replica.order_client_requests(0, [], ["guest/d"], "ingress-1")
        await gateway.idle()


async def test_gateways_that_are_gone_are_forgotten_where_there_are_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_requests, "SILENCE_S", 0.05)
    monkeypatch.setattr(client_requests, "MOST_GATEWAYS", 2)
    async with local_gateway(tmp_path, ready=False, **ENDLESS) as gateway:
        replica = gateway.replicas["rollout-0"]
        known = replica._client_requests._callers
        await replica.order_client_requests(0, [], [], "first")
        await replica.order_client_requests(0, [], [], "second")
        await until(lambda: all(caller.silence is None for caller in known.values()))
        await replica.order_client_requests(0, [], [], "third")
        assert list(known) == ["second", "third"]


async def test_a_gateway_that_asks_no_more_is_gone_and_its_slots_are_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_requests, "SILENCE_S", 0.05)
    async with local_gateway(tmp_path, ready=False, **ENDLESS) as gateway:
        await gateway.take_up(1)
        replica = gateway.replicas["rollout-0"]
        await replica.order_client_requests(1, requests("a", "b"), [])
        assert len(replica._client_requests) == 2
        await until(lambda: not len(replica._client_requests))
        await gateway.idle()


async def test_a_gateway_that_asks_again_hears_what_was_given_up_whether_it_ran_or_had_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_requests, "SILENCE_S", 3600.0)
    async with local_gateway(tmp_path, ready=False, most=100, latency_steps=80, step_s=0.002) as gateway:
        await gateway.take_up(1)
        replica = gateway.replicas["rollout-0"]
        await replica.order_client_requests(1, requests("whole", most=60), [])
        await until(lambda: not len(replica._client_requests))
        monkeypatch.setattr(client_requests, "SILENCE_S", 0.05)
        await replica.order_client_requests(1, requests("running", most=60), [])
        caller = replica._client_requests._callers["gateway"]
        caller.still()
        replica._client_requests._listen(caller)
        await until(lambda: caller.silence is None)
        monkeypatch.setattr(client_requests, "SILENCE_S", 3600.0)
        told: dict[str, tuple[str, list[int]]] = {}
        while len(told) < 2:
            _, news = await replica.client_updates(1)
            told |= {one.request_id: (one.finish_reason, one.token_ids) for one in news}
        assert told == {"guest/whole": (GIVEN_UP, []), "guest/running": (GIVEN_UP, [])}
        await replica.order_client_requests(1, requests("running", most=60), [])  # as a gateway does that goes on
        assert (await tokens_of(gateway, 1, until_end={"guest/running"}))["guest/running"]
        await gateway.idle()


async def test_client_requests_are_in_no_book_of_the_replica(tmp_path: Path) -> None:
    async with local_gateway(tmp_path, ready=False, **ENDLESS) as gateway:
        await gateway.take_up(1)
        replica = gateway.replicas["rollout-0"]
        await replica.order_client_requests(1, requests("a"), [])
        await replica.client_updates(1)
        status = await replica.status()
        assert (status["guests"], status["running"]) == (1, 1)
        assert (len(replica._rollouts), replica._state.in_flight, replica._writer._waiting) == (0, 0, [])
        assert await asyncio.wait_for(replica._wait_for_capacity(), 1) == 8  # groups, as if it had nothing to do
        await replica.order_client_requests(1, [], ["guest/a"])
        await gateway.idle()
        assert replica._writer._waiting == []
