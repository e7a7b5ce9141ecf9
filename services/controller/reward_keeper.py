"""Keeps the reward stage of a run: starts it, starts another when its process dies, has as many children in it as are
wanted.

What a stage that died had not scored is handed out again, and its successor has as many children as it was to have.
Nobody waits for a child to come or go; one that does not come up is told of, and the others go on.
"""

import itertools
from collections.abc import Callable
from typing import Any

import ray
from ray.actor import ActorHandle

from streamrl.observability.plural import how_many
from streamrl.services.actors.actor_slot import ActorSlot
from streamrl.services.controller.replicas import Supervisor
from streamrl.services.reward.actor import NAME


class RewardKeeper:
    """See the module. workers: children that there are to be. make: starts the process of a stage."""

    def __init__(
        self, workers: int, make: Callable[[], ActorHandle], queue: ActorHandle, supervisor: Supervisor
    ) -> None:
        self._workers = workers
        self._make = make
        self._queue = queue
        self._supervisor = supervisor
        self._words = itertools.count()
        self._told = ""
        self.seat = ActorSlot()
        """Of the stage that serves now."""
        # At once, so that its imports overlap with those of the other parts.
        self._handle = make()

    async def keep(self) -> None:
        """Have a stage for as long as the queue hands out rows."""
        await self._supervisor.ready()
        while True:
            epoch = await self._queue.next_epoch.remote(NAME)
            handle = self._handle
            try:
                await self._supervisor.in_time(NAME, handle.start.remote(epoch, self._workers))
                self._supervisor.served(NAME)
                self.seat.take(handle)
                await handle.run.remote()
                return
            except ray.exceptions.RayError as error:
                self.seat.leave(handle)
                rows = await self._queue.requeue_unscored.remote(NAME)
                cost = f"scored again: {how_many(rows, 'row', 'rows')}"
                await self._supervisor.restart_or_raise(NAME, error, None, cost)
                self._handle = self._make()

    def scale(self, workers: int) -> int:
        """Have so many children, at least one, from now on; how many it were before."""
        before, self._workers = self._workers, workers
        # Not awaited: where the process has died, its successor is told when it starts.
        self._handle.scale.remote(next(self._words), workers)
        return before

    def status_call(self) -> Any:
        """A call for what the stage says of itself."""
        return self._handle.status.remote()

    def note(self, status: dict[str, Any] | None) -> None:
        """What it said: tells, once, of a child that did not come up."""
        why = status["not_started"] if status is not None else self._told
        if why and why != self._told:
            self._supervisor.tell(f"reward workers: one did not start, {self._workers} are wanted: {why}")
        self._told = why
