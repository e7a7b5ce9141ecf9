"""How long who waits in the queue: the learner for rows, replicas with room for a group. Pure but for the waiting.

A wait that goes on counts up to now. What the two did at the same time is known here alone: a learner that waits while
no replica does lacks generation; one that waits while some replica does lacks something else.
"""

from dataclasses import replace

from streamrl.buffers.queue.signals import Signal
from streamrl.buffers.rows.records import Lease
from streamrl.clock import Clock
from streamrl.scheduling.utilization import Waited


class Waits:
    """Of one queue. Whoever waits does it by one of the two methods."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._changed = clock.now()
        self._learners = 0
        self._takers = 0
        self._learner_s = 0.0
        self._starved_s = 0.0
        self._held_back_s = 0.0

    async def of_learner(self, signal: Signal) -> float:
        """Wait as the learner does, for rows; the seconds that it took."""
        began = self._clock.now()
        self._count(learners=1)
        try:
            await signal.wait()
        finally:
            self._count(learners=-1)
        return self._clock.now() - began

    async def of_replica(self, signal: Signal) -> None:
        """Wait as a replica does that has room, for a group."""
        self._count(takers=1)
        try:
            await signal.wait()
        finally:
            self._count(takers=-1)

    @property
    def learner_waits(self) -> bool:
        return self._learners > 0

    def until_now(self) -> Waited:
        """Since the queue was opened."""
        self._count()
        return Waited(learner_s=self._learner_s, starved_s=self._starved_s, held_back_s=self._held_back_s)

    def _count(self, learners: int = 0, takers: int = 0) -> None:
        """Book the time since the last change, then change how many wait."""
        now = self._clock.now()
        passed, self._changed = now - self._changed, now
        self._learner_s += passed * (self._learners > 0)
        self._starved_s += passed * (self._learners > 0 and not self._takers)
        self._held_back_s += passed * (self._takers > 0)
        self._learners += learners
        self._takers += takers


class LearnerWait:
    """That of the learner for one batch."""

    def __init__(self, waits: Waits) -> None:
        self._waits = waits
        self._all_s = 0.0
        self._unscored_s = 0.0

    async def until(self, signal: Signal, lacks_scores: bool) -> None:
        """Wait for something to change. lacks_scores: whether scores are all that the batch needs, until then."""
        seconds = await self._waits.of_learner(signal)
        self._all_s += seconds
        self._unscored_s += seconds * lacks_scores

    def told(self, lease: Lease) -> Lease:
        """The batch, with how long it was waited for."""
        return replace(lease, waited_s=self._all_s, unscored_s=self._unscored_s)
