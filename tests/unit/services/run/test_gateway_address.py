"""A gateway that listens for others: with its own certificate, which clients verify."""

import asyncio
import json
import os
import socket
import ssl
import subprocess
import sys
from pathlib import Path

import aiohttp
import pytest
from support.gateway.local_gateway import local_gateway

from streamrl.config.schema.run import Config, GatewayConfig, RayConfig
from streamrl.config.schema.serve import ServeConfig
from streamrl.errors import ResourceError
from streamrl.services.run.gateway_address import listen, require_free, url_of

CLIENT = """
import asyncio, os, sys, streamrl

async def main():
    async with streamrl.connect(sys.argv[1], token=os.environ["TOKEN"]) as client:
        print(len(await client.sample("1+1=", n=2, max_tokens=4)))

asyncio.run(main())
"""


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
async def test_what_is_written_to_a_client_is_sent_at_once(host: str) -> None:
    seen: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.set_result(writer.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
        writer.close()

    listener = listen(GatewayConfig(enabled=True, host=host), 0, unread_s=1.0)
    async with await asyncio.start_server(serve, sock=listener):
        _, writer = await asyncio.open_connection(*listener.getsockname()[:2])
        assert await seen == 1
        writer.close()
        await writer.wait_closed()


def test_a_port_of_ray_serve_that_is_taken_is_told_before_anything_starts() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        gateway = GatewayConfig(enabled=True, serve=ServeConfig(replicas=1, port=port))
        with pytest.raises(ResourceError, match=rf"Ray Serve cannot listen on 127.0.0.1:{port}; set gateway.serve"):
            require_free(Config(gateway=gateway))
        # There it may be a Serve that runs already.
        require_free(Config(gateway=gateway, ray=RayConfig(address="head:6379")))


@pytest.fixture
def settings(tmp_path: Path) -> GatewayConfig:
    """Of a gateway that others reach, with a certificate that it signed itself."""
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    names = "subjectAltName=IP:127.0.0.1,IP:0.0.0.0,DNS:localhost"
    made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=streamrl"]
    files = ["-keyout", str(key), "-out", str(cert), "-addext", names]
    subprocess.run([*made, *files], check=True, capture_output=True)
    return GatewayConfig(enabled=True, host="0.0.0.0", tls_cert=str(cert), tls_key=str(key))


async def test_a_client_that_verifies_the_certificate_is_answered_and_streamed_to(
    settings: GatewayConfig, tmp_path: Path
) -> None:
    trusted = ssl.create_default_context(cafile=settings.tls_cert)
    async with local_gateway(tmp_path, gateway=settings) as gateway:
        url = f"{url_of(settings, gateway.port)}/v1/completions"
        assert url.startswith("https://0.0.0.0:")
        headers = {"authorization": f"Bearer {gateway.token()}"}
        for stream in (False, True):
            body = {"model": "run", "prompt": "1+1=", "stream": stream, "max_tokens": 4}
            async with gateway.http.post(url, json=body, headers=headers, ssl=trusted) as response:
                assert response.status == 200
                text = await response.text()
            assert text.endswith("data: [DONE]\n\n") if stream else json.loads(text)["choices"]


async def test_who_does_not_trust_the_certificate_sends_no_token_and_who_speaks_no_tls_gets_no_answer(
    settings: GatewayConfig, tmp_path: Path
) -> None:
    async with local_gateway(tmp_path, gateway=settings) as gateway:
        port = gateway.port
        with pytest.raises(aiohttp.ClientConnectorCertificateError):
            await gateway.http.get(f"https://127.0.0.1:{port}/healthz")
        with pytest.raises(aiohttp.ClientError):
            await gateway.http.get(f"http://127.0.0.1:{port}/healthz")
        trusted = ssl.create_default_context(cafile=settings.tls_cert)
        async with gateway.http.get(f"https://localhost:{port}/healthz", ssl=trusted) as response:
            assert response.status == 200


async def test_streamrls_own_client_takes_a_certificate_that_its_user_trusts(
    settings: GatewayConfig, tmp_path: Path
) -> None:
    async with local_gateway(tmp_path, gateway=settings) as gateway:
        url = f"https://127.0.0.1:{gateway.port}"
        environment = {**os.environ, "TOKEN": gateway.token(), "SSL_CERT_FILE": str(settings.tls_cert)}
        client = await asyncio.create_subprocess_exec(
            sys.executable, "-c", CLIENT, url, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        out, err = await client.communicate()
    assert (client.returncode, out.strip()) == (0, b"2"), err.decode()
