"""What a configuration makes of the gateway: the real actor and its guard, asked without a socket in between."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
from support.learner.probe_learner import open_run
from support.runs.probe_parts import Handle

from streamrl.clock import VirtualClock
from streamrl.config import Config
from streamrl.config.estimates.log_budget import log_shares
from streamrl.config.rules.run import check_rules
from streamrl.config.schema.streams import TASK
from streamrl.gateway.auth import all_scopes_token
from streamrl.gateway.openai.bodies import CompletionRequest
from streamrl.gateway.page.prometheus import GatewayCounts
from streamrl.gateway.refusal import Refusal
from streamrl.observability.logs import release
from streamrl.scheduling.fair_share import StreamShares
from streamrl.services.actors.restarts import RestartBudget
from streamrl.services.controller.gateway_keeper import GatewayKeeper
from streamrl.services.controller.health.death_monitor import DeathMonitor
from streamrl.services.gateway.actor import GatewayActor, server_settings
from streamrl.services.gateway.ingress.options import deployment_options, http_options
from streamrl.services.gateway.training.prompts import PromptService
from streamrl.services.run.gateway_address import listen


def shares(config: Config, folder: Path) -> Any:
    """What each part may log: a gateway takes a share too."""
    return log_shares(config)


def listens_at(config: Config, folder: Path) -> str:
    with listen(config.gateway, 0, 30.0) as listener:
        return listener.getsockname()[0]


def asks_for_port(config: Config, folder: Path) -> int:
    """The port that its keeper has it listen on."""
    run = open_run(config, folder)
    explain = DeathMonitor(run, 10_000, VirtualClock()).explain
    return GatewayKeeper(run, config, RestartBudget(), lambda: 0, lambda *_: None, explain)._port


def faults(config: Config, folder: Path) -> list[str]:
    return [problem.key for problem in check_rules(config)]


def serve_options(config: Config, folder: Path) -> Any:
    """What Ray Serve is told of the run's application, and of its proxies."""
    return deployment_options(config), http_options(config)


def certificate(config: Config, folder: Path) -> Any:
    settings = server_settings(config.gateway, None, 30.0)
    return settings.ssl_certfile, settings.ssl_keyfile


def shared(config: Config, folder: Path) -> list[str | None]:
    """Which streams the first groups come from."""
    shares = StreamShares(config.gateway.shares)
    return [shares.give([TASK, "agents"]) for _ in range(8)]


def payload_code(config: Config, folder: Path) -> str:
    """What is said of a prompt with 150 bytes for the reward."""

    def read(service: PromptService) -> str:
        try:
            return service.reader.read(
                json.dumps({"key": "k", "prompt": "1", "payload": {"x": "y" * 142}}).encode()
            ).key
        except Refusal as refusal:
            return refusal.code

    return asyncio.run(_at_desk(config, folder, read))


def open_prompts(config: Config, folder: Path) -> int:
    return asyncio.run(_at_desk(config, folder, lambda service: service.max_prompts))


def remembered(config: Config, folder: Path) -> list[str]:
    """What becomes of a second session beside a first one, and of the first one after a thousand seconds."""

    def hold(actor: GatewayActor) -> list[str]:
        actor._services(7, GatewayCounts())
        sessions, clock = actor._sessions, VirtualClock()
        sessions._clock = clock
        found = []
        for name, wait_s in (("one", 0.0), ("two", 0.0), ("one", 1000.0)):
            clock.advance(wait_s)
            try:
                sessions.begin(name)
                sessions.end(name)
                found.append("taken")
            except Refusal as refusal:
                found.append(refusal.code)
        return found

    return asyncio.run(_at_actor(config, folder, hold))


def drawn_in_session(config: Config, folder: Path) -> tuple[str, float]:
    """The refusal, and else the temperature, of a session's call that asks for greedy text."""

    def opened(actor: GatewayActor) -> tuple[str, float]:
        services = actor._services(7, GatewayCounts())
        body = CompletionRequest(model=services.limits.model, prompt="1", max_tokens=1, temperature=0.0)
        try:
            asked, _ = services.sessions.opened("one", services.reader.completion(body, 0), body)
        except Refusal as refusal:
            return refusal.code, 0.0
        return "", asked.sampling.temperature

    return asyncio.run(_at_actor(config, folder, opened))


async def _at_desk(config: Config, folder: Path, use: Callable[[PromptService], Any]) -> Any:
    return await _at_actor(config, folder, lambda actor: use(actor._services(7, GatewayCounts()).prompts))


async def _at_actor(config: Config, folder: Path, use: Callable[[GatewayActor], Any]) -> Any:
    run = open_run(config, folder)
    actor = GatewayActor(str(run.path), msgspec.to_builtins(config), Handle(), Handle(), Handle())
    await actor.start(0, 7, 0)
    try:
        return use(actor)
    finally:
        actor._socket.close()
        await actor._pool.close()
        release()


def codes(config: Config, folder: Path) -> list[str]:
    """What the gateway says to another name, to a body of 4,000 bytes, to eight completions, and to a second request
    beside a first one."""
    return asyncio.run(_codes(config, folder))


def code_behind_prefix(config: Config, folder: Path) -> str:
    """What the gateway says to a request for another model under `/llm`."""
    return asyncio.run(_code_behind_prefix(config, folder))


def forms_read(config: Config, folder: Path) -> tuple[str, str]:
    """In which forms the gateway's reader of requests has tool calls and thoughts read."""
    return asyncio.run(_forms_read(config, folder))


async def _forms_read(config: Config, folder: Path) -> tuple[str, str]:
    run = open_run(config, folder)
    actor = GatewayActor(str(run.path), msgspec.to_builtins(config), Handle(), Handle(), Handle())
    await actor.start(0, 7, 0)
    try:
        forms = actor._services(7, GatewayCounts()).reader.forms
        return forms.calls, forms.thoughts
    finally:
        actor._socket.close()
        await actor._pool.close()
        release()


async def _code_behind_prefix(config: Config, folder: Path) -> str:
    run = open_run(config, folder)
    actor = GatewayActor(str(run.path), msgspec.to_builtins(config), Handle(), Handle(), Handle())
    await actor.start(0, 7, 0)
    try:
        app, token = actor._server.config.app, all_scopes_token(run.key())
        return await _asked(app, token, {"model": "another", "prompt": "1"}, path="/llm/v1/completions")
    finally:
        actor._socket.close()
        await actor._pool.close()
        release()


async def _codes(config: Config, folder: Path) -> list[str]:
    run = open_run(config, folder)
    actor = GatewayActor(str(run.path), msgspec.to_builtins(config), Handle(), Handle(), Handle())
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
    guard: Any,
    token: str,
    body: dict[str, Any],
    *,
    host: str = "localhost",
    path: str = "/v1/completions",
    until: Callable[[], Any] | None = None,
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

    scope = {"type": "http", "method": "POST", "path": path, "raw_path": path.encode(), "query_string": b""}
    await guard({**scope, "headers": headers, "http_version": "1.1", "scheme": "http", "root_path": ""}, receive, send)
    return json.loads(b"".join(message.get("body", b"") for message in sent))["error"]["code"]
