"""All ranks of the learner as one part: made together, asked together, ended together."""

import secrets
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any

import ray
from ray.actor import ActorHandle

from streamrl.errors import ConfigError
from streamrl.learner.parallel.dispatch import Dispatch, DispatchTable
from streamrl.learner.parallel.rank_mesh import RankMesh
from streamrl.services.actors.deaths import DIED, process_died
from streamrl.services.controller.parts import Parts, sees_run
from streamrl.services.controller.worker_group import WorkerGroup
from streamrl.services.run.folder import RunFolder

LEARNER_CALLS = DispatchTable(
    "learner",
    {
        # Collective, or of what each rank has for itself.
        "meet": Dispatch.RANK_ZERO,
        "build": Dispatch.ONE_TO_ALL,
        "enter": Dispatch.ONE_TO_ALL,
        "warm_up": Dispatch.ONE_TO_ALL,
        "run": Dispatch.ONE_TO_ALL,
        "close": Dispatch.ONE_TO_ALL,
        "status": Dispatch.ONE_TO_ALL,
        "progress": Dispatch.ONE_TO_ALL,
        # Rank 0 makes room for versions, and its plan has the other ranks do what it was told.
        "expect_replicas": Dispatch.RANK_ZERO,
        "stop": Dispatch.RANK_ZERO,
        "finish": Dispatch.RANK_ZERO,
    },
)
"""Every method of `streamrl.services.learner.actor.LearnerRank`. None is called with rows: these go from rank to rank
in the plan of a step, by the same mesh."""


class Learners:
    """The ranks, and whoever takes their place.

    Example:
        learners.make()
        built, *_ = await learners.build(controller)
        result, *_ = await learners.call("run")
    """

    def __init__(
        self,
        parts: Parts,
        run: RunFolder,
        queue: ActorHandle,
        store: ActorHandle,
        mesh: RankMesh,
        home: ActorHandle | None = None,
    ) -> None:
        self._parts = parts
        self._run = run
        self._queue = queue
        self._store = store
        self._mesh = mesh
        self._home = home
        self._group: WorkerGroup | None = None
        self._nodes: list[str] = []
        """Ray's ids of those that ranks are on, where there are several."""

    def make(self) -> None:
        """Start the processes of all ranks, in place of those that there are."""
        for rank in self._group.ranks if self._group is not None else ():
            ray.kill(rank)
        meeting = self._new_meeting()
        told = meeting, self._queue, self._store, self._home
        self._nodes = self._parts.learner_nodes(self._nodes)
        ranks = [self._parts.learner(rank, *told, self._nodes) for rank in range(self._mesh.world_size)]
        self._group = WorkerGroup(LEARNER_CALLS, self._mesh, ranks, progress="progress")

    def _new_meeting(self) -> str:
        """A fresh file for the ranks to find each other; what dead ones left of theirs is removed."""
        for old in self._run.path.glob("learner-*.store"):
            old.unlink(missing_ok=True)
        return str(self._run.path / f"learner-{secrets.token_hex(4)}.store")

    async def build(self, controller: ActorHandle) -> Any:
        """Have the ranks find each other and load the model; what each found. Raises ConfigError where one does not see
        the run's folder."""
        if not self._nodes:
            return await self.call("build", controller)
        for node in self._nodes[1:]:
            if why := await sees_run(node, str(self._run.path), self._run.run_id):
                raise ConfigError(why)
        return await self.call("build", controller, await self.call("meet"))

    async def call(self, method: str, *args: Any) -> Any:
        """As `WorkerGroup.call`."""
        return await self._made.call(method, *args)

    async def expect_replicas(self, count: int) -> None:
        """Tell rank 0, which makes room for as many versions as replicas may hold. A rank that dies over it is told
        when it is back."""
        with suppress(*DIED):
            await self._call_rank_0("expect_replicas", count)

    async def stop(self) -> None:
        """Have the ranks finish their step, commit a checkpoint of it, and end `run`."""
        if self._group is not None:
            await self._call_rank_0("stop")

    async def finish(self) -> None:
        """The same, and the run is finished with it. Ranks that die over it are to be told again."""
        try:
            await self._call_rank_0("finish")
        except DIED as error:
            if not process_died(error):
                raise

    def status_calls(self) -> list[Coroutine[Any, Any, Any]]:
        """One call for what each rank says of itself."""
        return [] if self._group is None else self._group.each("status")

    def closing(self) -> list[Coroutine[Any, Any, Any]]:
        """One call for each rank that puts its things in order."""
        return [] if self._group is None else self._group.each("close")

    @property
    def _made(self) -> WorkerGroup:
        assert self._group is not None, "the ranks are called before they are made"
        return self._group

    async def _call_rank_0(self, method: str, *args: Any) -> None:
        """Call a method of rank 0 alone; its error is as Ray gives it."""
        (call,) = self._made.each(method, *args)
        await call
