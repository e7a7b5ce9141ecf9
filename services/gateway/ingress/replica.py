"""An ingress as a replica of a Ray Serve application. It knows no Serve but the call that ends its application.

Guarantees: it hears of each gateway and each replica of the run from the run's controller, for as long as that lives;
without it, it has Serve end the application, so that nothing of a run that was killed stays on its cluster.
"""

import asyncio
import secrets
from typing import Any, Final

import msgspec
import ray
import structlog
from ray.actor import ActorHandle

from streamrl.config import Config
from streamrl.services.gateway.guard import App
from streamrl.services.gateway.ingress.ingress import Ingress
from streamrl.services.gateway.path_prefix import PathPrefix

Words = tuple[int, ActorHandle | None, dict[str, ActorHandle]]
"""Their number, the run's own gateway, and the replicas that serve."""
FIRST: Final = -1


class IngressReplica:
    """See the module. controller: of the run. application: its name in Serve. prefix: that Serve leaves before each
    path, "" for none."""

    def __init__(self, config: dict[str, Any], controller: ActorHandle, application: str, prefix: str) -> None:
        self._config = config
        self._controller = controller
        self._application = application
        self._prefix = prefix
        self._following: asyncio.Task[None] | None = None

    async def __serve_build_asgi_app__(self) -> App:
        """Called by Serve, once: what it has answer requests."""
        try:
            number, home, replicas = await self._words(FIRST)
            while home is None:
                number, home, replicas = await self._words(number)
            facts = await home.ingress_facts.remote()
        except ray.exceptions.RayError:
            await self._end()
            raise
        name = f"ingress-{secrets.token_hex(6)}"
        ingress = Ingress(name, msgspec.convert(self._config, Config), facts, _notice)
        ingress.serve(home, replicas)
        self._following = asyncio.create_task(self._follow(ingress, number), name="words of the controller")
        return PathPrefix(ingress, self._prefix) if self._prefix else ingress

    def check_health(self) -> None:
        """Called by Serve, which starts another replica when this raises."""
        if self._following is not None and self._following.done() and not self._following.cancelled():
            raise RuntimeError("this replica hears of its run no more")

    async def _follow(self, ingress: Ingress, number: int) -> None:
        try:
            while True:
                number, home, replicas = await self._words(number)
                ingress.serve(home, replicas)
        except ray.exceptions.RayError:
            ingress.serve(None, {})
            await self._end()
            await asyncio.Event().wait()  # for Serve to end this process

    async def _words(self, after: int) -> Words:
        words: Words = await self._controller.gateway_words.remote(after)
        return words

    async def _end(self) -> None:
        """The run's controller is gone, and with it the run or this launch of it."""
        from streamrl.services.gateway.ingress.ending import end

        _notice(f"the controller of the run is gone: application {self._application!r} ends")
        await asyncio.to_thread(end, self._application, wait=False)


def _notice(text: str) -> None:
    structlog.get_logger().warning("notice", text=text)
