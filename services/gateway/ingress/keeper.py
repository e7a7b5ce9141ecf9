"""Has a run's application in Ray Serve, for as long as the run lasts. Serve keeps its replicas by itself."""

import asyncio
import os
from collections.abc import Callable
from typing import Any, Final

from ray.actor import ActorHandle

from streamrl.config import Config
from streamrl.errors import ConfigError
from streamrl.services.actors.deadline import within

NAME: Final = "serve"
END_S: Final = 15.0
"""For the application to end with the run; on a Ray of the run's own it ends with that."""


class ServeKeeper:
    """See the module. report: takes an event.

    Example:
        await keeper.keep(controller)       # for ever
        await keeper.close()
    """

    def __init__(self, config: Config, report: Callable[[str, dict[str, Any]], None]) -> None:
        self._config = config
        self._report = report
        self._url = ""
        self._begun = False

    def status(self) -> dict[str, Any]:
        """For `streamrl status`; nothing in a run without an application."""
        if not self._url:
            return {}
        return {NAME: {"application": self._config.name, "url": self._url, **self._wanted()}}

    async def keep(self, controller: ActorHandle | None) -> None:
        """Start the application if there is to be one, and wait for ever. controller: of the run.

        Raises ConfigError, ComponentError, DeadlineError when it cannot be started; Serve replaces replicas that die.
        """
        if not self._config.gateway.serve.enabled or controller is None:
            await asyncio.Event().wait()
            return
        require_token(self._config)
        # Here and not above: Serve takes a second to import, and starts nothing where it is not asked for.
        from streamrl.services.gateway.ingress import application

        self._begun = True
        starting = asyncio.to_thread(application.start, self._config, controller)
        limit = self._config.deadlines.start_s
        self._url = await within(limit, starting, who=NAME, what="the start of the application")
        self._report(NAME, {"url": self._url, **self._wanted()})
        self._report("notice", {"text": f"Ray Serve: application {self._config.name!r} answers at {self._url}"})
        await asyncio.Event().wait()

    async def close(self) -> None:
        """End the application where the Ray outlives the run."""
        if not self._begun or self._config.ray.address == "local":
            return
        from streamrl.services.gateway.ingress.ending import end

        try:
            async with asyncio.timeout(END_S):
                await asyncio.to_thread(end, self._config.name, wait=True)
        except TimeoutError:
            return  # its replicas end it when this process is gone

    def _wanted(self) -> dict[str, Any]:
        serve = self._config.gateway.serve
        return {"replicas": serve.replicas, "max_replicas": serve.max_replicas or serve.replicas}


def require_token(config: Config) -> None:
    """Raises ConfigError on a cluster without Ray's token, unless the user has said that this is meant."""
    if config.gateway.insecure_bind or os.environ.get("RAY_AUTH_MODE") == "token":
        return
    raise ConfigError(
        "gateway.serve: Ray Serve opens a port on every interface of each node for its replicas, and this cluster has "
        "no token: start its nodes with RAY_AUTH_MODE=token, or set gateway.insecure_bind = true"
    )
