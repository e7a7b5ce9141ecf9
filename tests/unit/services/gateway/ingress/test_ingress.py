"""Several gateways of one run: what each answers by itself, what one alone keeps, and what the death of one takes."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import torch
from support.gateway.agent_sessions import call, gateway_of, ids_of, reward
from support.gateway.local_gateway import ENDLESS, Direct, LocalGateway, events, local_gateway, until
from support.ingress.local_ingress import LocalIngress, local_ingress

from streamrl.config.schema.run import GatewayConfig
from streamrl.services.gateway.ingress import desk
from streamrl.types import Version
from streamrl.weights.manifest import encode


@asynccontextmanager
async def with_ingresses(gateway: LocalGateway, number: int) -> AsyncIterator[list[tuple[LocalIngress, LocalGateway]]]:
    """Further gateways of a run, each with the same run as its clients see it."""
    async with AsyncExitStack() as stack:
        made = []
        for _ in range(number):
            one = await stack.enter_async_context(local_ingress(gateway.config, gateway.home, gateway.handles))
            made.append((one, replace(gateway, url=one.url, ingress=one)))
        await until(lambda: all(len(one.ingress._pool._routes) == len(gateway.handles) for one, _ in made))
        yield made


def callers(gateway: LocalGateway) -> set[str]:
    """The gateways that a replica was asked by."""
    return {name for replica in gateway.replicas.values() for name in replica._client_requests._callers}


def streaming(gateway: LocalGateway, **headers: str) -> Any:
    """A stream of a completion that does not end."""
    body = {"model": "run", "prompt": "1+1=", "max_tokens": 10**5, "stream": True}
    headers["authorization"] = f"Bearer {gateway.token()}"
    return gateway.http.post(f"{gateway.url}/v1/completions", json=body, headers=headers)


async def test_the_calls_of_a_session_are_one_conversation_whichever_gateway_they_came_through(tmp_path: Path) -> None:
    async with gateway_of(tmp_path, latency_steps=4) as gateway, with_ingresses(gateway, 2) as ((_, one), (_, other)):
        prompt = [1, 2, 3]
        for through in (one, other, gateway, one):
            prompt = [*prompt, *await ids_of(through, "agent", prompt), 5]
        refused, _ = await call(other, "agent", [1], temperature=0.5)
        status, told = await reward(other, "agent")
        again = await reward(one, "agent")
        late, _ = await call(gateway, "agent")
    assert (status, told["turns"], told["branches"]) == (200, 4, 1)
    assert (again[0], again[1]["number"], refused, late) == (200, told["number"], 400, 409)


async def test_a_key_of_a_session_and_a_name_in_metadata_reach_the_same_session(tmp_path: Path) -> None:
    async with gateway_of(tmp_path) as gateway, with_ingresses(gateway, 2) as ((_, one), (_, other)):
        _, begun = await one.ask("/api/sessions", {"session_id": "agent"})
        key = {"authorization": f"Bearer {begun['api_key']}"}
        body = {"model": "run", "prompt": [1, 2, 3], "max_tokens": 4}
        answers = [
            await other.ask("/v1/completions", body, headers=key),
            await one.ask("/v1/completions", {**body, "prompt": [4], "metadata": {"session_id": "agent"}}),
        ]
        _, told = await reward(other, "agent")
    assert [status for status, _ in answers] == [200, 200]
    assert told["branches"] == 2


async def test_a_completion_of_no_session_is_answered_by_the_gateway_that_was_asked(tmp_path: Path) -> None:
    async with local_gateway(tmp_path) as gateway, with_ingresses(gateway, 1) as ((ingress, one),):
        answers = [await one.complete(seed=3), await gateway.complete(seed=3)]
        assert callers(gateway) == {"gateway", ingress.ingress._pool._name}
        assert ingress.ingress._relay._calls == {}
        wrong = [await which.complete(temperature="hot") for which in (one, gateway)]
    texts = [answer["choices"] for _, answer in answers]
    assert texts[0] == texts[1]
    assert wrong[0] == wrong[1]
    assert wrong[0][0] == 400


async def test_a_response_is_named_at_another_gateway_than_the_one_that_gave_it(tmp_path: Path) -> None:
    async with local_gateway(tmp_path) as gateway, with_ingresses(gateway, 2) as ((_, one), (_, other)):
        _, first = await one.ask("/v1/responses", {"model": "run", "input": "1"})
        body = {"model": "run", "input": "2", "previous_response_id": first["id"]}
        status, second = await other.ask("/v1/responses", body)
    assert status == 200, second


async def test_prompts_are_submitted_and_answered_through_any_gateway_while_their_lines_still_come(
    tmp_path: Path,
) -> None:
    settings = GatewayConfig(enabled=True, stream_weights={"train": 0.0})
    said = []
    async with (
        local_gateway(tmp_path, most=6, gateway=settings, trains=True) as gateway,
        with_ingresses(gateway, 1) as ((_, one),),
    ):
        answered = asyncio.Event()

        async def lines() -> AsyncIterator[bytes]:
            yield b'{"key":"a","prompt":"1+1=","payload":{"answer":"2"}}\n'
            await answered.wait()
            yield b'{"key":"b","prompt":"1+2=","payload":{"answer":"3"}}\n'

        headers = {"authorization": f"Bearer {one.token()}"}
        async with one.http.post(f"{one.url}/api/prompts", data=lines(), headers=headers) as response:
            async for line in response.content:
                said.append(json.loads(line))
                if said[-1]["type"] == "finished":
                    answered.set()
    assert [(each["type"], each.get("key")) for each in said] == [
        ("accepted", "a"),
        ("finished", "a"),
        ("accepted", "b"),
        ("finished", "b"),
        ("end", None),
    ]


async def test_weights_come_through_any_gateway_in_pieces_that_wait_for_the_client(tmp_path: Path) -> None:
    async with local_gateway(tmp_path) as gateway, with_ingresses(gateway, 1) as ((_, one),):
        # Behind a header that is a fraction of the window come pieces that are longer than it.
        manifest = gateway.publisher.publish([("w", torch.arange(2.0**21))], Version(0, 2))
        await gateway.store.publish.remote(encode(manifest))
        told = [await which.ask("/api/weights") for which in (gateway, one)]
        assert len(told[0][1]) > 4 * desk.WINDOW
        refused = [await which.ask("/api/weights?version=9.9") for which in (gateway, one)]
    assert told[0] == told[1]
    assert told[0][0] == 200
    assert refused[0] == refused[1]
    assert refused[0][0] == 404


async def test_the_figures_of_a_run_count_what_all_of_its_gateways_answered(tmp_path: Path) -> None:
    async with local_gateway(tmp_path) as gateway, with_ingresses(gateway, 2) as ((_, one), (_, other)):
        for which in (one, other, gateway):
            assert (await which.complete())[0] == 200
        line = 'streamrl_gateway_requests_total{route="/v1/completions",status="200"} 3.0'
        while line not in (await one.ask("/metrics"))[1]:
            pass


async def test_a_gateway_that_dies_takes_its_own_streams_and_no_session(tmp_path: Path) -> None:
    async with (
        gateway_of(tmp_path, **{**ENDLESS, "most": 40, "latency_steps": 20}) as gateway,
        with_ingresses(gateway, 1) as ((_, other),),
    ):
        prompt = [1, 2, 3]
        async with local_ingress(gateway.config, gateway.home, gateway.handles) as dying:
            through = replace(gateway, url=dying.url, ingress=dying)
            await until(lambda: len(dying.ingress._pool._routes) == 1)
            prompt = [*prompt, *await ids_of(through, "agent", prompt), 5]
        prompt = [*prompt, *await ids_of(other, "agent", prompt), 6]
        status, told = await reward(other, "agent")
    assert (status, told["turns"]) == (200, 2)


async def test_what_an_ingress_passed_on_ends_when_it_asks_for_no_news(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(desk, "SILENCE_S", 0.2)
    async with local_gateway(tmp_path, **ENDLESS, trains=False) as gateway:
        home = Direct(gateway.actor)
        async with local_ingress(gateway.config, home, gateway.handles) as ingress:
            one = replace(gateway, url=ingress.url, ingress=ingress)
            async with streaming(one, **{"x-session-id": "agent"}) as response:
                assert response.status == 200, await response.text()
                await gateway.busy()
                home.die()
                with pytest.raises(aiohttp.ClientPayloadError):
                    async for _ in response.content:
                        pass
            await gateway.idle()
            assert gateway.actor._desk.running == 0


class Held(Direct):
    """A handle by which no question for news comes through while `asks` is not set."""

    def __init__(self, actor: Any) -> None:
        super().__init__(actor)
        self.asks = asyncio.Event()
        self.asks.set()

    async def _called(self, name: str, args: tuple[Any, ...]) -> Any:
        if name == "relay_news":
            await self.asks.wait()
        return await super()._called(name, args)


async def test_an_ingress_that_stood_still_breaks_off_what_was_given_up_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(desk, "SILENCE_S", 0.2)
    async with local_gateway(tmp_path, **ENDLESS) as gateway:
        home = Held(gateway.actor)
        async with local_ingress(gateway.config, home, gateway.handles) as ingress:
            one = replace(gateway, url=ingress.url, ingress=ingress)
            async with streaming(one, **{"x-session-id": "agent"}) as response:
                await anext(events(response))
                home.asks.clear()
                await until(lambda: gateway.actor._desk.running == 0)
                home.asks.set()
                with pytest.raises(aiohttp.ClientPayloadError):
                    async for _ in response.content:
                        pass
            answered = await one.ask("/api/versions")
        await gateway.idle()
    assert answered == (200, {"version": "0.1"})


async def test_an_answer_that_another_gateway_had_is_broken_off_and_its_successor_is_asked(tmp_path: Path) -> None:
    async with local_gateway(tmp_path, **ENDLESS) as gateway:
        home = Direct(gateway.actor)
        async with local_ingress(gateway.config, home, gateway.handles) as ingress:
            one = replace(gateway, url=ingress.url, ingress=ingress)
            async with streaming(one, **{"x-session-id": "agent"}) as response:
                await anext(events(response))
                home.die()
                with pytest.raises(aiohttp.ClientPayloadError):
                    async for _ in response.content:
                        pass
            await until(lambda: not ingress.ingress.ready)
            refused = await one.ask("/api/versions")
            ingress.ingress.serve(Direct(gateway.actor), gateway.handles)
            answered = await one.ask("/api/versions")
    assert (refused[0], refused[1]["error"]["code"]) == (503, "run_not_ready")
    assert answered == (200, {"version": "0.1"})
    assert len(ingress.notices) == 1


async def test_a_client_that_goes_away_is_left_by_the_gateway_that_answers_it(tmp_path: Path) -> None:
    async with local_gateway(tmp_path, **ENDLESS) as gateway, with_ingresses(gateway, 1) as ((_, one),):
        async with streaming(one, **{"x-session-id": "agent"}) as response:
            await anext(events(response))
        await gateway.idle()
        await until(lambda: gateway.actor._desk.running == 0)
