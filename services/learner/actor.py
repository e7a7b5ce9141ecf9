"""A learner rank: the actor around `LearnerCore`.

Rank 0 takes the lease of a step, makes the plan and hands it to the other ranks; all ranks train; rank 0 commits the
step and reports. The commit comes after every rank's optimizer step, since the plan of the next step does not leave
before. Torch runs in one thread of its own, so the actor answers at any time; versions are published
(`streamrl.services.learner.publisher`) and checkpoints written (`streamrl.services.learner.saver`) beside the steps.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
import ray
from ray.actor import ActorHandle

from streamrl.buffers.rows.records import Lease
from streamrl.clock import SystemClock
from streamrl.config import Config
from streamrl.errors import ComponentError
from streamrl.learner.parallel.late_ranks import Progress
from streamrl.observability.component_means import ComponentMeans
from streamrl.observability.timeline import StepTimer
from streamrl.scheduling.off_policy_guard import ShareGuard
from streamrl.services.actors.deadline import within
from streamrl.services.actors.event_sender import EventSender
from streamrl.services.actors.filtered_share import FilteredShare
from streamrl.services.actors.observe import Observer
from streamrl.services.actors.process_environment import extend_import_path
from streamrl.services.actors.step_schedule import checkpoint_due, evaluation_due
from streamrl.services.learner.lease_facts import lease_facts
from streamrl.services.learner.publisher import Publisher
from streamrl.services.learner.saver import Saver
from streamrl.services.learner.step_plan import FINISH, SAVE, STOP, StepPlan
from streamrl.services.learner.thread_watch import ThreadWatch
from streamrl.services.queue.far_rows import FarRows
from streamrl.services.run.folder import RunFolder
from streamrl.services.weights.actor import EVALUATION
from streamrl.system.disk import free_bytes
from streamrl.system.disk_space import LOOK_EVERY_S

if TYPE_CHECKING:
    from streamrl.learner.supervised.warmup import WarmupProgress

T = TypeVar("T")

STARTING = "starting", 0
PHASES = ("wait", "read", "pack", "forward_backward", "optimizer", "publish", "commit", "checkpoint")


class LearnerRank:
    """See the module."""

    def __init__(
        self,
        rank: int,
        run_folder: str,
        config: dict[str, Any],
        meeting: str,
        queue: ActorHandle,
        store: ActorHandle,
        home: ActorHandle | None = None,
    ) -> None:
        extend_import_path()
        self._rank = rank
        self._config = msgspec.convert(config, Config)
        self._run = RunFolder.open(Path(run_folder))
        self._queue = queue
        self._store = store
        self._far = FarRows("learner", home, self._config.deadlines.step_s, leases=True)
        # Here and not above: the controller makes this class and has no use for torch.
        from streamrl.services.learner.core import LearnerCore

        self._core = LearnerCore(self._run, self._config, rank, Path(meeting))
        self._compute = ThreadPoolExecutor(max_workers=1, thread_name_prefix="compute")
        self._watch = ThreadWatch()
        self._stop = asyncio.Event()
        self._otherwise = STOP
        """What there is to do without a lease."""
        self._finished = False
        self._generated = 0
        self._filtered = FilteredShare()
        self._components = ComponentMeans()
        self._checkpoint_wanted = False
        self._guard = ShareGuard(self._config.learner.algorithm)
        self._replicas = self._config.rollout.replicas
        self._observer = Observer(self._run, self._config, self._name)
        limit = self._config.deadlines.checkpoint_s
        self._saver = Saver(
            self._core, queue, self._report, self._observer, who=self._name, limit_s=limit, told=self._step_reported
        )
        self._line = asyncio.Event()
        """Set while there is no step of which the line of metrics is still to be made."""
        self._line.set()
        self._timer: StepTimer | None = None
        """Of the steps, while there are any."""
        self._beyond = STARTING
        """What is done before and after them, and how far that is; as `StepTimer.now_in`."""
        self._waits_for_disk = ""
        self._telling: asyncio.Task[None] | None = None
        """Makes that line; named here, since a task that nobody holds may be collected."""

    # ---- start

    async def meet(self) -> str:
        """Of rank 0, where ranks are on several nodes: the place at which it waits for the others."""
        return self._core.meet(ray.util.get_node_ip_address())

    async def build(self, controller: ActorHandle, place: str = "") -> dict[str, Any]:
        """Load model and checkpoint; returns what `LearnerCore.build` does. place: as `meet` says, where it was
        asked."""
        if place and self._rank:
            self._core.come_to(place, ray.util.get_node_ip_address())
        self._controller = controller
        self._event_sender = EventSender(controller.report.remote)
        self._publisher = Publisher(
            self._core, self._store, controller, self._config, self._report, self._observer, rank=self._rank
        )
        limit = self._config.deadlines.start_s
        return await within(limit, self._in_thread(self._core.build), who=self._name, what="loading the model")

    async def enter(self, incarnation: int) -> None:
        """Make versions of this incarnation from now on. What an earlier learner published and nobody can need any more
        would take its part of the budget for ever: whom it was handed back to is gone."""
        self._core.incarnation = incarnation
        if self._rank == 0:
            self._core.keep_only(await self._store.kept.remote())

    async def expect_replicas(self, count: int) -> None:
        """So many rollout replicas follow the versions from now on."""
        self._replicas = count
        self._core.expect_replicas(count)

    async def warm_up(self) -> None:
        """The supervised phase of a fresh run, then the checkpoint that a resume begins with."""
        loop = asyncio.get_running_loop()

        def report(progress: "WarmupProgress") -> None:
            self._beyond = "warm-up", progress.step
            facts = {"step": progress.step, "loss": progress.loss, "score": progress.score}
            if progress.score is not None and self._rank == 0:
                loop.call_soon_threadsafe(self._report, "warmup", facts)

        await self._in_thread(self._core.warm_up, report)
        await self._in_thread(self._core.save)
        await self._flushed()

    async def run(self) -> dict[str, Any]:
        """Train to the last step, or until the queue is closed. Returns `finished` and the step reached.

        Raises:
            ComponentError: the guard has the run pause; a checkpoint of its step is committed.
        """
        try:
            return await self._saver.unless_failed(self._publisher.unless_failed(self._train()))
        finally:
            self._observer.close()

    async def _train(self) -> dict[str, Any]:
        timer = self._timer = StepTimer(SystemClock(), PHASES, self._observer.trace)
        await self._publisher.begin(self._compute)
        while self._core.step < self._config.learner.steps and await self._step(timer):
            pass
        await self._publisher.finish()
        await self._step_reported()
        await self._saver.finish()
        finished = self._finished or self._core.step >= self._config.learner.steps
        self._timer, self._beyond = None, ("export", 0)
        if finished:
            await self._in_thread(self._core.export)
            await self._have_last_scored()
        await self._flushed()
        self._beyond = "ended", 0
        if self._guard.pause and not finished:
            raise ComponentError(f"{self._name}: {self._guard.pause}")
        return {"finished": finished, "step": self._core.step}

    async def _have_last_scored(self) -> None:
        """The last version is scored in any case; of a run that ends before its time it is none that was due."""
        if self._rank == 0 and not evaluation_due(self._config, self._core.step):
            await self._store.pin.remote(self._core.version, EVALUATION)
            await self._controller.published.remote(self._core.version)

    async def status(self) -> dict[str, Any]:
        """What it is at: the phase of a step or what is before and after them, and how many it has entered."""
        doing, entered = self._beyond if self._timer is None else self._timer.now_in
        paused = self._core.pause or self._waits_for_disk
        return {"step": self._reached, "doing": doing, "entered": entered, "paused": paused}

    async def progress(self) -> Progress:
        """Where its thread is, for who asks which rank the others wait for."""
        phase = self._beyond[0] if self._timer is None else self._timer.last
        return Progress(self._reached, phase, *self._watch.place())

    @property
    def _reached(self) -> int:
        """The step that it holds; before it is built, it holds none."""
        return 0 if self._beyond == STARTING and self._timer is None else self._core.step

    async def stop(self) -> None:
        """Finish the step under way, commit a checkpoint of it, and end `run`."""
        self._stop.set()

    async def finish(self) -> None:
        """The same, and the weights of that step are the run's last."""
        self._otherwise = FINISH
        self._stop.set()

    async def close(self) -> None:
        """Give back shared memory and the process group."""
        self._saver.close()
        self._publisher.close()
        await self._in_thread(self._core.close)

    # ---- a step

    async def _step(self, timer: StepTimer) -> bool:
        """One step, or a checkpoint out of turn; False when there will be no more."""
        lease, otherwise = await self._next(timer) if self._rank == 0 else (None, STOP)
        plan = await self._plan(lease, otherwise)
        if plan.step < 0:
            with timer.phase("checkpoint"):
                await self._save()
            self._finished = plan.step == FINISH.step
            return plan.step == SAVE.step
        limit = self._config.deadlines.step_s
        training = self._in_thread(self._core.train, plan, timer)
        metrics = await within(limit, training, who=self._name, what=f"step {plan.step}")
        committed = self._queue.commit.remote(plan.step) if self._rank == 0 else None
        with timer.phase("publish"):
            publication = await self._publisher.begin(self._compute)
            await self._step_reported()  # of the step before, so no more than one step is untold at any time
        with timer.phase("commit"):
            counts: dict[str, Any] = {} if committed is None else await committed
        self._line.clear()
        with timer.phase("checkpoint"):
            await self._save_if_due()
        if lease is None:
            self._line.set()
            return True
        self._checkpoint_wanted = counts["checkpoint_wanted"]
        self._watch_share(metrics)
        times = timer.finish()
        facts = {**metrics, **self._facts(lease, counts, times["time/step"]), **times, **self._saver.take_facts()}
        self._telling = asyncio.create_task(self._report_step(facts, publication), name="line of metrics")
        return True

    async def _plan(self, lease: Lease | None, otherwise: StepPlan) -> StepPlan:
        """The others wait for rank 0 without a limit. It comes last, so they take the plan at once, or one hangs."""
        planning = self._in_thread(self._core.plan, lease, otherwise)
        if self._rank:
            return await planning
        what = f"handing out the plan of step {self._core.step}, which each rank waits for unless it hangs,"
        return await within(self._config.deadlines.step_s, planning, who=self._name, what=what)

    def _watch_share(self, metrics: dict[str, float]) -> None:
        """Tell of it, and stop after the step where the guard says so."""
        if text := self._guard.check(self._core.step, metrics):
            self._report("notice", {"text": text})
        if self._guard.pause:
            self._stop.set()

    async def _report_step(self, facts: dict[str, Any], publication: "asyncio.Task[dict[str, Any]]") -> None:
        """The step's line of metrics, with what its version took to publish. None when that failed: the run ends."""
        await asyncio.wait({publication})
        if not publication.cancelled() and publication.exception() is None:
            self._report("step", {**facts, **publication.result()})
            self._line.set()

    async def _next(self, timer: StepTimer) -> tuple[Lease | None, StepPlan]:
        """What rank 0 has the ranks do: train on a lease, or what else."""
        if self._checkpoint_wanted:
            with timer.phase("checkpoint"):
                if await self._still_wanted():
                    return None, SAVE
        with timer.phase("wait"):
            return await self._lease(), self._otherwise

    async def _still_wanted(self) -> bool:
        """Whether the queue needs a further checkpoint to let go of rows, after the one that may be under way. Without
        it there may be no room for the rows of the next step."""
        self._checkpoint_wanted = False
        await self._saver.finish()
        return (await self._queue.status.remote())["checkpoint_wanted"]

    async def _lease(self) -> Lease | None:
        """The batch of this step, its rows on this node; None when the queue is closed, or the order to stop comes
        first. Of a batch with rows that are lost the queue makes another one.
        """
        while True:
            lease = await self._next_lease()
            if lease is None or not await self._far.lost(lease.frames):
                return lease

    async def _next_lease(self) -> Lease | None:
        lease: asyncio.Future[Lease | None] = asyncio.ensure_future(self._queue.lease.remote(self._core.step))
        stop = asyncio.create_task(self._stop.wait())
        await asyncio.wait({lease, stop}, return_when=asyncio.FIRST_COMPLETED)
        if self._stop.is_set():
            lease.cancel()
            return None
        stop.cancel()
        return await lease

    async def _save_if_due(self) -> None:
        if checkpoint_due(self._config, self._core.step):
            await self._save()

    async def _save(self) -> None:
        await self._publisher.finish()  # the checkpoint has the digest of its version
        await self._wait_for_disk_space()
        await self._saver.begin(self._compute)

    async def _wait_for_disk_space(self) -> None:
        """Wait on rank 0, which writes it, until the disk has room for all of it; the others wait for rank 0. It looks
        on a clock, as `streamrl.system.disk_space` does."""
        if self._rank:
            return
        needed, said = self._core.state_bytes(), False
        while (free := free_bytes(self._run.path)) < needed:
            figures = f"{free / 1e6:.0f} MB free, needs {needed / 1e6:.0f} MB"
            self._waits_for_disk = f"the checkpoint of step {self._core.step} waits for the disk: {figures}"
            if not said:
                self._report("notice", {"text": self._waits_for_disk})
            said = True
            await asyncio.sleep(LOOK_EVERY_S)
        self._waits_for_disk = ""

    # ---- inside

    @property
    def _name(self) -> str:
        return f"learner-{self._rank}"

    async def _in_thread(self, call: Callable[..., T], *args: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._compute, self._watch.run, call, *args)

    def _report(self, kind: str, facts: dict[str, Any]) -> None:
        self._event_sender.send(kind, facts)

    async def _step_reported(self) -> None:
        await self._line.wait()
        await self._flushed()

    async def _flushed(self) -> None:
        limit = self._config.deadlines.step_s
        await within(limit, self._event_sender.flush(), who="controller", what="what the learner tells it")

    def _facts(self, lease: Lease, counts: dict[str, Any], seconds: float) -> dict[str, Any]:
        """What the step's line of metrics says beside the learner's own numbers."""
        components = self._components.since_last(counts["components"])
        generated = counts["tokens_accepted"] + counts["tokens_ignored"]
        tokens_per_s = (generated - self._generated) / seconds
        self._generated = generated
        return {
            "step": self._core.step,
            "version": str(self._core.version),
            **lease_facts(lease, self._config),
            "reward/filtered_share": self._filtered.since_last(counts),
            "tokens/trained": counts["tokens_trained"],
            "tokens/generated": generated,
            "tokens/dropped": counts["tokens_dropped"],
            "queue/rows": counts["rows_waiting"],
            "queue/unscored": counts["rows_unscored"],
            "queue/bytes": counts["bytes_used"],
            "queue/wait_s": lease.waited_s,
            "queue/unscored_s": lease.unscored_s,
            "queue/quarantined": counts["prompts_quarantined"],
            "queue/resting": counts["prompts_resting"],
            "rollout/tokens_per_s": tokens_per_s,
            "rollout/replicas": self._replicas,
            **{f"reward/{name}/mean": mean for name, mean in components.items()},
        }
