"""The controller: starts the parts of a run, keeps them, evaluates beside the stream, and says how it ended.

    learner    consumes nothing here; waits for the learner's last step; the finite clock of the run
    reward     keeps the reward stage; unblocked by its death
    rollout-i  keeps one replica: on the death of its process the queue fences it and issues its groups again
    evaluation consumes versions to score; waits for the learner's publications; unblocked by `publish`
    controller asks the store and the queue, once a second, who is past a deadline, and fences who is

Any loop but `learner` that ends is an error, and the first error is the one that is reported. Data never passes
through here: only names, numbers and metrics.
"""

import asyncio
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import ray
from ray.actor import ActorHandle

from services.books import RunBook
from services.deadline import within
from services.named_tasks import run_until
from services.observe import Observer, write_trace
from services.parts import Parts, explain_death
from services.run_folder import RunFolder
from streamrl.config import Config
from streamrl.errors import ComponentError, DeadlineError, StreamRLError
from streamrl.failure import FailureReport, report_failure
from streamrl.types import Version

T = TypeVar("T")

RESTARTS = 3
"""Restarts of one part, after which its death ends the run: what kills it each time is not bad luck."""

WATCH_EVERY_S = 1.0
EVALUATION = "evaluation"


class Controller:
    """See the module. `incarnation` is raised by each launch of the run."""

    def __init__(self, run_folder: str, config: dict[str, Any], incarnation: int) -> None:
        self._config = msgspec.convert(config, Config)
        self._run = RunFolder.open(Path(run_folder))
        self._parts = Parts(run_folder, self._config, incarnation)
        self._book = RunBook(self._run, self._config)
        self._observer = Observer(self._run, self._config, "controller")
        self._replicas: dict[int, ActorHandle] = {}
        self._serving: dict[int, ActorHandle] = {}
        self._serves = asyncio.Event()
        self._to_evaluate: asyncio.Queue[Version] = asyncio.Queue()
        self._evaluating = asyncio.Lock()
        self._learners: list[ActorHandle] = []
        self._stopping = False
        self._ended = asyncio.Event()
        self._fenced: dict[str, str] = {}

    # ---- called by the owner

    async def run(self) -> dict[str, Any]:
        """Start the parts, train to the end (or to `stop`), and return the summary."""
        try:
            await self._owned("start", "controller", self._start())
            return await self._run_all()
        finally:
            await self._close_parts()
            self._ended.set()

    async def next_events(self, after: int) -> tuple[int, list[dict[str, Any]]]:
        """(number to ask for next, events from `after` on); waits for one. No events: there will be none."""
        return await self._book.events.after(after)

    async def status(self) -> dict[str, Any]:
        """What each part says of itself."""
        replicas = [await _quick(handle.status.remote()) for handle in list(self._serving.values())]
        counts = await _quick(self._queue.status.remote())
        return {**self._book.status(), "replicas": replicas, "queue": counts}

    async def evaluate(self) -> dict[str, Any]:
        """Score the held-out items under the newest version."""
        version = await self._store.latest.remote()
        if version is None:
            raise ComponentError("evaluation: there is no version yet; wait for the warm-up to end")
        await self._store.pin.remote(version, EVALUATION)
        score = await self._evaluate(Version(*version))
        return {"version": str(Version(*version)), "eval/score": score}

    async def stop(self) -> None:
        """End cleanly: the learner finishes its step and commits a checkpoint, then every part closes."""
        self._stopping = True
        if self._learners:
            await self._learners[0].stop.remote()
            await self._ended.wait()

    # ---- called by the learner

    async def report(self, kind: str, facts: dict[str, Any]) -> None:
        """What the learner did: `phase`, `warmup` or `step`. A step's version may be due for evaluation."""
        self._book.report(kind, facts)

    async def published(self, version: Version) -> None:
        """A version that is to be evaluated was published, pinned for it."""
        self._to_evaluate.put_nowait(Version(*version))

    # ---- the run

    async def _owned(self, phase: str, component: str, work: Coroutine[Any, Any, T]) -> T:
        """Await the work of a component. What fails is written down with its name before anything reacts to it."""
        try:
            return await work
        except (ray.exceptions.RayError, StreamRLError) as error:
            death = explain_death(component, error)
            report = FailureReport.now(component, phase, str(death), self._book.version)
            if report_failure(self._run.path, report):
                self._book.events.add({"kind": "failure", **msgspec.to_builtins(report)})
            self._observer.log.error("failed", component=component, phase=phase, cause=str(death), trace=str(error))
            raise death from error

    async def _run_all(self) -> dict[str, Any]:
        loops = {
            "learner": self._learn(),
            "reward": self._keep_reward(),
            "evaluation": self._evaluate_loop(),
            "controller": self._watch(),
        }
        for index in range(self._config.rollout.replicas):
            loops[_replica_name(index)] = self._keep_replica(index)
        named = {name: self._owned("run", name, loop) for name, loop in loops.items()}
        result = await run_until("learner", named)
        return self._book.summary(result)

    async def _start(self) -> None:
        """Make all actors, so that their imports overlap, then open them in the order in which they need each other."""
        self._queue = self._parts.queue()
        self._store = self._parts.weight_store()
        self._reward = self._parts.reward(self._queue)
        self._learners = [
            self._parts.learner(rank, self._queue, self._store) for rank in range(self._config.learner.num_workers)
        ]
        for index in range(self._config.rollout.replicas):
            self._replicas[index] = self._parts.replica(index, self._queue, self._store)
        me = ray.get_runtime_context().current_actor
        self._built = (await self._all_ranks("build", me))[0]
        step = self._built["checkpoint"]
        longest = self._built["longest_prompt"]
        await self._in_time("the queue", self._queue.open.remote(step or 0, longest))
        if step is not None:
            return self._resume(step)
        self._book.report("phase", {"name": "warm-up"})
        await self._all_ranks("warm_up")

    def _resume(self, step: int) -> None:
        self._book.resume(step)
        self._book.report("phase", {"name": f"resuming from step {step}"})
        for skipped in self._built["skipped"]:
            self._book.report("notice", {"text": f"checkpoint passed over: {skipped}"})

    async def _all_ranks(self, method: str, *args: Any) -> list[Any]:
        calls = [getattr(learner, method).remote(*args) for learner in self._learners]
        return await asyncio.gather(*calls)

    async def _in_time(self, who: str, call: Any) -> Any:
        return await within(self._config.deadlines.start_s, call, who=who, what="the start")

    async def _learn(self) -> dict[str, Any]:
        results = await self._all_ranks("run")
        if results[0]["finished"]:
            await self._all_evaluated()
        counts = await self._queue.status.remote()
        statuses = [await _quick(handle.status.remote()) for handle in list(self._serving.values())]
        return {
            **results[0],
            "two_version_rollouts": sum(status["two_version_rollouts"] for status in statuses if status),
            "discards_by_reason": counts["groups_dropped"],
        }

    async def _close_parts(self) -> None:
        """Let each part put its things in order; one that does not answer ends with this process."""
        closing = [part.close.remote() for part in (self._queue, self._store, *self._learners)]
        await asyncio.gather(*(_quick(call) for call in closing))
        self._observer.close()
        if self._config.observe.trace:
            await asyncio.to_thread(write_trace, self._run)
        self._book.close()

    async def _keep_replica(self, index: int) -> None:
        """Run one replica; after the death of its process fence it and start another under the same name."""
        name = _replica_name(index)
        for restart in range(RESTARTS + 1):
            # Whatever had this name before can write no more, and its groups are issued again.
            epoch = await self._queue.next_epoch.remote(name)
            handle = self._replicas[index]
            try:
                await self._in_time(name, handle.start.remote(epoch, self._built["longest_prompt"]))
                self._serving[index] = handle
                self._serves.set()
                return await handle.run.remote()
            except ray.exceptions.ActorDiedError as error:
                self._serving.pop(index, None)
                self._restart_or_raise(name, restart, error)
                await self._store.leave.remote(name)
                self._replicas[index] = self._parts.replica(index, self._queue, self._store)
            except ray.exceptions.RayError as error:
                raise explain_death(name, error) from error

    async def _keep_reward(self) -> None:
        """The same for the reward stage: what it had not scored is handed out again."""
        for restart in range(RESTARTS + 1):
            epoch = await self._queue.next_epoch.remote("reward")
            try:
                await self._in_time("reward", self._reward.start.remote(epoch))
                return await self._reward.run.remote()
            except ray.exceptions.ActorDiedError as error:
                self._restart_or_raise("reward", restart, error)
                await self._queue.requeue_unscored.remote("reward")
                self._reward = self._parts.reward(self._queue)
            except ray.exceptions.RayError as error:
                raise explain_death("reward", error) from error

    def _restart_or_raise(self, name: str, restarts: int, error: ray.exceptions.RayError) -> None:
        why = self._fenced.pop(name, None)
        death = explain_death(name, error) if why is None else DeadlineError(f"{name} was ended: {why}")
        if restarts == RESTARTS or self._stopping:
            raise death from error
        self._book.report("notice", {"text": f"{death}; restart {restarts + 1} of {RESTARTS}"})

    # ---- evaluation

    async def _evaluate_loop(self) -> None:
        while True:
            version = await self._to_evaluate.get()
            await self._evaluate(version)
            self._to_evaluate.task_done()

    async def _all_evaluated(self) -> None:
        await within(
            self._config.deadlines.rollout_s,
            self._to_evaluate.join(),
            who="controller",
            what="the last evaluation",
        )

    async def _evaluate(self, version: Version) -> float:
        """Score one pinned version on a replica that has room, and give the pin back."""
        async with self._evaluating:
            try:
                manifest = await self._store.pin.remote(version, EVALUATION)
                answers = await within(
                    self._config.deadlines.rollout_s,
                    self._answers(manifest),
                    who="controller",
                    what=f"the evaluation of version {version}",
                )
                score = await self._reward.score_evaluation.remote(answers)
            finally:
                await self._store.unpin.remote(version, EVALUATION)
        self._book.scored(version, score.mean, score.num_failed)
        return score.mean

    async def _answers(self, manifest: bytes) -> bytes:
        """Held-out answers of whichever replica serves; of another one when that dies over it."""
        while True:
            while not self._serving:
                self._serves.clear()
                await self._serves.wait()
            index = next(iter(self._serving))
            try:
                return await self._serving[index].evaluate.remote(manifest)
            except ray.exceptions.ActorDiedError:
                self._serving.pop(index, None)

    # ---- deadlines

    def _fence(self, name: str, why: str) -> None:
        """End a replica that is past a deadline; its keeper starts another, and the others go on meanwhile."""
        index = next((index for index in self._replicas if _replica_name(index) == name), None)
        if index is None:
            raise DeadlineError(f"{name or 'the queue'}: {why}")
        if name not in self._fenced:
            self._fenced[name] = why
            ray.kill(self._replicas[index])

    async def _watch(self) -> None:
        """The heartbeat: tells the view how the replicas are, and fences those that are past a deadline."""
        while True:
            await asyncio.sleep(WATCH_EVERY_S)
            for name, why in (await self._store.late.remote()).items():
                self._fence(name, f"{why}; deadlines.update_s is {self._config.deadlines.update_s:g}")
            for name, why in (await self._queue.overdue.remote(self._config.deadlines.rollout_s)).items():
                self._fence(name, f"{why}; deadlines.rollout_s is {self._config.deadlines.rollout_s:g}")
            replicas = [await _quick(handle.status.remote()) for handle in list(self._serving.values())]
            self._book.replicas([one for one in replicas if one], time.monotonic())


def _replica_name(index: int) -> str:
    return f"rollout-{index}"


async def _quick(call: Any) -> dict[str, Any] | None:
    """What a part says of itself, or None when it does not answer at once: a status must not wait for anybody."""
    try:
        return await asyncio.wait_for(call, 2.0)
    except (TimeoutError, ray.exceptions.RayError):
        return None
