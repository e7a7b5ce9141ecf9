"""The Python client against the real gateway, queue, replica and reward stage, in one process."""

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from support.gateway.local_gateway import ENDLESS, LocalGateway, local_gateway, until
from support.gateway.submitted_prompts import GROUP_SIZE, gateway_of

import streamrl
from streamrl.client import Client, Result
from streamrl.config.estimates.resources import Problem
from streamrl.errors import (
    ComponentError,
    DeadlineError,
    DroppedError,
    RequestError,
    ResourceError,
    RunFolderError,
)
from streamrl.gateway.auth import Scope
from streamrl.services.run import scaling
from streamrl.types import Version


def connected(gateway: LocalGateway, **options):
    return streamrl.connect(gateway.url, token=gateway.token(), **options)


def ask(number: int) -> dict[str, str]:
    return {"key": f"k{number}", "prompt": f"{number}+1=", "answer": str(number + 1)}


async def test_a_submitted_prompt_comes_back_with_its_rollouts(tmp_path: Path) -> None:
    async with gateway_of(tmp_path) as gateway, connected(gateway) as client:
        result = await client.submit(ask(3))
        with pytest.raises(DroppedError, match="reward_failed"):
            await client.submit("1+1=")  # without an answer it cannot be scored
    assert isinstance(result, Result)
    assert (result.key, len(result.rollouts or [])) == ("k3", GROUP_SIZE)
    rollout = (result.rollouts or [])[0]
    assert rollout.versions == [Version(0, 1)]
    assert len(rollout.token_ids) == len(rollout.logprobs)
    assert set(result.rewards) <= {0.0, 1.0}


async def test_a_stream_gives_each_as_it_finishes_and_takes_any_kind_of_iterator(tmp_path: Path) -> None:
    async def later() -> AsyncIterator[dict[str, str]]:
        for number in range(5):
            await asyncio.sleep(0)
            yield ask(number)

    async with gateway_of(tmp_path) as gateway, connected(gateway) as client:
        keys = [one.key async for one in client.stream(later(), ahead=2)]
        again = [one.key async for one in client.stream([ask(number) for number in range(5)])]
        issued = (await gateway.queue.status.remote())["groups_issued"]  # type: ignore[union-attr]
    assert sorted(keys) == sorted(again) == [f"k{number}" for number in range(5)]
    assert issued == 5, "what was answered is answered again, not generated again"


async def test_no_more_is_submitted_than_the_loop_takes(tmp_path: Path) -> None:
    taken = []

    def counted():
        for number in range(20):
            taken.append(number)
            yield ask(number)

    async with gateway_of(tmp_path) as gateway, connected(gateway) as client:
        stream = client.stream(counted(), ahead=3)
        await anext(stream)
        await until(lambda: len(client._uplinks["clients"]._open) == 0)
        for _ in range(100):
            await asyncio.sleep(0)
        assert len(taken) <= 4
        await stream.aclose()


async def test_leaving_a_stream_cancels_what_has_not_finished(tmp_path: Path) -> None:
    async with gateway_of(tmp_path, **ENDLESS) as gateway, connected(gateway) as client:
        stream = client.stream([ask(0), ask(1)])
        waiting = asyncio.ensure_future(anext(stream))
        replica = gateway.replicas["rollout-0"]
        await until(lambda: len(replica._rollouts) == 2 * GROUP_SIZE)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        await stream.aclose()
        await until(lambda: not len(replica._rollouts))


async def test_dropped_prompts_are_passed_over_or_given_as_errors(tmp_path: Path) -> None:
    async with gateway_of(tmp_path, **ENDLESS) as gateway, connected(gateway) as client:
        future = client.submit(ask(0))
        await until(lambda: len(gateway.replicas["rollout-0"]._rollouts) == GROUP_SIZE)
        assert await client.cancel(["k0"]) == 1
        with pytest.raises(DroppedError, match=r"'k0' will not be trained: cancelled"):
            await future
        assert [one async for one in client.stream([ask(0)])] == []
        (error,) = [one async for one in client.stream([ask(0)], dropped=True)]
        assert isinstance(error, DroppedError)


async def test_a_broken_connection_is_made_again_and_nothing_is_generated_twice(tmp_path: Path) -> None:
    async with gateway_of(tmp_path, latency_steps=40, step_s=0.01) as gateway, connected(gateway) as client:
        futures = [client.submit(ask(number)) for number in range(3)]
        await until(lambda: len(gateway.replicas["rollout-0"]._rollouts) == 3 * GROUP_SIZE)
        for transport in [one.transport for one in gateway.actor._server.server_state.connections]:
            transport.abort()
        results = await asyncio.gather(*futures)
        issued = (await gateway.queue.status.remote())["groups_issued"]  # type: ignore[union-attr]
    assert [one.key for one in results] == ["k0", "k1", "k2"]
    assert issued == 3


async def test_what_the_gateway_refuses_is_a_typed_error_with_its_code(tmp_path: Path) -> None:
    async with gateway_of(tmp_path) as gateway, connected(gateway) as client:
        with pytest.raises(RequestError, match="context_length_exceeded") as caught:
            await client.submit("1" * 60)
        assert caught.value.code == "context_length_exceeded"
        assert (await client.submit(ask(1))).key == "k1", "the others go on"
        with pytest.raises(RequestError, match="unknown_prompt"):
            await client.cancel(["nobody"])
        for wrong in (3, {"answer": "2"}, {"prompt": "1", "key": 3}, {"prompt": "1", "x": object()}):
            with pytest.raises(RequestError):
                client.submit(wrong)  # type: ignore[arg-type]
        with pytest.raises(RequestError, match="at least one"):
            await anext(client.stream([], ahead=0))
        with pytest.raises(RequestError, match="many prompts"):
            await anext(client.stream("1+1="))
        async with streamrl.connect(gateway.url, token="srl-wrong") as stranger:
            with pytest.raises(RequestError, match="invalid_api_key"):
                await stranger.submit("1+1=")


async def test_samples_and_status(tmp_path: Path) -> None:
    async with gateway_of(tmp_path) as gateway, connected(gateway) as client:
        samples = await client.sample("1+1=", n=3, max_tokens=4)
        assert len(samples) == 3
        assert {len(one.token_ids) == len(one.logprobs) for one in samples} == {True}
        assert (await client.status())["steps"] == 3
        with pytest.raises(RequestError, match="unknown_parameter"):
            await client.sample("1+1=", nonsense=1)


async def test_a_run_is_scaled_and_what_it_cannot_be_is_a_typed_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with local_gateway(tmp_path, owned=True) as gateway, connected(gateway) as client:
        assert await client.scale(rollout=2) == {"rollout": 2, "before": 1}
        assert await client.scale(rollout=1, reward=2) == {
            "rollout": 1,
            "reward": 2,
            "before": {"rollout": 2, "reward": 1},
        }
        for parts, wanted in (({"rollout": 0}, "invalid_value"), ({"learner": 2}, "unknown_part"), ({}, "missing")):
            with pytest.raises(RequestError, match=wanted):
                await client.scale(**parts)
        lack = Problem(key="rollout.replicas", what="too little")
        monkeypatch.setattr(scaling, "check_growth", lambda before, after: [lack])  # a machine with less
        with pytest.raises(ResourceError, match="not_enough_resources"):
            await client.scale(rollout=3)
        assert gateway.owner is not None
        gateway.owner.starts_again()
        with pytest.raises(ComponentError, match="run_not_ready"):
            await client.scale(rollout=1)
        async with streamrl.connect(gateway.url, token=gateway.token(Scope.SUBMIT)) as stranger:
            with pytest.raises(RequestError, match="insufficient_scope"):
                await stranger.scale(rollout=2)


async def test_a_version_is_waited_for_until_it_is_published(tmp_path: Path) -> None:
    async with local_gateway(tmp_path) as gateway, connected(gateway) as client:
        assert await client.wait_for_version(0) == await client.wait_for_version(1) == Version(0, 1)
        waiting = asyncio.ensure_future(client.wait_for_version(3))
        await gateway.take_up(2)
        with pytest.raises(DeadlineError, match=r"no version of step 3 within 0\.01 s"):
            await client.wait_for_version(3, timeout_s=0.01)
        assert not waiting.done()
        await gateway.take_up(4)
        assert await waiting == Version(0, 4)
        with pytest.raises(RequestError, match=r"query\.after"):
            await client.wait_for_version(-5)


async def test_a_run_that_is_away_is_waited_for_before_a_wait_for_a_version_fails(tmp_path: Path) -> None:
    async with local_gateway(tmp_path) as gateway, connected(gateway, patience_s=0.05) as client:
        gateway.store.die()
        with pytest.raises(ComponentError, match="run_not_ready"):
            await client.wait_for_version(9)


async def test_a_run_that_does_not_answer_is_told_after_a_while(tmp_path: Path, unused_tcp_port: int) -> None:
    async with streamrl.connect(f"http://127.0.0.1:{unused_tcp_port}", token="t", patience_s=0.2) as client:
        with pytest.raises(ComponentError, match="does not answer since"):
            await client.submit("1+1=")
        with pytest.raises(ComponentError, match="the gateway does not answer"):
            await client.status()


async def test_a_folder_that_is_no_run_or_has_no_gateway_is_said_so(tmp_path: Path) -> None:
    async with streamrl.connect(tmp_path) as client:
        with pytest.raises(RunFolderError, match="is no run folder"):
            await client.submit("1+1=")
    (tmp_path / "run.json").write_text(json.dumps({"launch": None}))
    async with streamrl.connect(tmp_path) as client:
        with pytest.raises(ComponentError, match="has no gateway at the moment"):
            await client.status()
    async with streamrl.connect("http://127.0.0.1:1") as client:
        with pytest.raises(RunFolderError, match="give the token"):
            await client.status()


async def test_a_folder_says_where_the_gateway_is_and_its_token(tmp_path: Path) -> None:
    async with gateway_of(tmp_path) as gateway:
        folder = tmp_path / "somewhere"
        folder.mkdir()
        (folder / "run.json").write_text(json.dumps({"launch": {"gateway": gateway.url}}))
        (folder / "gateway-token").write_text(gateway.token())
        async with streamrl.connect(folder) as client:
            assert (await client.submit(ask(1))).key == "k1"


async def test_closing_leaves_nobody_waiting(tmp_path: Path) -> None:
    async with gateway_of(tmp_path, **ENDLESS) as gateway:
        async with connected(gateway) as client:
            future = client.submit(ask(0))
            await until(lambda: len(gateway.replicas["rollout-0"]._rollouts) == GROUP_SIZE)
        with pytest.raises(ComponentError, match="was closed"):
            await future


async def test_a_script_waits_for_results_without_a_loop_of_its_own(tmp_path: Path) -> None:
    def script(url: str, token: str) -> list[str]:
        with streamrl.connect(url, token=token) as client:
            futures = [client.submit(ask(number)) for number in range(2)]
            assert len(client.sample("1+1=", n=2)) == 2
            assert client.status()["steps"] == 3
            assert client.wait_for_version(1, timeout_s=30) == Version(0, 1)
            with pytest.raises(RequestError, match="unknown_part"):
                client.scale(learner=1)
            return [future.result(timeout=30).key for future in futures]

    async with gateway_of(tmp_path) as gateway:
        assert await asyncio.to_thread(script, gateway.url, gateway.token()) == ["k0", "k1"]


def test_the_client_needs_neither_torch_nor_ray_nor_arrow_nor_a_web_server() -> None:
    heavy = "torch ray pyarrow fastapi pydantic transformers tokenizers uvicorn"
    code = f"import sys, streamrl; streamrl.connect; print([one for one in {heavy.split()!r} if one in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_the_package_says_that_it_is_typed() -> None:
    assert (Path(streamrl.__file__).parent / "py.typed").exists()
    assert Client.submit.__annotations__["return"] == "asyncio.Future[Result]"
