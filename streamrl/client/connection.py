"""`connect`: from the name of a run to a client of it."""

from contextlib import AsyncExitStack
from pathlib import Path

import aiohttp

from streamrl.client.address import Where
from streamrl.client.client import Client
from streamrl.client.script import ScriptClient

PATIENCE_S = 120.0
"""A run that is started again answers within it."""


class _Connection:
    """What `connect` gives: for `async with`, or for `with`."""

    def __init__(self, where: Where, patience_s: float) -> None:
        self._where = where
        self._patience_s = patience_s
        self._stack = AsyncExitStack()
        self._script: ScriptClient | None = None

    async def __aenter__(self) -> Client:
        # As long as the run needs: a group may take minutes, and a broken connection is noticed by itself.
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=10.0)
        connector = aiohttp.TCPConnector(limit=0)
        session = aiohttp.ClientSession(timeout=timeout, connector=connector, trust_env=False)
        http = await self._stack.enter_async_context(session)
        client = Client(self._where, http, self._patience_s)
        self._stack.push_async_callback(client.close)
        return client

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    def __enter__(self) -> ScriptClient:
        self._script = ScriptClient(self)
        return self._script

    def __exit__(self, *_: object) -> None:
        if self._script is not None:
            self._script.close()


def connect(target: str | Path, *, token: str | None = None, patience_s: float = PATIENCE_S) -> _Connection:
    """Connect to a live run whose gateway is enabled. `async with` gives a `Client`, `with` a `ScriptClient`.

    Nothing is sent before the first call of a method.

    Args:
        target: The run's folder, or the URL of its gateway.
        token: A token of the scope that is used: `submit` for prompts, `generate` for samples, `control` for the rest.
            None takes that of the folder; a URL needs one.
        patience_s: How long to wait for a run that is away, for example while it is started again, in seconds.

    Raises:
        RunFolderError: By the first call: the folder is no run, or the token is missing.
        ComponentError: By the first call: the run has no gateway at the moment.

    Example:
        with streamrl.connect("runs/quickstart") as client:
            print(client.submit({"prompt": "12+30=", "answer": "42"}).result(timeout=60).rewards)
    """
    return _Connection(Where(target, token), patience_s)
