"""A learner rank's checkpoints, beside its steps: the rank stands still for the snapshot only.

    begin: snapshot in the compute thread  ->  the step's line of metrics is kept
           ->  write, sync, verify, rename in a thread of their own  ->  queue: covered

Guarantees: one save at a time, so one snapshot in memory; the queue lets rows go only after the commit. On the ranks
that only take part nothing is under way after the snapshot. What is saved is the core's business.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

from ray.actor import ActorHandle

from streamrl.clock import Clock, SystemClock
from streamrl.services.actors.background_task import BackgroundTask
from streamrl.services.actors.deadline import within_or_paused
from streamrl.services.actors.observe import Observer
from streamrl.types import Version

if TYPE_CHECKING:
    from streamrl.learner.checkpoint.checkpoint import Snapshot
    from streamrl.services.learner.core import LearnerCore

T = TypeVar("T")
Tell = Callable[[str, dict[str, Any]], None]


class Saver:
    """One rank's. Made and used in the event loop of its actor.

    Example:
        await saver.begin(compute)      # collective
        ...                             # steps
        await saver.finish()
    """

    def __init__(
        self,
        core: "LearnerCore",
        queue: ActorHandle,
        tell: Tell,
        observer: Observer,
        *,
        who: str,
        limit_s: float,
        told: Callable[[], Awaitable[None]],
        clock: Clock | None = None,
    ) -> None:
        """tell: takes the event `checkpoint` (step, seconds, bytes) after each commit. told: waits until what there is
        to tell of the step has been taken down; a resume from its checkpoint would never tell it again. limit_s: for a
        commit; the time that it waits for a full disk does not count."""
        self._core = core
        self._queue = queue
        self._tell = tell
        self._observer = observer
        self._who = who
        self._limit_s = limit_s
        self._told = told
        self._clock = clock or SystemClock()
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")
        self._begun: Version | None = None
        self._beside = BackgroundTask()
        self._facts: dict[str, Any] = {}
        self._told_over_budget = False

    async def begin(self, compute: ThreadPoolExecutor) -> None:
        """Collective. Wait for the save before, then copy the state; its commit goes on beside. A version is saved
        once. Raises what a save has failed with."""
        await self.finish()
        if self._begun == self._core.version:
            return
        started, self._begun = self._clock.now(), self._core.version
        snapshot = await asyncio.get_running_loop().run_in_executor(compute, self._core.snapshot)
        if snapshot is not None:
            self._beside.start(self._save(snapshot, started), "checkpoint")

    async def finish(self) -> None:
        """Wait until no save is under way. Raises what one has failed with."""
        await self._beside.finish()

    async def unless_failed(self, work: Coroutine[Any, Any, T]) -> T:
        """Await `work`, but end it when a save fails. Raises what that failed with."""
        return await self._beside.unless_failed(work)

    def take_facts(self) -> dict[str, Any]:
        """What the next line of metrics says of the checkpoint that was committed last, once."""
        facts, self._facts = self._facts, {}
        return {f"checkpoint/{name}": value for name, value in facts.items()}

    def close(self) -> None:
        """Take no more saves; does not wait for one that is under way."""
        self._thread.shutdown(wait=False)

    async def _save(self, snapshot: "Snapshot", started: float) -> None:
        step, num_bytes = snapshot.version.step, snapshot.num_bytes
        await self._told()
        with self._observer.span("commit", "checkpoint"):
            commit = asyncio.get_running_loop().run_in_executor(self._thread, self._core.commit, snapshot)
            oldest = await within_or_paused(
                self._limit_s, commit, who=self._who, what="the checkpoint", pause=self._pause
            )
        over_budget = await self._queue.covered.remote(step, oldest)
        if over_budget and not self._told_over_budget:
            self._tell("notice", {"text": over_budget})
        self._told_over_budget = bool(over_budget)
        self._facts = {"step": step, "seconds": self._clock.now() - started, "bytes": num_bytes}
        self._tell("checkpoint", self._facts)

    async def _pause(self) -> str:
        return self._core.pause
