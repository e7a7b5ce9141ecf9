"""The controller: starts the parts of a run, keeps them, and says how it ended.

    learner    consumes nothing here; waits for the learner's last step; the finite clock of the run. Ranks that die are
               replaced: the newest checkpoint, a new incarnation, the same batches again
    reward     keeps the reward stage, with as many children as wanted (`streamrl.services.controller.reward_keeper`)
    rollout    keeps the replicas, as many as are wanted (`streamrl.services.controller.replicas`)
    evaluation see `streamrl.services.controller.evaluator`
    quarantine tells of prompts that the queue starts no more (`streamrl.services.controller.health.quarantine_notices`)
    gateway    keeps the door for clients, if the run has one; waits for the queue to open; never ends a run that had it
    controller asks, once a second, the store and the queue who is past a deadline, and fences who is; has the queue
               give out no groups while the disk is nearly full; has autoscaling look
               (`streamrl.services.controller.replica_scaler`)
    stalls     looks whether anything moves (`streamrl.services.controller.health.stall_monitor`)

Any loop but `learner` that ends is an error, and the first error is the one that is reported. The death of the queue or
of the weight store ends the controller too: the owner starts the system again from what is on disk. Data never passes
through here: only names, numbers and metrics.
"""

import asyncio
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import ray
from ray.actor import ActorHandle

from streamrl.buffers.segments.places import node_of
from streamrl.clock import SystemClock
from streamrl.config import Config
from streamrl.errors import ComponentError, DeadlineError, ProcessDiedError
from streamrl.learner.parallel.rank_mesh import RankMesh
from streamrl.observability.stall_detector import Parts as PartStatuses
from streamrl.services.actors.event_sender import Event
from streamrl.services.actors.named_tasks import run_until
from streamrl.services.actors.observe import Observer, write_trace
from streamrl.services.actors.short_call import short_call
from streamrl.services.controller.books import RunBook
from streamrl.services.controller.evaluator import Evaluator
from streamrl.services.controller.gateway_keeper import GatewayKeeper, Words
from streamrl.services.controller.health.disk_watch import DiskWatch
from streamrl.services.controller.health.quarantine_notices import report_quarantined
from streamrl.services.controller.health.stall_monitor import StallMonitor, part_statuses
from streamrl.services.controller.health.supervision import Supervision
from streamrl.services.controller.learners import Learners
from streamrl.services.controller.nodes import Nodes
from streamrl.services.controller.parts import Parts
from streamrl.services.controller.replica_scaler import ReplicaScaler
from streamrl.services.controller.replicas import ReplicaPool
from streamrl.services.controller.reward_keeper import RewardKeeper
from streamrl.services.controller.samples import COLUMNS, newest_samples
from streamrl.services.reward.actor import NAME as REWARD
from streamrl.services.run.folder import RunFolder
from streamrl.services.run.resumed import EVENT, resumed_event, worth_telling
from streamrl.services.run.scaling import sizes
from streamrl.services.storage.mirror import STOP_SHARE, CheckpointMirror
from streamrl.services.weights.actor import EVALUATION
from streamrl.types import EvalSampling, Version

WATCH_EVERY_S = 1.0


class Controller:
    """See the module."""

    def __init__(self, run_folder: str, config: dict[str, Any]) -> None:
        self._config = msgspec.convert(config, Config)
        self._run = RunFolder.open(Path(run_folder))
        self._book = RunBook(self._run, self._config)
        self._observer = Observer(self._run, self._config, "controller")
        self._supervision = Supervision(self._run, self._config, self._book, self._observer.log)
        self._tell = self._supervision.tell
        self._parts = Parts(run_folder, self._config, self._supervision.deaths.made)
        self._nodes = Nodes(self._parts, self._run, self._config, self._tell)
        self._gateway = GatewayKeeper(
            self._run,
            self._config,
            self._supervision.restarts,
            lambda: self._book.newest_step,
            self._book.report,
            self._supervision.deaths.explain,
        )
        self._mirror = CheckpointMirror(self._run, self._config, self._tell)
        self._opened = self._supervision.opened
        self._finishing = False
        self._ended = asyncio.Event()

    # ---- called by the owner

    async def run(self) -> dict[str, Any]:
        """Start the parts, train to the end (or to `stop`), and return the summary."""
        try:
            self._make_parts()
            return await self._run_all()
        finally:
            await self._close_parts()
            self._ended.set()

    async def next_events(self, after: int) -> tuple[int, list[dict[str, Any]]]:
        """(number to ask for next, events from `after` on); waits for one. No events: there will be none."""
        return await self._book.events.after(after)

    async def status(self) -> dict[str, Any]:
        """What each part says of itself."""
        counts = await short_call(self._queue.detailed_status.remote()) if self._opened.is_set() else None
        fetched = await short_call(self._nodes.figures())
        reward = await short_call(self._reward.status_call()) if self._opened.is_set() else None
        parts = {"replicas": await self._replica_statuses(), "reward": reward, "queue": counts, "fetched": fetched}
        own = {**self._gateway.status(), **self._scaler.status(), **self._stalls.status(), **self._mirror.status()}
        return {**self._book.status(), **parts, **own}

    async def evaluate(self, sampling: EvalSampling | None = None) -> dict[str, Any]:
        """Score the held-out items under the newest version: as the run does, or with other samples."""
        version = await self._store.latest.remote()
        if version is None:
            raise ComponentError("evaluation: there is no version yet; wait for the warm-up to end")
        await self._store.pin.remote(version, EVALUATION)
        known = {"version": str(Version(*version)), "step": Version(*version).step}
        if sampling is None:
            return {**known, "eval/score": await self._evaluator.score(Version(*version))}
        sampled = await self._evaluator.score_sampled(Version(*version), sampling)
        return {**known, "eval/score": sampled.mean, "eval/failed": sampled.num_failed, **sampled.parts}

    async def scale(self, wanted: dict[str, int | None]) -> None:
        """Have so many of these parts from now on; None leaves replicas to autoscaling. Waits for none of them."""
        if "rollout" in wanted:
            await self._scaler.by_person(wanted["rollout"])
        if (workers := wanted.get("reward")) is not None:
            before = self._reward.scale(workers)
            self._tell(f"reward workers: {before} -> {workers}")

    async def stop(self) -> None:
        """End cleanly: the learner finishes its step and commits a checkpoint, then every part closes."""
        self._supervision.stopping = True
        await self._learners.stop()
        await self._ended.wait()

    # ---- called by the learner

    async def report(self, events: list[Event]) -> None:
        """What the learner did, in this order: `warmup`, `step`, `checkpoint` or `notice`, with its facts."""
        for kind, facts in events:
            self._book.report(kind, facts)
            if kind == "step":
                self._supervision.deaths.step_made(facts["step"])
            if kind == "checkpoint":
                self._mirror.committed(facts["step"])

    async def published(self, version: Version) -> None:
        """A version that is to be evaluated was published, pinned for it."""
        self._evaluator.due(Version(*version))

    async def gateway_words(self, after: int) -> Words:
        """As `GatewayKeeper.words`. Called by ingresses."""
        return await self._gateway.words(after)

    # ---- called by the actor of this node, in a run that has other nodes

    async def find_node(self, node: str) -> ActorHandle | None:
        """The actor of a node; None when the node is gone."""
        return await self._nodes.find(node)

    async def rows_lost(self, segments: list[str], groups: int, rows: int) -> None:
        """Rows that cannot be read any more: the queue has given them up, and issues their groups again."""
        nodes = ", ".join(sorted({node_of(path) for path in segments}))
        self._tell(f"node {nodes} is gone: {rows} rows of {groups} groups are lost with it, and are generated again")

    # ---- the run

    async def _run_all(self) -> dict[str, Any]:
        loops = {
            "learner": self._keep_learner(),
            "reward": self._reward.keep(),
            "evaluation": self._evaluator.loop(),
            "controller": self._watch(),
            "stalls": self._see_stalls(),
            "quarantine": report_quarantined(self._queue, self._opened, self._tell),
        }
        if self._config.gateway.enabled:
            loops["gateway"] = self._keep_gateway()
        named = {name: self._supervision.owned(name, loop) for name, loop in loops.items()}
        # Each replica has a name of its own in what is written down.
        named["rollout"] = self._pool.loop()
        result = await run_until("learner", named)
        await self._mirror.finish(self._stop_share_s if self._supervision.stopping else self._config.deadlines.upload_s)
        await self._show_samples(result["step"])
        return self._book.summary(result)

    async def _show_samples(self, step: int) -> None:
        """Have trackers show some rollouts. What cannot be had in time is not shown."""
        if not self._config.observe.all_trackers:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(self._config.deadlines.tracker_s):
                rows = await newest_samples(self._queue, self._run, self._config, self._nodes.home)
                if rows:
                    self._book.trackers.table(step, "samples", COLUMNS, rows)

    def _make_parts(self) -> None:
        """Make all actors at once, so that their imports overlap; they open in the order in which they need each
        other."""
        self._mirror.start()
        self._queue = self._parts.queue()
        self._disk = DiskWatch(self._run.path, self._config, self._queue, self._tell)
        self._store = self._parts.weight_store()
        self._nodes.make(self._queue, self._store)
        wanted = sizes(self._run.record, self._config)
        make_reward = partial(self._parts.reward, self._queue, self._nodes.home)
        self._reward = RewardKeeper(wanted["reward"], make_reward, self._queue, self._supervision)
        learner = self._config.learner
        mesh = RankMesh.of(learner.num_workers, learner.tensor_parallel, learner.sequence_parallel)
        self._learners = Learners(self._parts, self._run, self._queue, self._store, mesh, self._nodes.home)
        self._learners.make()
        self._evaluator = Evaluator(
            self._config,
            self._store,
            self._reward.seat,
            self._book,
            self._finish_at,
            lambda *told: self._pool.fence(*told),
        )
        self._pool = ReplicaPool(
            wanted["rollout"],
            lambda index: self._parts.replica(index, self._queue, self._store),
            self._queue,
            self._store,
            self._nodes,
            supervisor=self._supervision,
            listeners=(self._evaluator, self._gateway),
            leave_s=self._config.deadlines.stop_s,
        )
        self._stalls = StallMonitor(
            self._run,
            self._config,
            SystemClock(),
            ask=self._part_statuses,
            disk_low=lambda: self._disk.low,
            far_stacks=self._nodes.stacks,
            tell=self._tell,
        )
        self._scaler = ReplicaScaler(
            self._config,
            SystemClock(),
            self._pool,
            self._queue,
            expect=self._learners.expect_replicas,
            report=self._book.report,
            fixed=self._run.record.replicas is not None,
        )

    async def _close_parts(self) -> None:
        """Let each part put its things in order; one that does not answer ends with this process."""
        asking = (self._queue.close.remote(), self._store.close.remote(), *self._gateway.closing())
        await asyncio.gather(*map(short_call, asking))
        await asyncio.gather(*(short_call(call) for call in (*self._learners.closing(), *self._nodes.closing())))
        await self._mirror.finish(self._stop_share_s)
        self._supervision.deaths.close()
        self._observer.close()
        if self._config.observe.trace:
            await asyncio.to_thread(write_trace, self._run)
        if self._config.observe.all_trackers:
            await asyncio.to_thread(self._book.finish_trackers, stopping=self._supervision.stopping)
        self._book.close()

    @property
    def _stop_share_s(self) -> float:
        """What a store has of the time to stop."""
        return self._config.deadlines.stop_s * STOP_SHARE

    # ---- the learner

    async def _keep_learner(self) -> dict[str, Any]:
        """Train to the end, with other ranks when these die."""
        while True:
            try:
                await self._start_learner()
                return await self._learn()
            except ProcessDiedError as death:
                await self._supervision.restart_or_raise("learner", death, cost=self._book.steps_to_repeat())
                self._learners.make()

    async def _start_learner(self) -> None:
        """Bring the ranks to the newest checkpoint, or through the warm-up, under an incarnation of their own."""
        me = ray.get_runtime_context().current_actor
        built, *_ = await self._learners.build(me)
        step = built["checkpoint"]
        if self._opened.is_set():
            incarnation = await self._queue.resume_from.remote(step or 0)
        else:
            accepted = self._run.record.accept_changed_data
            opened: Any = self._queue.open.remote(step or 0, built["longest_prompt"], accepted)
            incarnation = await self._supervision.in_time("the queue", opened)
        await self._learners.call("enter", incarnation)
        await self._learners.expect_replicas(self._pool.wanted)
        await self._report_resumed(step, built["skipped"])
        # The other parts get ready meanwhile: loading an engine takes seconds, and it is idle until there is a version.
        self._supervision.open(built["longest_prompt"])
        if step is None:
            self._book.report("phase", {"name": "warm-up"})
            await self._learners.call("warm_up")
        self._mirror.committed(step or 0)

    async def _report_resumed(self, step: int | None, passed_over: list[str]) -> None:
        """Say by count what was found; nothing in a fresh run."""
        found = await self._queue.found.remote()
        if not worth_telling(step, found, passed_over):
            return
        self._book.resume(step or 0)
        for skipped in passed_over:
            self._tell(f"checkpoint passed over: {skipped}")
        self._book.report(EVENT, resumed_event(step, found, passed_over))
        self._book.report("phase", {"name": f"resuming from step {step or 0}"})

    async def _learn(self) -> dict[str, Any]:
        self._supervision.served("learner")
        self._supervision.training = True
        if self._finishing:
            await self._learners.finish()
        result, *_ = await self._learners.call("run")
        if result["finished"]:
            await self._evaluator.all_scored()
        counts = await self._queue.status.remote()
        statuses = await self._replica_statuses()
        self._book.replicas(statuses, time.monotonic())
        return {
            **result,
            "rows_lost": counts["rows_lost"],
            **{name: counts[name] for name in ("prompts_quarantined", "rows_too_long", "rows_unusable")},
            "fetched": await self._nodes.figures(),
            "two_version_rollouts": sum(status["two_version_rollouts"] for status in statuses),
            "discards_by_reason": counts["groups_dropped"],
        }

    async def _finish_at(self, version: Version, score: float) -> None:
        """The held-out score that the run aims at is reached."""
        if not self._finishing:
            self._finishing = True
            target = self._config.eval.target_score
            self._tell(f"version {version} has a score of {score:.3f}, eval.target_score is {target:g}: the run ends")
            await self._learners.finish()

    # ---- the gateway

    async def _keep_gateway(self) -> None:
        longest_prompt = await self._supervision.ready()
        this = ray.get_runtime_context().current_actor
        make = partial(self._parts.gateway, this, self._queue, self._store, self._nodes.home)
        await self._gateway.keep(make, longest_prompt, this)

    async def _replica_statuses(self) -> list[dict[str, Any]]:
        statuses = await asyncio.gather(*(short_call(handle.status.remote()) for handle in self._pool.serving))
        return [status for status in statuses if status is not None]

    # ---- deadlines

    def _fence(self, name: str, why: str) -> None:
        """End a replica that is past a deadline; its keeper starts another, and the others go on meanwhile."""
        if not self._pool.fence(name, why):
            raise DeadlineError(f"{name or 'the queue'}: {why}")

    async def _watch(self) -> None:
        """The heartbeat: tells the view how the replicas are, fences those that are past a deadline, and has the run
        pause while the disk is nearly full. No group is overdue because of such a pause."""
        await self._opened.wait()
        while True:
            await asyncio.sleep(WATCH_EVERY_S)
            for name, why in (await self._store.late.remote()).items():
                self._fence(name, f"{why}; deadlines.update_s is {self._config.deadlines.update_s:g}")
            replicas = await self._replica_statuses()
            reward = await short_call(self._reward.status_call())
            self._reward.note(reward)
            self._supervision.deaths.update({REWARD: reward, **{status["name"]: status for status in replicas}})
            await self._nodes.tidy(self._queue)
            await self._disk.check(status["paused"] for status in (*replicas, reward) if status)
            limit = self._config.deadlines.rollout_s
            if self._disk.well_for_s() > limit:
                for name, why in (await self._queue.overdue.remote(limit)).items():
                    self._fence(name, f"{why}; deadlines.rollout_s is {limit:g}")
            self._book.replicas(replicas, time.monotonic())
            await self._scaler.tick(replicas, paused=self._disk.low)

    async def _see_stalls(self) -> None:
        await self._opened.wait()
        await self._stalls.keep()

    async def _part_statuses(self) -> PartStatuses:
        ranks, named = self._learners.status_calls(), self._pool.named
        told = await part_statuses(
            self._queue, self._store, self._reward.status_call(), ranks, named, self._evaluator.scores
        )
        self._supervision.deaths.update({f"learner-{rank}": status for rank, status in enumerate(told.learner)})
        return told
