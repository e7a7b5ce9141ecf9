"""Makes a server engine from a configuration: starts the server, or finds the one that is there, and waits for it."""

import asyncio
import json
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from streamrl.config import Config
from streamrl.engines.server.engine import ServerEngine, ServerLimits
from streamrl.engines.server.http import Http
from streamrl.engines.server.model_tensors import ModelTensors
from streamrl.engines.server.process.place import ServerPlace, engine_python
from streamrl.engines.server.process.private_folder import make_private_folder, remove_private_folder
from streamrl.engines.server.process.process import ServerProcess
from streamrl.engines.server.programs import CONTRACTS, has_tokenizer, route_size, server_command
from streamrl.engines.server.server import Server
from streamrl.errors import ComponentError
from streamrl.models.grammars import Grammars
from streamrl.models.tokenizer import load_tokenizer
from streamrl.types import Version

_LOOK_S = 0.2
"""Between two looks whether the server is ready: it tells nobody."""
_OF_THE_DEADLINE = 0.9
"""Of a deadline that others keep too: what the server said last must come before their word that nothing came."""


def build_server_engine(
    config: Config, model_folder: Path, max_length: int, place: ServerPlace, version: Version
) -> ServerEngine:
    """An engine whose server takes requests. `version`: what to call the weights in `model_folder`.

    Raises ConfigError (no such Python, a release that is not spoken), ProcessDiedError (the server ended instead) and
    DeadlineError (0.9 of `deadlines.start_s` is over); nothing is left running then.
    """
    with ExitStack() as undo:
        folder = make_private_folder(f"{place.prefix}-server")
        undo.callback(remove_private_folder, folder)
        routes = route_size(model_folder) if config.learner.router_replay else None
        server = _server(config, model_folder, max_length, place, folder, routes)
        undo.callback(server.close)
        try:
            _await_ready(server, config.deadlines.start_s * _OF_THE_DEADLINE)
            server.run(server.contract.identify(), config.deadlines.start_s, "saying its version")
        except ComponentError as error:
            raise type(error)(server.obituary(error)) from error
        undo.pop_all()
    return ServerEngine(server, version, replace(_limits(config, model_folder, max_length), routes=routes))


def _server(
    config: Config,
    model_folder: Path,
    max_length: int,
    place: ServerPlace,
    folder: Path,
    routes: tuple[int, int] | None,
) -> Server:
    name, endpoint = config.rollout.engine, config.rollout.server.endpoint
    contract = CONTRACTS[name]
    if endpoint is not None:
        return Server(f"{name} at {endpoint}", contract(Http(endpoint), routes), folder, None)
    python, listens_at = engine_python(config, place.start_folder), folder / "socket"
    command = server_command(config, python, model_folder, max_length, listens_at)
    return Server(name, contract(Http(socket=listens_at), routes), folder, ServerProcess(name, command, [folder]))


def _await_ready(server: Server, limit_s: float) -> None:
    async def ready() -> None:
        while not await server.contract.ready():  # noqa: ASYNC110 - another program, which gives us no event
            await asyncio.sleep(_LOOK_S)

    server.run(server.while_alive(ready()), limit_s, "its start (deadlines.start_s)")


def _limits(config: Config, model_folder: Path, max_length: int) -> ServerLimits:
    vocab_size = json.loads((model_folder / "config.json").read_bytes())["vocab_size"]
    grammars = Grammars(lambda: load_tokenizer(model_folder), vocab_size)
    return ServerLimits(
        slots=config.rollout.slots,
        max_length=max_length,
        vocab_size=vocab_size,
        kv_bytes=config.rollout.kv_bytes,
        silence_s=config.deadlines.rollout_s,
        update_s=config.deadlines.update_s * _OF_THE_DEADLINE,
        tensors=ModelTensors.of_folder(model_folder),
        grammars=grammars if has_tokenizer(model_folder) else None,
    )
