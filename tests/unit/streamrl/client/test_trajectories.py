"""The Python client's rewards and trajectories against the real gateway and queue, in one process."""

import asyncio
from pathlib import Path

import pytest
from support.gateway.agent_sessions import gateway_of, ids_of
from support.gateway.local_gateway import until
from support.gateway.sent_trajectories import GROUP_SIZE, body, status_of

import streamrl
from streamrl.client import TrajectoryStatus
from streamrl.errors import ComponentError, RequestError


async def test_a_session_is_rewarded_and_its_group_is_told(tmp_path: Path) -> None:
    async with gateway_of(tmp_path) as gateway, streamrl.connect(gateway.url, token=gateway.token()) as client:
        told = []
        for number in range(GROUP_SIZE):
            await ids_of(gateway, f"e:{number}")
            told.append(await client.reward(f"e:{number}", number / 2, group="g"))
        again = await client.reward("e:0", 0.0, group="g")
        with pytest.raises(RequestError, match="already_rewarded"):
            await client.reward("e:0", 0.5, group="g")
        with pytest.raises(RequestError, match="session_not_found"):
            await client.reward("nobody", 0.5)
    assert told[0] == TrajectoryStatus(number=0, state="waiting", group_size=GROUP_SIZE, waiting=1, branches=1, turns=1)
    assert again == TrajectoryStatus(number=0, state="gathered", group_size=GROUP_SIZE, group=0)
    assert told[-1].state == "gathered"


async def test_what_was_made_elsewhere_is_offered_and_what_is_wrong_with_it_is_said(tmp_path: Path) -> None:
    async with gateway_of(tmp_path) as gateway, streamrl.connect(gateway.url, token=gateway.token()) as client:
        assert (await client.offer(body("a"))).state == "waiting"
        with pytest.raises(RequestError, match="empty_trajectory"):
            await client.offer(body("b", turns=[]))
        assert (await status_of(gateway))["trajectories_offered"] == 1


async def test_a_run_that_is_away_is_asked_again_until_patience_ends(tmp_path: Path) -> None:
    async with gateway_of(tmp_path) as gateway:
        gateway.queue.die()  # type: ignore[union-attr]
        async with streamrl.connect(gateway.url, token=gateway.token(), patience_s=0.0) as client:
            with pytest.raises(ComponentError, match="run_not_ready"):
                await client.offer(body())
        async with streamrl.connect(gateway.url, token=gateway.token()) as client:
            offering = asyncio.ensure_future(client.offer(body()))
            counts = gateway.actor._server.config.app._count.__self__
            refused = counts._requests.labels("/api/trajectories", "503")
            await until(lambda: refused._value.get() == 2)
            assert not offering.done()
            gateway.queue._dead.clear()  # type: ignore[union-attr]
            assert (await offering).state == "waiting"


async def test_a_script_rewards_too(tmp_path: Path) -> None:
    async with gateway_of(tmp_path) as gateway:
        await ids_of(gateway, "a")

        def script() -> list[str]:
            with streamrl.connect(gateway.url, token=gateway.token()) as client:
                return [client.reward("a", 1.0).state, client.offer(body("b")).state]

        assert await asyncio.to_thread(script) == ["waiting", "waiting"]
