"""The process of an actor, watched from its first call to its end, which the kernel tells of."""

import asyncio
import os
from contextlib import suppress
from typing import Any

import ray
from ray.actor import ActorHandle

from streamrl.clock import Clock
from streamrl.system.process_exit import ProcessExit, memory_kills


class WatchedProcess:
    """Of one actor, by the name of its part. Of a process on another node, and of one that died before it could be
    asked for its number, nothing is known but its name."""

    def __init__(self, name: str, handle: ActorHandle, clock: Clock) -> None:
        self.name = name
        self.actor = ""
        self.pid = 0
        self.code: int | None = None
        """As `ProcessExit.code`, once it has ended."""
        self.memory_kills: int | None = None
        """Of the machine, while it lived."""
        self._clock = clock
        self._exit: ProcessExit | None = None
        self._ended = asyncio.Event()
        self._ended_at = 0.0
        self._doing, self._heard_at = "", 0.0
        self._kills_before = memory_kills()
        self._asking = asyncio.create_task(self._ask(handle), name=f"watch {name}")

    async def ended(self, limit_s: float) -> bool:
        """Whether it has ended, as soon as it has, or after so many seconds; at once where that cannot be known."""
        if self._exit is None:
            return False
        with suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                await self._ended.wait()
        return self._ended.is_set()

    def record_activity(self, doing: str) -> None:
        """What it does, in words."""
        if not self._ended.is_set():
            self._doing, self._heard_at = doing, self._clock.now()

    def last_activity(self) -> tuple[str, float]:
        """(what it did, seconds before its end); "" when it said nothing."""
        return self._doing, max(0.0, self._ended_at - self._heard_at)

    def close(self) -> None:
        """Watch it no more."""
        self._asking.cancel()
        if self._exit is not None:
            self._unwatch(self._exit)
            self._exit = None

    async def _ask(self, handle: ActorHandle) -> None:
        try:
            node, self.actor, self.pid = await handle.__ray_call__.remote(_who)
        except ray.exceptions.RayError:
            return
        if node != ray.get_runtime_context().get_node_id():
            return
        with suppress(ProcessLookupError):
            self._exit = ProcessExit(self.pid)
            asyncio.get_running_loop().add_reader(self._exit.fileno(), self._has_ended, self._exit)

    def _has_ended(self, ended: ProcessExit) -> None:
        self._ended_at, self.code = self._clock.now(), ended.code()
        now = memory_kills()
        if now is not None and self._kills_before is not None:
            self.memory_kills = now - self._kills_before
        asyncio.get_running_loop().remove_reader(ended.fileno())
        self._ended.set()

    def _unwatch(self, ended: ProcessExit) -> None:
        if not self._ended.is_set():
            asyncio.get_running_loop().remove_reader(ended.fileno())
        ended.close()


def _who(_actor: Any) -> tuple[str, str, int]:
    """Runs in the actor's process: (Ray's id of its node, of itself, the number of its process)."""
    context = ray.get_runtime_context()
    return context.get_node_id(), context.get_actor_id() or "", os.getpid()
