"""Trajectories of clients on their way to the queue: written, then offered, once each.

Guarantees: what was answered with a standing is durable, and trained once or declined with a reason; the same
trajectory offered again has the same answer, and is not written again. Two of one group's name are written one after
the other, since the first one's number is part of the second one's name.
"""

import asyncio
from collections.abc import Awaitable
from typing import Any, TypeVar
from weakref import WeakValueDictionary

from ray.actor import ActorHandle

from streamrl.algorithms.group_sampling import GroupSampling
from streamrl.buffers.index.submitted.offered import Standing
from streamrl.buffers.ledger.records import Offered
from streamrl.buffers.queue.gathering import TOO_MANY_WAIT, TOO_STALE, Objection
from streamrl.config import Config
from streamrl.errors import ConfigError
from streamrl.gateway.refusal import Refusal
from streamrl.gateway.sessions.trajectory import Trajectory
from streamrl.services.actors.deadline import within_or_paused
from streamrl.services.gateway.training.queue import answer_of_queue
from streamrl.services.queue.trajectory_log import WRITER, TrajectoryLog

T = TypeVar("T")

STATUSES = {TOO_STALE: 409, TOO_MANY_WAIT: 429}
"""Of what the queue objects; of the rest 400."""


class TrajectoryService:
    """See the module. context: tokens of a row. vocab_size: ids are below it. drawn: how the run's rollouts are."""

    def __init__(self, config: Config, queue: ActorHandle, log: TrajectoryLog, context: int, vocab_size: int) -> None:
        self._queue = queue
        self._log = log
        self._limit_s = config.deadlines.step_s
        self._greedy = config.learner.algorithm.has_greedy_sample
        self.group_size = config.rollout.group_size
        self.components = config.learner.algorithm.component_names
        self.drawn = GroupSampling(config).drawn
        self.context = context
        self.vocab_size = vocab_size
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def take(self, trajectory: Trajectory) -> dict[str, Any]:
        """Hand one to the run that its client made; the answer. Raises Refusal."""
        standing = await self.offer(trajectory)
        if standing.digest != trajectory.digest:
            what = f"{trajectory.key!a} was sent before, and said something else; it stays what it was"
            raise Refusal(409, "key_reused", what, "key")
        return {"key": trajectory.key, **self.status_of(standing)}

    async def known(self, key: str) -> Standing | None:
        """What became of a trajectory; None for one that was never taken. Raises Refusal."""
        return await self._answered(self._queue.standing.remote(key))

    async def offer(self, trajectory: Trajectory) -> Standing:
        """Hand it to the run; what became of it, or of the one that has its key. Raises Refusal."""
        self.require_none_greedy()
        lock = self._locks.setdefault(trajectory.group, asyncio.Lock())
        async with lock:
            return await self.known(trajectory.key) or await self._offer(trajectory)

    def status_of(self, standing: Standing) -> dict[str, Any]:
        """What a client is told of it."""
        more: dict[str, dict[str, Any]] = {
            "waiting": {"waiting": standing.waiting},
            "gathered": {"group": standing.group},
            "declined": {"reason": standing.reason},
        }
        state = standing.state.value
        return {"number": standing.item, "state": state, "group_size": self.group_size, **more[state]}

    def require_none_greedy(self) -> None:
        """Raises Refusal in a run whose groups have a sample that nobody else can make."""
        if self._greedy:
            what = "this run's algorithm compares a group with a greedy rollout of its own (remax): it takes no others"
            raise Refusal(409, "own_rollouts_only", what)

    def close(self) -> None:
        self._log.close()

    async def _offer(self, trajectory: Trajectory) -> Standing:
        versions = trajectory.versions
        place: Any = _taken(await self._answered(self._queue.place.remote(trajectory.group, versions)))
        told = await self._answered(self._written(trajectory, place))
        offered = self._queue.offer.remote(WRITER, self._log.epoch, told, versions)
        return _taken(await self._answered(offered))

    async def _written(self, trajectory: Trajectory, place: int) -> Offered:
        try:
            return await self._log.write(trajectory, place)
        except ConfigError as error:  # its rows are more than a file of the log holds
            what = f"{len(trajectory.branches)} branches: {error}"
            raise Refusal(400, "trajectory_too_long", what) from error

    async def _answered(self, work: Awaitable[T]) -> T:
        """What the run's disk and queue answer. Raises Refusal when they do not."""
        waits = within_or_paused(
            self._limit_s, work, who=WRITER, what="an answer of the queue", pause=self._queue.pause.remote
        )
        answer: T = await answer_of_queue(waits)
        return answer


def _taken(answer: T | Objection) -> T:
    """Raises Refusal for an objection."""
    if isinstance(answer, Objection):
        raise Refusal(STATUSES.get(answer.code, 400), answer.code, answer.text)
    return answer
