"""Has a run the number of rollout replicas that a person asks for, or that autoscaling finds best.

What is best is decided by `streamrl.scheduling.autoscaling`; here it is told once a second what the run is like, and
what it asks for is weighed against the machine's memory, done, and said: an event `autoscaling` with the reason.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from statistics import fmean
from typing import Any

from ray.actor import ActorHandle

from streamrl.clock import Clock
from streamrl.config import Config
from streamrl.scheduling.autoscaling import REFUSED_S, Autoscaler, Decision, Seen
from streamrl.services.controller.replicas import ReplicaPool
from streamrl.services.run.scaling import shortage

EVENT = "autoscaling"

Status = Mapping[str, Any]


class ReplicaScaler:
    """Of one run. clock: of the autoscaler. expect: tells the learner of a number. report: takes an event, by its kind.
    fixed: a person set the number before."""

    def __init__(
        self,
        config: Config,
        clock: Clock,
        pool: ReplicaPool,
        queue: ActorHandle,
        expect: Callable[[int], Awaitable[None]],
        report: Callable[[str, dict[str, Any]], None],
        fixed: bool,
    ) -> None:
        self._config = config
        self._pool = pool
        self._queue = queue
        self._expect = expect
        self._report = report
        self._reason = ""
        autoscaling = config.rollout.autoscaling
        self._autoscaler = Autoscaler(autoscaling, clock, fixed) if autoscaling.enabled else None

    async def by_person(self, replicas: int | None) -> None:
        """Have so many from now on; None leaves the number to autoscaling."""
        before, after = self._pool.wanted, self._pool.wanted if replicas is None else replicas
        if self._autoscaler is not None:
            self._autoscaler.fix(replicas is not None)
        await self._have(after)
        whose = "" if self._autoscaler is None else ", by autoscaling" if replicas is None else ", until rollout=auto"
        self._report("notice", {"text": f"rollout replicas: {before} -> {after}{whose}"})

    async def tick(self, statuses: Sequence[Status], *, paused: bool) -> None:
        """About once a second. statuses: of the replicas that answer. paused: the run waits for its disk."""
        if self._autoscaler is None:
            return
        if paused or not statuses:
            self._autoscaler.pause()
            return
        decision = self._autoscaler.decide(await self._seen(statuses))
        if decision is not None:
            await self._do(decision, self._autoscaler)

    def status(self) -> dict[str, Any]:
        """The limits, what is wanted, and why; nothing without autoscaling."""
        if self._autoscaler is None:
            return {}
        limits = self._config.rollout.autoscaling
        bounds = {"min_replicas": limits.min_replicas, "max_replicas": limits.max_replicas}
        present = {"replicas": self._pool.wanted, "fixed": self._autoscaler.fixed, "reason": self._reason}
        return {EVENT: {**bounds, **present}}

    async def _seen(self, statuses: Sequence[Status]) -> Seen:
        step, waited = await self._queue.waits.remote()
        slots = self._config.rollout.slots
        return Seen(
            wanted=self._pool.wanted,
            serving=len(self._pool.serving),
            changing=self._pool.changing,
            step=step,
            waited=waited,
            guests=sum(status["guests"] for status in statuses),
            used=fmean(min(1.0, (status["running"] + status["waiting"]) / slots) for status in statuses),
        )

    async def _do(self, decision: Decision, autoscaler: Autoscaler) -> None:
        change = f"{decision.before} -> {decision.replicas}"
        lack = await asyncio.to_thread(shortage, self._config, decision.before, decision.replicas)
        if autoscaler.fixed or self._pool.wanted != decision.before:
            return  # a person was quicker
        if lack:
            autoscaler.refused(decision.replicas)
            why = f"{decision.reason}; but {lack}; as many are asked for again in {REFUSED_S:g} s"
            self._report("notice", {"text": f"rollout replicas stay {decision.before}, not {decision.replicas}: {why}"})
            return
        self._reason = f"{change}: {decision.reason}"
        await self._have(decision.replicas)
        facts = {"before": decision.before, "replicas": decision.replicas, "reason": decision.reason}
        self._report(EVENT, {**facts, "text": f"rollout replicas: {self._reason}"})

    async def _have(self, replicas: int) -> None:
        self._pool.scale(replicas)
        await self._expect(replicas)
