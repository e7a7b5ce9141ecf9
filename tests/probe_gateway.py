"""What a configuration makes of the gateway: the real actor and its guard, asked without a socket in between."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
from probe_learner import open_run
from probe_parts import Handle, ListedParts

from services.gateway import GatewayActor, server_settings
from services.gateway_address import listen
from services.gateway_keeper import GatewayKeeper
from services.restarts import RestartBudget
from streamrl.config import Config
from streamrl.config.rules import check_rules
from streamrl.gateway.auth import all_scopes_token
from streamrl.log_shares import log_shares
from streamrl.logs import release


def shares(config: Config, folder: Path) -> Any:
    """What each part may log: a gateway takes a share too."""
    return log_shares(config)


def listens_at(config: Config, folder: Path) -> str:
    with listen(config.gateway, 0) as listener:
        return listener.getsockname()[0]


def asks_for_port(config: Config, folder: Path) -> int:
    """The port that its keeper has it listen on."""
    run, parts = open_run(config, folder), ListedParts(str(folder), config)
    return GatewayKeeper(parts, run, config, RestartBudget(), lambda: 0, lambda *_: None)._port


def faults(config: Config, folder: Path) -> list[str]:
    return [problem.key for problem in check_rules(config)]


def certificate(config: Config, folder: Path) -> Any:
    settings = server_settings(config.gateway, None)
    return settings.ssl_certfile, settings.ssl_keyfile


def codes(config: Config, folder: Path) -> list[str]:
    """What the gateway says to another name, to a body of 4,000 bytes, to eight completions, and to a second request
    beside a first one."""
    return asyncio.run(_codes(config, folder))


async def _codes(config: Config, folder: Path) -> list[str]:
    run = open_run(config, folder)
    actor = GatewayActor(str(run.path), msgspec.to_builtins(config), Handle())
    await actor.start(0, 7, 0)
    try:
        guard, token = actor._server.config.app, all_scopes_token(run.key())
        body = {"model": run.name, "prompt": "1"}
        first_may_end = asyncio.Event()
        first = asyncio.ensure_future(_asked(guard, token, body, until=first_may_end.wait))
        await asyncio.sleep(0)
        second = await _asked(guard, token, body)
        first_may_end.set()
        await first
        others = [({"host": "train.example"}, body), ({}, {**body, "stop": ["1" * 4000]}), ({}, {**body, "n": 8})]
        return [second, *[await _asked(guard, token, one, **headers) for headers, one in others]]
    finally:
        actor._socket.close()
        await actor._pool.close()
        release()


async def _asked(
    guard: Any, token: str, body: dict[str, Any], *, host: str = "localhost", until: Callable[[], Any] | None = None
) -> str:
    """The code of the refusal."""
    said = {"host": host, "authorization": f"Bearer {token}", "content-type": "application/json"}
    headers = [(name.encode(), value.encode()) for name, value in said.items()]
    sent: list[Any] = []
    given: list[bytes] = [json.dumps(body).encode()]

    async def receive() -> dict[str, Any]:
        if until is not None:
            await until()
        if not given:
            await asyncio.Event().wait()  # the client stays
        return {"type": "http.request", "body": given.pop(), "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    path = "/v1/completions"
    scope = {"type": "http", "method": "POST", "path": path, "raw_path": path.encode(), "query_string": b""}
    await guard({**scope, "headers": headers, "http_version": "1.1", "scheme": "http", "root_path": ""}, receive, send)
    return json.loads(b"".join(message.get("body", b"") for message in sent))["error"]["code"]
