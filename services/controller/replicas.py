"""The rollout replicas of a run: as many as are wanted, each kept, and each started and let go without the others.

    joins    a process and its engine; the newest version verified and acknowledged; then groups
    dies     the queue fences what it was and issues its groups again; another one takes its name
    leaves   no more groups; those that it has end and are handed in. What has not ended in time goes on elsewhere, as
             that of a dead one does

Nothing here waits for the learner, and no replica for another one. Replicas are numbered from 0 without gaps: those of
the highest numbers leave.
"""

import asyncio
from collections.abc import Callable, Collection, Coroutine
from typing import Any, Protocol

import ray
from ray.actor import ActorHandle

from streamrl.errors import ComponentError, DeadlineError, ProcessDiedError
from streamrl.observability.plural import how_many
from streamrl.scheduling.replica_names import replica_name
from streamrl.services.actors.deadline import within
from streamrl.services.controller.nodes import Nodes
from streamrl.types import Arithmetic


class Listener(Protocol):
    """Who uses replicas that serve."""

    def serves(self, name: str, replica: ActorHandle, /) -> None: ...

    def left(self, name: str, /) -> None: ...


class Supervisor(Protocol):
    """Whoever owns the pool."""

    async def ready(self) -> int:
        """Wait until replicas may start; the longest prompt, in tokens."""
        ...

    async def owned(self, name: str, work: Coroutine[Any, Any, None], /) -> None:
        """Await the work of a part; what fails is written down under its name."""
        ...

    async def in_time(self, name: str, call: Any, /) -> Any:
        """Await the start of a part."""
        ...

    def served(self, name: str, /) -> None:
        """A part does its work from now on."""

    async def restart_or_raise(self, name: str, error: BaseException, why: str | None, cost: str, /) -> None:
        """Count a death, and raise it when it was once too often; wait until it may start again. why: we ended it.
        cost: of its death, in words."""

    def excuse(self, name: str, /) -> None:
        """What killed it, this time and before, was found and is gone."""

    def tell(self, text: str, /) -> None:
        """What a person should know."""

    def samples_by(self, arithmetic: Arithmetic, /) -> None:
        """How the engine of a replica multiplies rows."""


class ReplicaPool:
    """See the module. make: starts the process of a number. leave_s: seconds that a replica has to end what it runs."""

    def __init__(
        self,
        wanted: int,
        make: Callable[[int], ActorHandle],
        queue: ActorHandle,
        store: ActorHandle,
        nodes: Nodes,
        supervisor: Supervisor,
        listeners: tuple[Listener, ...],
        leave_s: float,
    ) -> None:
        self._make = make
        self._queue = queue
        self._store = store
        self._nodes = nodes
        self._supervisor = supervisor
        self._listeners = listeners
        self._leave_s = leave_s
        self._wanted = wanted
        self._changed = asyncio.Event()
        self._keepers: dict[int, asyncio.Task[None]] = {}
        self._leaving: dict[int, asyncio.Task[None]] = {}
        self._fenced: dict[str, str] = {}
        self._serving: dict[str, ActorHandle] = {}
        self._one_served = False
        # At once, so that their imports overlap with those of the other parts.
        self._handles = {index: make(index) for index in range(wanted)}

    @property
    def wanted(self) -> int:
        return self._wanted

    @property
    def changing(self) -> bool:
        """Whether some are to join or to leave."""
        return bool(self._leaving) or len(self._keepers) != self._wanted

    @property
    def serving(self) -> list[ActorHandle]:
        """Those that serve, or will soon."""
        return list(self._serving.values())

    @property
    def named(self) -> dict[str, ActorHandle]:
        """The same by their names."""
        return dict(self._serving)

    def scale(self, wanted: int) -> int:
        """Have so many, at least one, from now on; how many it were before."""
        before, self._wanted = self._wanted, wanted
        self._changed.set()
        return before

    def fence(self, name: str, why: str) -> bool:
        """End a replica that is past a deadline, for another one to take its place; whether there is one of that
        name."""
        handle = next((self._handles[index] for index in self._handles if replica_name(index) == name), None)
        if handle is not None and name not in self._fenced:
            self._fenced[name] = why
            ray.kill(handle)
        return handle is not None

    async def loop(self) -> None:
        """Have as many as are wanted, for ever. The first error of one is raised."""
        try:
            while True:
                self._changed.clear()
                self._begin()
                await self._until_a_replica_ends()
        finally:
            tasks = [*self._keepers.values(), *self._leaving.values()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _begin(self) -> None:
        """Keep those that are wanted and are not there, have those leave that are not wanted."""
        joining, leaving = changes(self._wanted, self._keepers.keys(), self._leaving.keys())
        for index in joining:
            if index not in self._handles:
                self._handles[index] = self._make(index)
            name = replica_name(index)
            self._keepers[index] = asyncio.create_task(self._supervisor.owned(name, self._keep(index)), name=name)
        for index in leaving:
            name = f"{replica_name(index)} leaves"
            self._leaving[index] = asyncio.create_task(self._let_go(index), name=name)

    async def _until_a_replica_ends(self) -> None:
        change = asyncio.create_task(self._changed.wait())
        try:
            await asyncio.wait({change, *self._keepers.values()}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            change.cancel()
        for index in [index for index, keeper in self._keepers.items() if keeper.done()]:
            self._keepers.pop(index).result()
            if (leaving := self._leaving.pop(index, None)) is None:
                raise ComponentError(f"{replica_name(index)} ended before the learner; it should run as long")
            await leaving

    async def _keep(self, index: int) -> None:
        """Run one replica; after the death of its process fence it and start another under the same name, until it is
        to leave."""
        name, longest_prompt = replica_name(index), await self._supervisor.ready()
        # Whatever had this name before can write no more, and its groups are issued again.
        epoch = await self._queue.next_epoch.remote(name)
        while True:
            death = await self._run(name, self._handles[index], epoch, longest_prompt)
            self._left(name)
            if index in self._leaving:
                await self._forget(index)
                return
            if death is None:
                return
            epoch, excused, groups = await self._queue.died.remote(name)
            if excused:
                self._supervisor.excuse(name)
            # It may only be cut off from us: then it ends when Ray reaches it.
            ray.kill(self._handles[index])
            await self._store.leave.remote(name)
            cost = f"issued again: {how_many(groups, 'group', 'groups')}"
            await self._supervisor.restart_or_raise(name, death, self._fenced.pop(name, None), cost)
            if index in self._leaving:  # meanwhile it was not wanted any more
                await self._forget(index)
                return
            self._handles[index] = self._make(index)

    async def _run(self, name: str, handle: ActorHandle, epoch: int, longest_prompt: int) -> BaseException | None:
        """One process, to its end, or to its death, which is returned."""
        try:
            slot = await self._nodes.place_replica(name, handle, lambda: bool(self._serving))
            arithmetic = await self._started(name, handle.start.remote(epoch, longest_prompt, slot))
            self._supervisor.served(name)
            if arithmetic is not None:
                self._supervisor.samples_by(arithmetic)
            self._serving[name] = handle
            self._one_served = True
            for listener in self._listeners:
                listener.serves(name, handle)
            await handle.run.remote()
            return None
        except (ray.exceptions.RayError, ProcessDiedError) as death:
            return death

    async def _started(self, name: str, start: Any) -> Arithmetic | None:
        """Await the start of one, and what its engine says of its arithmetic. Raises DeadlineError while none has ever
        served: then it is the configuration that is wrong. Later one that is past the deadline is stuck, and is dead
        like one that was killed."""
        try:
            arithmetic: Arithmetic | None = await self._supervisor.in_time(name, start)
            return arithmetic
        except DeadlineError as late:
            if not self._one_served:
                raise
            self._fenced[name] = str(late).removeprefix(f"{name}: ")
            raise ProcessDiedError(str(late)) from late

    def _left(self, name: str) -> None:
        self._serving.pop(name, None)
        for listener in self._listeners:
            listener.left(name)

    async def _let_go(self, index: int) -> None:
        """Have a replica end what it runs, then end it; its keeper does the rest."""
        name, handle = replica_name(index), self._handles[index]
        serves = name in self._serving
        self._left(name)
        try:
            if serves:
                await within(self._leave_s, handle.leave.remote(), who=name, what="leaving")
        except DeadlineError:
            self._supervisor.tell(f"{name} leaves before all that it runs has ended; the rest goes on elsewhere")
        except ray.exceptions.RayError:
            pass  # it died meanwhile, which its keeper knows
        ray.kill(handle)

    async def _forget(self, index: int) -> None:
        """What a replica that left had is the others'."""
        name = replica_name(index)
        ray.kill(self._handles.pop(index))
        self._fenced.pop(name, None)
        await self._queue.next_epoch.remote(name)
        await self._store.leave.remote(name)


def changes(wanted: int, kept: Collection[int], leaving: Collection[int]) -> tuple[list[int], list[int]]:
    """(numbers that join, numbers that leave): of those that are `kept` some are `leaving` already. One that leaves
    joins again, if it is wanted, once it has left."""
    there, going = set(kept), set(leaving)
    joining = [index for index in range(wanted) if index not in there]
    return joining, sorted(index for index in there - going if index >= wanted)
