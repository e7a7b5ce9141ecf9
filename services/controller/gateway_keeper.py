"""Keeps the gateway of a run: starts it, tells it which replicas serve, and starts another when its process dies.

Its first start may end the run by an error of its own: the user asked for a port that is taken, say. Nothing else of it
does, and its death never: with its restarts used up the run goes on without a gateway, and says so.
"""

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

import ray
from ray.actor import ActorHandle

from streamrl.buffers.queue.signals import Signal
from streamrl.config import Config
from streamrl.errors import DeadlineError, ProcessDiedError, StreamRLError
from streamrl.services.actors.deadline import within
from streamrl.services.actors.restarts import RestartBudget, back_off_s
from streamrl.services.gateway.ingress.keeper import ServeKeeper
from streamrl.services.run.awaited import GATEWAY_READY
from streamrl.services.run.folder import RunFolder
from streamrl.services.run.gateway_address import url_of
from streamrl.services.run.gateway_tokens import write_tokens

NAME = "gateway"
Words = tuple[int, ActorHandle | None, dict[str, ActorHandle]]
HOLD_S = 30.0
"""For which a question for words is held: who asked may be gone, and takes a place for calls."""
COST = "answers that it was streaming broke off; prompts that were submitted go on"


class GatewayKeeper:
    """See the module. newest_step: the highest step that the run trained. report: takes an event.
    explain: of a death, with its cost. pause: waits so many seconds, between two of them."""

    def __init__(
        self,
        run: RunFolder,
        config: Config,
        restarts: RestartBudget,
        newest_step: Callable[[], int],
        report: Callable[[str, dict[str, Any]], None],
        explain: Callable[[str, BaseException, str], Awaitable[StreamRLError]],
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._run = run
        self._config = config
        self._restarts = restarts
        self._newest_step = newest_step
        self._report = report
        self._explain = explain
        self._pause = pause
        self._sessions = itertools.count()
        self._number = 0
        self._changed = Signal()
        self._serving: dict[str, ActorHandle] = {}
        self._handle: ActorHandle | None = None
        self._port = _port_before(run) or config.gateway.port
        self._served = 0
        self._serve = ServeKeeper(config, report)

    def serves(self, name: str, replica: ActorHandle) -> None:
        """A replica serves from now on, or soon."""
        self._serving[name] = replica
        self._report_serving()

    def left(self, name: str) -> None:
        """It does not any more."""
        if self._serving.pop(name, None) is not None:
            self._report_serving()

    def status(self) -> dict[str, Any]:
        """For `streamrl status`; nothing in a run without a gateway."""
        if not self._served:
            return {}
        return {NAME: {"url": self._url(), "started": self._served, **self._serve.status()}}

    async def words(self, after: int) -> Words:
        """For ingresses: (number, the gateway, the replicas that serve), as soon as the number is above `after`, or as
        they are after `HOLD_S`. The gateway is None while there is none."""
        with suppress(TimeoutError):
            async with asyncio.timeout(HOLD_S):
                while self._number <= after:
                    await self._changed.wait()
        return self._number, self._handle, dict(self._serving)

    async def keep(
        self, make: Callable[[], ActorHandle], longest_prompt: int, controller: ActorHandle | None = None
    ) -> None:
        """Have a gateway for as long as the run lasts, and its application in Ray Serve if it is to have one. make:
        starts its process. controller: whom ingresses ask for words."""
        write_tokens(self._run)
        await asyncio.gather(self._keep(make, longest_prompt), self._serve.keep(controller))

    async def _keep(self, make: Callable[[], ActorHandle], longest_prompt: int) -> None:
        number = await self._one(make(), longest_prompt)
        while number is not None:
            await self._pause(back_off_s(number))
            number = await self._one(make(), longest_prompt)
        await asyncio.Event().wait()

    def closing(self) -> list[Any]:
        """A call for each thing that runs."""
        return [self._serve.close(), *([] if self._handle is None else [self._handle.close.remote()])]

    async def _one(self, handle: ActorHandle, longest_prompt: int) -> int | None:
        """One gateway, to its end. The number of the restart that follows, None when there may be none."""
        try:
            starting: Any = handle.start.remote(next(self._sessions), longest_prompt, self._port)
            self._port = await within(self._config.deadlines.start_s, starting, who=NAME, what="the start")
            self._takes_over(handle)
            watching = asyncio.create_task(self._report_ready(handle), name="gateway becomes ready")
            try:
                await handle.run.remote()
            finally:
                watching.cancel()
            return None
        except (ray.exceptions.RayError, DeadlineError) as error:
            self._handle = None
            self._report_serving()
            death = await self._explain(NAME, error, COST)
            ray.kill(handle)
            return self._restart(death, error)

    def _takes_over(self, handle: ActorHandle) -> None:
        self._handle = handle
        self._served += 1
        self._restarts.served(NAME, self._newest_step())
        self._report(NAME, {"url": self._url()})
        self._report_serving()

    async def _report_ready(self, handle: ActorHandle) -> None:
        with suppress(ray.exceptions.RayError):  # its end is told by who waits for that
            await handle.until_ready.remote()
            self._report(GATEWAY_READY, {"url": self._url()})

    def _restart(self, death: StreamRLError, error: BaseException) -> int | None:
        if not self._served and not isinstance(death, ProcessDiedError):
            raise death from error
        number = self._restarts.died(NAME, self._newest_step())
        if number is None:
            self._notice(f"{death}; it was started again {self._restarts.limit} times: the run goes on without it")
        else:
            self._notice(f"{death}; restart {number} of {self._restarts.limit}")
        return number

    def _report_serving(self) -> None:
        self._number += 1
        self._changed.notify()
        if self._handle is not None:
            self._handle.serve.remote(self._number, dict(self._serving))

    def _notice(self, text: str) -> None:
        self._report("notice", {"text": text})

    def _url(self) -> str:
        return url_of(self._config.gateway, self._port)


def _port_before(run: RunFolder) -> int:
    """That of the gateway of this launch, before the system was started again; 0 when there was none. Clients know
    it."""
    launch = run.record.launch
    return (urlsplit(launch.gateway).port or 0) if launch is not None and launch.gateway else 0
