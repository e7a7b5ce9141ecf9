"""A local S3 server with s3fs before it, in an environment of their own: `make test-storage`."""

import http.server
import os
import threading
from collections.abc import Iterator
from uuid import uuid4

import boto3
import pytest
from moto.server import ThreadedMotoServer

_DENIED = b"""<?xml version="1.0" encoding="UTF-8"?>
<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>"""


@pytest.fixture(scope="session")
def server() -> Iterator[str]:
    """Its URL."""
    moto = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    moto.start()
    host, port = moto.get_host_and_port()
    yield f"http://{host}:{port}"
    moto.stop()


@pytest.fixture(autouse=True)
def credentials(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a user's environment has them, and no others."""
    for name in [name for name in os.environ if name.startswith(("AWS_", "FSSPEC_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key-of-the-tests")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret-of-the-tests")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("AWS_ENDPOINT_URL", server)


@pytest.fixture
def bucket(server: str, credentials: None) -> str:
    """The name of a new one."""
    name = f"tests-{uuid4().hex[:12]}"
    boto3.client("s3", endpoint_url=server).create_bucket(Bucket=name)
    return name


class _Denies(http.server.BaseHTTPRequestHandler):
    def _deny(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.send_response(403)
        self.send_header("Content-Type", "application/xml")
        self.send_header("Content-Length", str(len(_DENIED)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(_DENIED)

    do_GET = do_PUT = do_HEAD = do_POST = do_DELETE = _deny

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def denying(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The endpoint lets nobody in."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Denies) as denies:
        thread = threading.Thread(target=denies.serve_forever)
        thread.start()
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{denies.server_port}")
        yield
        denies.shutdown()
        thread.join()
