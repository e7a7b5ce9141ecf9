"""The running system, as the owner sees it: one controller actor, and everything that hangs on it."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any

import msgspec
import ray
from ray.actor import ActorHandle

from streamrl.clock import SystemClock
from streamrl.config import Config
from streamrl.config.estimates.log_budget import log_shares
from streamrl.services.actors.deaths import explain_death
from streamrl.services.actors.process_environment import import_path, variables
from streamrl.services.controller.actor import Controller
from streamrl.services.controller.health.death_monitor import DeathMonitor
from streamrl.services.controller.parts import this_node
from streamrl.services.controller.supply import require_possible
from streamrl.services.run.folder import RunFolder
from streamrl.types import EvalSampling

CONTROLLER = "controller"


class RaySystem:
    """Implements `streamrl.services.launch.system_api.System` on a controller actor."""

    def __init__(self, controller: ActorHandle, deaths: DeathMonitor) -> None:
        self._controller = controller
        self._deaths = deaths
        self._running = False
        deaths.made(CONTROLLER, controller)

    async def run(self) -> dict[str, Any]:
        self._running = True
        try:
            return await self._controller.run.remote()
        except ray.exceptions.RayError as error:
            raise await self._deaths.explain(CONTROLLER, error) from error
        finally:
            self._running = False

    async def events(self) -> AsyncIterator[dict[str, Any]]:
        number = 0
        while True:
            try:
                number, events = await self._controller.next_events.remote(number)
            except ray.exceptions.RayError:
                return
            if not events:
                return
            for event in events:
                yield event

    async def status(self) -> dict[str, Any]:
        return await self._controller.status.remote()

    async def evaluate(self, sampling: EvalSampling | None = None) -> dict[str, Any]:
        try:
            return await self._controller.evaluate.remote(sampling)
        except ray.exceptions.RayError as error:
            raise explain_death("evaluation", error) from error

    async def scale(self, wanted: Mapping[str, int | None]) -> None:
        try:
            await self._controller.scale.remote(dict(wanted))
        except ray.exceptions.RayError as error:
            raise explain_death(CONTROLLER, error) from error

    async def stop(self) -> None:
        """Let the learner commit what it has, then end the controller, and with it every part."""
        try:
            await self._controller.stop.remote()
        except ray.exceptions.RayError:
            return  # it is gone already, or Ray is
        self._deaths.close()
        ray.kill(self._controller)


async def start_system(run: RunFolder, config: Config) -> RaySystem:
    """Start the controller of a run. Ray must be up. Raises ResourceError where no node could ever have a replica."""
    await asyncio.to_thread(require_possible, config)
    actor = ray.remote(Controller).options(
        # A call of each ingress waits there.
        num_cpus=0,
        max_concurrency=1024,
        runtime_env={"env_vars": variables(1, import_path())},
        **this_node(),
    )
    handle: Any = actor.remote(str(run.path), msgspec.to_builtins(config))
    return RaySystem(handle, DeathMonitor(run, log_shares(config).reports, SystemClock()))
