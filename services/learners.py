"""All ranks of the learner as one part: made together, asked together, ended together.

A rank cannot go on without the others (their collectives would wait for it), so the death of one is the death of
all. What a rank raises because another one died is told from an error of its own by waiting for that death a moment.
"""

import asyncio
import secrets
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any

import ray
from ray.actor import ActorHandle

from services.deaths import explain_death, process_died
from services.parts import Parts
from services.run_folder import RunFolder

_DEATH_WAIT_S = 5.0
"""How long after the first error a rank's death may become known: the broken connection is noticed before it."""


class Learners:
    """The ranks, and whoever takes their place.

    Example:
        learners.make()
        built = await learners.first("build", controller)
        result = await learners.first("run", incarnation)
    """

    def __init__(
        self,
        parts: Parts,
        run: RunFolder,
        queue: ActorHandle,
        store: ActorHandle,
        count: int,
        home: ActorHandle | None = None,
    ) -> None:
        self._parts = parts
        self._run = run
        self._queue = queue
        self._store = store
        self._count = count
        self._home = home
        self._ranks: list[ActorHandle] = []

    def make(self) -> None:
        """Start the processes of all ranks, in place of those that there are."""
        for rank in self._ranks:
            ray.kill(rank)
        meeting = self._new_meeting()
        told = meeting, self._queue, self._store, self._home
        self._ranks = [self._parts.learner(rank, *told) for rank in range(self._count)]

    def _new_meeting(self) -> str:
        """A fresh file for the ranks to find each other; what dead ones left of theirs is removed."""
        for old in self._run.path.glob("learner-*.store"):
            old.unlink(missing_ok=True)
        return str(self._run.path / f"learner-{secrets.token_hex(4)}.store")

    async def first(self, method: str, *args: Any) -> Any:
        """Call a collective method on every rank; what rank 0 returns.

        Raises ProcessDiedError when the process of a rank died, else the first error of a rank.
        """
        calls = [asyncio.ensure_future(_call(rank, method, args)) for rank in self._ranks]
        try:
            await asyncio.wait(calls, return_when=asyncio.FIRST_EXCEPTION)
            if any(_error_of(call) is not None for call in calls):
                await asyncio.wait(calls, timeout=_DEATH_WAIT_S, return_when=asyncio.ALL_COMPLETED)
            _raise_worst(calls)
            return calls[0].result()
        finally:
            for call in calls:
                call.cancel()
            await asyncio.gather(*calls, return_exceptions=True)

    async def expect_replicas(self, count: int) -> None:
        """Tell rank 0, which makes room for as many versions as replicas may hold. A rank that dies over it is told
        when it is back."""
        with suppress(ray.exceptions.ActorDiedError, ray.exceptions.ActorUnavailableError):
            await self._ranks[0].expect_replicas.remote(count)

    async def stop(self) -> None:
        """Have the ranks finish their step, commit a checkpoint of it, and end `run`."""
        if self._ranks:
            await self._ranks[0].stop.remote()

    async def finish(self) -> None:
        """The same, and the run is finished with it. Ranks that die over it are to be told again."""
        try:
            await self._ranks[0].finish.remote()
        except ray.exceptions.ActorDiedError as error:
            if not process_died(error):
                raise

    def closing(self) -> list[Coroutine[Any, Any, Any]]:
        """One call for each rank that puts its things in order."""
        return [_call(rank, "close", ()) for rank in self._ranks]


async def _call(rank: ActorHandle, method: str, args: tuple[Any, ...]) -> Any:
    return await getattr(rank, method).remote(*args)


def _raise_worst(calls: "list[asyncio.Future[Any]]") -> None:
    """Raise a death before an error, since the error may be its echo."""
    errors = {rank: error for rank, call in enumerate(calls) if (error := _error_of(call)) is not None}
    for rank, error in errors.items():
        if process_died(error):
            raise explain_death(f"learner-{rank}", error) from error
    for error in errors.values():
        raise error


def _error_of(call: "asyncio.Future[Any]") -> BaseException | None:
    return call.exception() if call.done() else None
