"""A further gateway of a local run: the real ingress behind the own server's HTTP server."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import uvicorn

from streamrl.config import Config
from streamrl.services.gateway.actor import server_settings
from streamrl.services.gateway.guard import PATIENCE, Patience
from streamrl.services.gateway.ingress.ingress import Ingress
from streamrl.services.run.gateway_address import listen

NUMBERS = itertools.count()


@dataclass
class LocalIngress:
    """notices: what belongs into its log."""

    ingress: Ingress
    port: int
    notices: list[str]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


@asynccontextmanager
async def local_ingress(
    config: Config, home: Any, replicas: Mapping[str, Any], *, patience: Patience = PATIENCE
) -> AsyncIterator[LocalIngress]:
    """home: handle of the run's own gateway. replicas: that serve."""
    notices: list[str] = []
    facts = await home.ingress_facts.remote()
    ingress = Ingress(f"ingress-{next(NUMBERS)}", config, facts, notices.append, patience)
    listener = listen(config.gateway, 0, patience.send_s)
    server = uvicorn.Server(server_settings(config.gateway, ingress, patience.head_s))
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    ingress.serve(home, replicas)
    try:
        yield LocalIngress(ingress, listener.getsockname()[1], notices)
    finally:
        server.should_exit = True
        await serving
        await ingress.close()
