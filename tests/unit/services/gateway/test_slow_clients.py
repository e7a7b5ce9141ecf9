"""Clients that stop midway, or read nothing: they are left, what was made for them ends, and the others go on."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from support.gateway.local_gateway import ENDLESS, LocalGateway, local_gateway, until
from support.gateway.raw_http import answers, exchange

from streamrl.config.schema.run import GatewayConfig
from streamrl.services.gateway.guard import Patience
from streamrl.services.gateway.heads import HEAD_BYTES

SHORT = 0.1
"""Seconds of a deadline that passes: nothing else ends what is waited for."""
BUFFER = 2**12
"""Bytes that the kernel holds of a connection, on either side."""
LINE = b'{"key":"a","prompt":"1+1=","payload":{"answer":"2"}}\n'


def request(gateway: LocalGateway, path: str, body: bytes, *, length: int | None = None) -> bytes:
    """Of a body as it is, with the length that it is said to have."""
    head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {gateway.token()}\r\n"
    told = f"content-type: application/json\r\ncontent-length: {len(body) if length is None else length}\r\n"
    return (head + told + "connection: close\r\n\r\n").encode() + body


def connections(gateway: LocalGateway) -> int:
    return len(gateway.actor._server.server_state.connections)


@asynccontextmanager
async def gateway_of(folder: Path, **options: object) -> AsyncIterator[LocalGateway]:
    settings = GatewayConfig(enabled=True, stream_weights={"train": 0.0})
    async with local_gateway(folder, most=6, gateway=settings, trains=True, **options) as gateway:  # type: ignore[arg-type]
        yield gateway


@asynccontextmanager
async def deaf(gateway: LocalGateway, raw: bytes) -> AsyncIterator[None]:
    """A client that sends a request, and reads nothing of the answer."""
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER)
        client.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(client, ("127.0.0.1", gateway.port))
        await loop.sock_sendall(client, raw)
        yield


async def test_a_stream_of_prompts_that_stops_midway_ends_and_what_it_submitted_does_not(tmp_path: Path) -> None:
    async with gateway_of(tmp_path, patience=Patience(idle_s=SHORT)) as gateway:
        raw = request(gateway, "/api/prompts", LINE + LINE[:20], length=1000)
        (answer,) = answers(await exchange(gateway.port, raw))
        await until(lambda: not connections(gateway))
        (later,) = answers(await exchange(gateway.port, request(gateway, "/api/prompts", LINE)))
    said = [json.loads(line) for line in answer.body.splitlines()]
    assert [one["type"] for one in said] == ["accepted", "finished", "error"]
    assert (answer.whole, said[-1]["error"]["code"]) == (True, "body_too_slow")
    assert [json.loads(line) for line in later.body.splitlines()] == [*said[:2], {"type": "end"}]


async def test_a_connection_that_breaks_in_the_middle_of_a_line_submits_the_lines_before_it_alone(
    tmp_path: Path,
) -> None:
    async with gateway_of(tmp_path) as gateway:
        raw = request(gateway, "/api/prompts", LINE + LINE[:-1].replace(b'"a"', b'"b"'), length=1000)
        await exchange(gateway.port, raw, enough=1)
        await until(lambda: not connections(gateway))
        status, answer = await gateway.ask("/api/prompts/cancel", {"keys": ["b"]})
        assert (status, answer["error"]["code"]) == (404, "unknown_prompt")
        assert (await gateway.ask("/api/prompts/cancel", {"keys": ["a"]}))[0] == 200


async def test_a_head_that_does_not_end_is_held_no_further_than_it_may_be(tmp_path: Path) -> None:
    async with local_gateway(tmp_path) as gateway:
        head = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nx: "
        held = head + b"y" * (HEAD_BYTES + 1 - len(head))
        (answer,) = answers(await exchange(gateway.port, held))
        assert (answer.status, answer.body) == (400, b"The head of a request has 65536 bytes at most.")
        await until(lambda: not connections(gateway))
        long = json.dumps({"model": "run", "prompt": "1", "user": "x" * 300_000, "max_tokens": 2}).encode()
        (answer,) = answers(await exchange(gateway.port, request(gateway, "/v1/completions", long)))
        assert answer.status == 200


@pytest.mark.parametrize("head", [b"", b"GET /healthz HTTP/1.1\r\nhost: loc"])
async def test_a_connection_that_says_nothing_or_stops_in_its_head_is_closed(head: bytes, tmp_path: Path) -> None:
    async with local_gateway(tmp_path, patience=Patience(head_s=SHORT)) as gateway:
        assert await exchange(gateway.port, head) == b""
        await until(lambda: not connections(gateway))
        assert (await gateway.ask("/healthz"))[0] == 200


@pytest.mark.parametrize("stream", [True, False])
async def test_a_body_that_stops_midway_is_given_up(stream: bool, tmp_path: Path) -> None:
    async with local_gateway(tmp_path, patience=Patience(body_s=SHORT)) as gateway:
        body = json.dumps({"model": "run", "prompt": "1", "stream": stream}).encode()
        raw = request(gateway, "/v1/completions", body, length=len(body) + 1)
        (answer,) = answers(await exchange(gateway.port, raw))
        assert (answer.status, json.loads(answer.body)["error"]["code"]) == (408, "body_too_slow")
        await until(lambda: not connections(gateway))
        assert (await gateway.complete(max_tokens=4))[0] == 200


async def test_a_client_that_reads_nothing_of_a_completion_is_left_and_its_connection_with_it(tmp_path: Path) -> None:
    async with local_gateway(tmp_path, **ENDLESS, patience=Patience(send_s=SHORT)) as gateway:
        gateway.actor._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER)
        body = {"model": "run", "prompt": "1", "max_tokens": 10**5, "stream": True, "n": 16, "logprobs": 1}
        async with deaf(gateway, request(gateway, "/v1/completions", json.dumps(body).encode())):
            await gateway.busy(requests=16)
            await gateway.idle()
            await until(lambda: not connections(gateway))
        assert gateway.actor._server.config.app._running == 0
        assert gateway.actor._pool.running == 0


async def test_a_client_that_reads_nothing_of_what_becomes_of_its_prompts_is_left(tmp_path: Path) -> None:
    async with gateway_of(tmp_path, patience=Patience(send_s=SHORT)) as gateway:
        gateway.actor._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER)
        raw = request(gateway, "/api/prompts", LINE + b"{\n" * 20_000, length=10**6)
        async with deaf(gateway, raw):
            await until(lambda: connections(gateway) == 1)
            await until(lambda: not connections(gateway))
        assert gateway.actor._server.config.app._running == 0
        # What it submitted is the run's. Whether it is still generated by now is a matter of the machine.
        status, _ = await gateway.ask("/api/prompts/cancel", {"keys": ["a"]})
        assert status == 200
