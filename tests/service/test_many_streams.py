"""1,000 answers streamed at once from a live run, in each dialect: none is lost or cut short, and no memory stays.

And readers who never read: the gateway holds for each what it may, and the others are answered. How fast that is says
`benchmarks/bench_service.py`.
"""

import asyncio
import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import pytest
from service_parts.dialects import DIALECTS, write_chat_model
from service_parts.load import Load
from support.runs.live_run import LiveRun, live_run

from streamrl.services.run.folder import RunFolder
from streamrl.services.run.gateway_tokens import token_path

pytestmark = pytest.mark.ray

STREAMS = int(os.environ.get("STREAMS", "1000"))
ROUNDS = 4
DEAF = 50
TOKENS = 48
GROWTH = 1.05
"""Of the gateway's memory over the rounds after `WARM`."""
WARM = 2
"""Rounds in which it becomes what it takes to serve so many: the allocator's arenas fill in the first and, on some
machines, the second."""
OVERRIDES = (
    *("--rollout.engine", "scripted", "--rollout.slots", "1024", "--rollout.replicas", "1"),
    *("--rollout.scripted.latency_steps", str(TOKENS), "--rollout.scripted.step_s", "0.0125"),
    *("--rollout.sampling.max_new_tokens", str(TOKENS), "--learner.steps", "1000000", "--eval.every", "1000000"),
    *("--gateway.enabled", "true", "--gateway.max_requests", "4096", "--gateway.stream_weights.train", "0.0"),
)


@pytest.fixture(scope="module")
def run(user_folder: Path, streamrl_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveRun]:
    model = tmp_path_factory.mktemp("model")
    write_chat_model(model)
    own = ("--model.preset", "none", "--model.path", str(model))
    with live_run(user_folder, streamrl_path, "many", *OVERRIDES, *own) as run:
        assert run.read_until(lambda event: event["kind"] == "gateway")
        assert run.read_until(lambda event: bool(event.get("replicas"))), (run.events[-3:], run.end())
        yield run
        assert run.process.poll() is None


def gateway_of(run: LiveRun) -> tuple[str, dict[str, str], psutil.Process]:
    """(address, headers, process)."""
    opened = RunFolder.open(run.folder)
    launch = opened.record.launch
    assert launch is not None
    headers = {"authorization": f"Bearer {token_path(opened).read_text()}"}
    return launch.gateway, headers, run.actors("GatewayActor")[0]


def body_of(run: LiveRun) -> dict[str, object]:
    return DIALECTS["completions"].body(run.folder.name, TOKENS)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("dialect", DIALECTS)
async def test_a_thousand_streams_at_once_are_answered_whole_and_no_memory_stays(run: LiveRun, dialect: str) -> None:
    spoken, (url, headers, gateway) = DIALECTS[dialect], gateway_of(run)
    resident = []
    async with Load(f"{url}{spoken.path}", headers, spoken.body(run.folder.name, TOKENS), spoken.ends) as load:
        for _ in range(ROUNDS):
            answers = await load.at_once(STREAMS)
            assert answers.errors == []
            assert len(answers.seconds) == STREAMS
            resident.append(gateway.memory_info().rss)
    print([rss >> 20 for rss in resident], "MiB")
    assert resident[-1] <= GROWTH * resident[WARM - 1]


@pytest.mark.timeout(600)
async def test_readers_who_never_read_keep_nobody_from_an_answer(run: LiveRun) -> None:
    url, headers, gateway = gateway_of(run)
    async with Load(f"{url}/v1/completions", headers, body_of(run)) as load:
        assert (await load.at_once(DEAF)).errors == []
        before = gateway.memory_info().rss
        deaf = [await asyncio.to_thread(ask_and_never_read, url, headers, body_of(run)) for _ in range(DEAF)]
        assert (await load.at_once(DEAF)).errors == []
        assert gateway.memory_info().rss <= GROWTH * before + DEAF * 2**20
        for one in deaf:
            one.close()
        assert (await load.at_once(DEAF)).errors == []


def ask_and_never_read(url: str, headers: dict[str, str], body: dict[str, object]) -> socket.socket:
    """A connection on which a stream was asked for, with room for next to nothing of it."""
    address, content = urlsplit(url), json.dumps(body).encode()
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    connection.connect((address.hostname, address.port))
    lines = [
        f"POST /v1/completions HTTP/1.1\r\nHost: {address.netloc}",
        *(f"{name}: {value}" for name, value in headers.items()),
        f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n",
    ]
    connection.sendall("\r\n".join(lines).encode() + content)
    return connection
