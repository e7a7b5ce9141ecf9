"""The nodes of a run: who is placed where, and which actor serves which node. The controller owns it.

Only a run that places its replicas by `rollout.resources` has other nodes; in any other nothing here does anything. A
node is known by the id of its folder (`streamrl.services.weights.node_folder`), which stays when Ray is started anew;
so the rows of an earlier launch are found by asking every node that is up.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import ray
from ray.actor import ActorHandle

from streamrl.buffers.segments.places import node_of
from streamrl.config import Config
from streamrl.config.estimates.gpus import replica_demand
from streamrl.errors import DeadlineError, ProcessDiedError
from streamrl.scheduling.placement import Supply, standing
from streamrl.services.actors.deadline import within
from streamrl.services.actors.deaths import node_is_gone
from streamrl.services.actors.stack_dump import DUMP_S
from streamrl.services.controller.parts import Parts
from streamrl.services.controller.supply import supply
from streamrl.services.run.folder import RunFolder
from streamrl.services.weights.node import NodeSlot, id_on, remove_on
from streamrl.services.weights.node_folder import Visit

LOOK_EVERY_S = 1.0
"""Seconds between two looks for a node that is not up yet: Ray tells nobody when one comes."""

PENDING_S = 30.0
"""Seconds without a process after which it is told what a replica takes, and what there is."""

ANSWERS_WITHIN_S = 1.0
"""Seconds that a node has to say its figures."""


class Nodes:
    """See the module. tell: takes what a person should know. supply: what the nodes have."""

    def __init__(
        self,
        parts: Parts,
        run: RunFolder,
        config: Config,
        tell: Callable[[str], None],
        supply: Callable[[], list[Supply]] = supply,
    ) -> None:
        self._supply = supply
        self._parts = parts
        self._visit = Visit(run.record, run.key())
        self._config = config
        self._tell = tell
        self._store: ActorHandle | None = None
        self._seats: dict[str, NodeSlot] = {}
        """By Ray's id of the node."""
        self._one = asyncio.Lock()
        self._gone: set[str] = set()
        self._told: set[str] = set()
        self.home: ActorHandle | None = None

    def make(self, queue: ActorHandle, store: ActorHandle) -> None:
        """Start the actor of the run's own node, if there may be others. Called by the controller's actor."""
        if self._config.rollout.resources is not None:
            self._store = store
            self.home = self._parts.run_node(ray.get_runtime_context().current_actor, queue, store)

    async def place_replica(self, name: str, replica: ActorHandle, others_serve: Callable[[], bool]) -> NodeSlot | None:
        """Wait until a replica has a place, and have its node ready; None on the run's own node.

        Raises DeadlineError when no node has room for it, and there is no other replica to go on with meanwhile;
        ProcessDiedError when its node is gone again.
        """
        if self.home is None:
            return None
        ray_node = await self._placed(name, replica, others_serve)
        if ray_node == ray.get_runtime_context().get_node_id():
            return None
        try:
            return await self._place_on(ray_node)
        except ray.exceptions.RayError as error:
            if node_is_gone(error):
                raise ProcessDiedError(f"{name}: its node went away while it was made ready") from error
            raise

    async def find(self, node: str) -> ActorHandle | None:
        """The actor of a node; None when the node is gone. One of an earlier launch may come up within the start."""
        if node in self._gone:
            return None
        try:
            return await within(self._config.deadlines.start_s, self._search(node), who="controller", what="a node")
        except DeadlineError:
            self._gone.add(node)
            self._tell(f"node {node} has rows of this run and did not come up; they count as lost")
            return None

    async def _search(self, node: str) -> ActorHandle:
        while True:
            # The newest first: a node that was away has a new id in Ray, and the same folder.
            for seat in reversed(self._seats.values()):
                if seat.node == node:
                    return seat.service
            await self._restore_nodes()
            if all(seat.node != node for seat in self._seats.values()):
                await asyncio.sleep(LOOK_EVERY_S)

    async def _restore_nodes(self) -> None:
        """Take up every node that had a part of this run before."""
        home = ray.get_runtime_context().get_node_id()
        up = [one["NodeID"] for one in await asyncio.to_thread(ray.nodes) if one["Alive"]]
        for ray_node in up:
            if ray_node == home or ray_node in self._seats:
                continue
            try:
                if await id_on(ray_node, self._visit.record.run_id) is not None:
                    await self._place_on(ray_node)
            except ray.exceptions.RayError:
                continue  # it went away while it was asked

    async def _placed(self, name: str, replica: ActorHandle, others_serve: Callable[[], bool]) -> str:
        limit = self._config.deadlines.start_s
        asked: Any = asyncio.ensure_future(replica.ray_node.remote())
        told_after = min(PENDING_S, limit)
        if await _done_within(asked, told_after):
            return asked.result()
        self._tell(f"{name} has no process yet after {told_after:g} s: {await self._standing()}")
        wait_s = limit - told_after
        while not await _done_within(asked, wait_s):
            if not others_serve():
                where = f"{name} has no process yet after {limit:g} s: {await self._standing()}"
                raise DeadlineError(f"{where}; start Ray on a node that has it free")
            wait_s = limit
        return asked.result()

    async def _standing(self) -> str:
        """What a replica takes against what each node has."""
        return standing(replica_demand(self._config) or {}, await asyncio.to_thread(self._supply))

    async def _place_on(self, ray_node: str) -> NodeSlot:
        async with self._one:
            if ray_node not in self._seats:
                service = self._parts.node(ray_node, self._visit, self.home, self._store)
                opened: Any = service.open.remote()
                told = await within(self._config.deadlines.start_s, opened, who="controller", what="a node")
                self._seats[ray_node] = NodeSlot(*told, service)
            return self._seats[ray_node]

    async def tidy(self, queue: ActorHandle) -> None:
        """Have the nodes remove the log files that the queue let go; what a node that is not up has of them stays."""
        paths = [] if self.home is None else await queue.released_far_files.remote()
        for node in sorted({node_of(path) for path in paths}):
            seat = next((one for one in reversed(self._seats.values()) if one.node == node), None)
            if seat is not None:
                self._report_once(await remove_on(seat, [path for path in paths if node_of(path) == node]))

    def _report_once(self, text: str | None) -> None:
        if text is not None and text not in self._told:
            self._told.add(text)
            self._tell(text)

    async def figures(self) -> dict[str, Any]:
        """What was fetched from other nodes, and under `versions` what each of these took of the published versions;
        nothing in a run that has none."""
        if self.home is None:
            return {}
        seats = list(self._seats.values())
        answers = await asyncio.gather(*(_unless_gone(seat.service.figures.remote()) for seat in seats))
        versions = {seat.node: answer for seat, answer in zip(seats, answers, strict=True) if answer is not None}
        return {**await self.home.figures.remote(), "versions": versions}

    async def stacks(self) -> list[tuple[str, str, int]]:
        """Of each other node that answers in time its id, the stacks of the run's processes there, and their number."""
        seats = list(self._seats.values())
        limit = 2 * DUMP_S
        answers = await asyncio.gather(*(_unless_gone(seat.service.stacks.remote(), limit) for seat in seats))
        return [(seat.node, *told) for seat, told in zip(seats, answers, strict=True) if told is not None]

    def closing(self) -> list[Any]:
        """One call for each node that puts its things in order, the run's own among them."""
        actors = [seat.service for seat in self._seats.values()] + ([] if self.home is None else [self.home])
        return [actor.close.remote() for actor in actors]


async def _done_within(asked: "asyncio.Future[Any]", limit_s: float) -> bool:
    return bool((await asyncio.wait({asked}, timeout=limit_s))[0])


async def _unless_gone(answer: Any, limit_s: float = ANSWERS_WITHIN_S) -> Any:
    """What a node says; None when it does not say it in time: figures are not worth waiting for."""
    with suppress(ray.exceptions.RayError, TimeoutError):
        async with asyncio.timeout(limit_s):
            return await answer
    return None
