"""A learner rank's versions, beside its steps: the rank stands still for the snapshot only.

    begin: copy of this rank's shards, in the compute thread
           ->  room in shared memory  ->  gather, finite check, digest, write, in a thread of their own
           ->  weight store: published; controller: to be evaluated

Guarantees: one publication at a time and in the order of the steps, so one snapshot in memory, and one collective under
way on the ranks' second group. The learner waits for no replica, but through the bound on versions that lie in shared
memory: the next snapshot waits for the publication before it.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, TypeVar

from ray.actor import ActorHandle

from streamrl.clock import Clock, SystemClock
from streamrl.config import Config
from streamrl.services.actors.background_task import BackgroundTask
from streamrl.services.actors.deadline import within
from streamrl.services.actors.observe import Observer
from streamrl.services.actors.step_schedule import evaluation_due
from streamrl.services.weights.actor import EVALUATION
from streamrl.types import Version
from streamrl.weights.manifest import encode

if TYPE_CHECKING:
    from streamrl.services.learner.core import LearnerCore
    from streamrl.services.learner.version_writer import WeightSnapshot

T = TypeVar("T")
Facts = dict[str, Any]


class Publisher:
    """One rank's. Made and used in the event loop of its actor; the core's incarnation is set before the first version.

    Example:
        publication = await publisher.begin(compute)    # collective
        ...                                             # the next step
        facts = await publication
    """

    def __init__(
        self,
        core: "LearnerCore",
        store: ActorHandle,
        controller: ActorHandle,
        config: Config,
        tell: Callable[[str, Facts], None],
        observer: Observer,
        *,
        rank: int,
        clock: Clock | None = None,
    ) -> None:
        """tell: takes a `notice` when a version has to wait for room."""
        self._core = core
        self._store = store
        self._controller = controller
        self._config = config
        self._tell = tell
        self._observer = observer
        self._rank = rank
        self._who = f"learner-{rank}"
        self._clock = clock or SystemClock()
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="publish")
        self._beside = BackgroundTask()

    async def begin(self, compute: ThreadPoolExecutor) -> "asyncio.Task[Facts]":
        """Collective. Wait for the publication before, then copy the weights; the rest goes on beside.

        Returns what gives the publication's part of the step's metrics: empty on the ranks that only take part. Raises
        what a publication has failed with.
        """
        await self.finish()
        started = self._clock.now()
        with self._observer.span("snapshot", "weights"):
            snapshot = await asyncio.get_running_loop().run_in_executor(compute, self._core.snapshot_weights)
        return self._beside.start(self._publish(snapshot, started), "publication")

    async def finish(self) -> None:
        """Wait until no publication is under way. Raises what one has failed with."""
        await self._beside.finish()

    async def unless_failed(self, work: Coroutine[Any, Any, T]) -> T:
        """Await `work`, but end it when a publication fails. Raises what that failed with."""
        return await self._beside.unless_failed(work)

    def close(self) -> None:
        """Take no more; does not wait for one that is under way."""
        self._thread.shutdown(wait=False)

    async def _publish(self, snapshot: "WeightSnapshot", started: float) -> Facts:
        copied, version = self._clock.now(), snapshot.version
        if self._rank == 0:
            await self._wait_for_memory(snapshot)
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._thread, self._core.wait_to_publish)
        begun = self._clock.now()
        with self._observer.span("publish", "weights"):
            writing = loop.run_in_executor(self._thread, self._core.publish, snapshot, self._span)
            written = await within(
                self._config.deadlines.step_s, writing, who=self._who, what=f"publishing version {version}"
            )
        if written is None:
            return {}
        wrote = self._clock.now()
        due = evaluation_due(self._config, version.step)
        gone, updates = await self._store.publish.remote(encode(written.manifest), EVALUATION if due else None)
        self._core.unlink(gone)
        if due:
            await self._controller.published.remote(version)
        size, ended = written.manifest.total_bytes, self._clock.now()
        return {
            "weights/bytes": size,
            "weights/full_bytes": size,
            "weights/delta_bytes": written.delta_bytes,
            "weights/digest": written.manifest.digest,
            "weights/seconds": ended - started,
            "weights/snapshot_s": copied - started,
            "weights/room_s": begun - copied,
            "weights/gather_s": written.gather_s,
            "weights/check_s": written.check_s,
            "weights/write_s": wrote - begun - written.gather_s - written.check_s - written.encode_s,
            "weights/encode_s": written.encode_s,
            "weights/handover_s": ended - wrote,
            **updates,
        }

    def _span(self, part: str) -> AbstractContextManager[None]:
        return self._observer.span(part, "weights")

    async def _wait_for_memory(self, snapshot: "WeightSnapshot") -> None:
        """Wait, and say so, until shared memory has room for a further version: until nobody needs an older one."""
        deadlines = self._config.deadlines
        said = False
        while lack := self._core.lack_of_memory():
            if not said:
                self._tell("notice", {"text": f"version {snapshot.version} waits for shared memory: {lack}"})
            said = True
            # A replica has so long to take a version up, and an evaluation to let go of one.
            limit = deadlines.update_s + deadlines.rollout_s
            gone: Awaitable[list[Version]] = self._store.retired.remote()
            versions = await within(limit, gone, who=self._who, what=f"room for a version, {lack}")
            if not versions:
                return  # the store is closed: nobody lets go of anything any more
            self._core.unlink(versions)
