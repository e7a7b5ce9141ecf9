"""vLLM's contract: what is asked of it, what its answers mean, which releases are spoken to."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.engines.fake_vllm import METRICS, FakeVllm

from streamrl.engines.server.http import Http
from streamrl.engines.server.process.private_folder import make_private_folder, remove_private_folder
from streamrl.engines.server.vllm import answers as vllm_answers
from streamrl.engines.server.vllm.contract import VllmContract
from streamrl.errors import ComponentError, ConfigError, ProcessDiedError
from streamrl.types import GenerationRequest, SamplingParams, ServerLoad, Version


def asked(fake: FakeVllm, ask: Callable[[VllmContract], Awaitable[Any]]) -> Any:
    """The answer to one question."""
    folder = make_private_folder("streamrl-test")

    async def run() -> Any:
        contract = VllmContract(Http(socket=folder / "socket"))
        try:
            return await ask(contract)
        finally:
            await contract.close()

    try:
        with fake.served(folder / "socket"):
            return asyncio.run(run())
    finally:
        remove_private_folder(folder)


@pytest.mark.parametrize("version", ["0.32.0", "0.32.0+cpu", "0.32.1.dev5+gabc"])
def test_the_known_release_is_spoken_to(version: str) -> None:
    fake = FakeVllm()
    fake.version = version
    assert asked(fake, lambda contract: contract.identify()) == version


@pytest.mark.parametrize("version", ["0.31.9", "0.33.0", "1.32.0", "", "None"])
def test_any_other_release_is_refused_by_name(version: str) -> None:
    fake = FakeVllm()
    fake.version = version
    with pytest.raises(ConfigError, match=rf"this is vLLM '{version}', and 0\.32 is spoken here"):
        asked(fake, lambda contract: contract.identify())


def test_a_paused_server_is_not_ready_and_nobody_there_is_neither() -> None:
    fake = FakeVllm()
    assert asked(fake, lambda contract: contract.ready()) is True
    fake.paused = True
    assert asked(fake, lambda contract: contract.ready()) is False

    async def nobody() -> bool:
        contract = VllmContract(Http(socket=Path("/nowhere/socket")))
        try:
            return await contract.ready()
        finally:
            await contract.close()

    assert asyncio.run(nobody()) is False


@pytest.mark.parametrize(
    ("label", "held", "serves"),
    [
        ("default", ["default"], Version(-1, -1)),
        ("3.14", ["3.14", "3.14"], Version(3, 14)),
        ("3.14", ["3.14", "3.13"], None),
        ("3.14", ["3.14", None], None),
        ("theirs", ["theirs"], None),
    ],
)
def test_a_version_serves_when_all_workers_hold_what_the_label_names(
    label: str, held: list[str | None], serves: Version | None
) -> None:
    fake = FakeVllm()
    fake.label, fake.held = label, held
    assert asked(fake, lambda contract: contract.serves()) == serves


def test_the_load_is_summed_over_the_servers_engines() -> None:
    assert asked(FakeVllm(), lambda contract: contract.load()) == ServerLoad(running=3, waiting=2, kv_use=0.25)
    two = METRICS + METRICS.replace('engine="0"', 'engine="1"')
    assert vllm_answers.read_load(two).running == 6
    with pytest.raises(ComponentError, match="no vllm:num_requests_waiting"):
        vllm_answers.read_load(METRICS.replace("num_requests_waiting", "queue"))


def test_two_servers_never_share_a_salt() -> None:
    request = GenerationRequest("r", np.array([1], np.int32), 0, SamplingParams(), ())
    bodies = [VllmContract(Http("http://127.0.0.1:1"))._body(request, "r") for _ in range(2)]
    assert bodies[0]["cache_salt"] != bodies[1]["cache_salt"]


def test_a_server_of_another_machine_is_never_spoken_to() -> None:
    for endpoint in ("http://10.0.0.1:80", "http://example.org:80", "https://127.0.0.1:80", "http://127.0.0.1"):
        with pytest.raises(ConfigError, match=r"rollout\.server\.endpoint"):
            Http(endpoint)


def test_a_broken_connection_names_the_route() -> None:
    async def ask() -> None:
        http = Http("http://127.0.0.1:1")
        try:
            await http.get("/version")
        finally:
            await http.close()

    with pytest.raises(ProcessDiedError, match=r"^GET /version: the connection broke \(ClientConnectorError"):
        asyncio.run(ask())


def test_a_connection_that_the_server_keeps_is_not_used_again() -> None:
    """It may be closing just then: the request would look like one to a server that died."""
    fake = FakeVllm()
    fake.at_once = True

    async def twice(contract: VllmContract) -> list[str | None]:
        for name in ("one", "two"):
            request = GenerationRequest(name, np.array([1], np.int32), 0, SamplingParams(max_new_tokens=2), ())
            async for _ in contract.generate(request):
                pass
        return fake.connections

    assert asked(fake, twice) == ["close", "close"]
