"""A run of the stream on a virtual clock: the real admission and batch rules, invented times.

Guaranteed: the same settings and seed give the same report; books are checked after every event; it ends by
itself, and says so when the stream locked up. It knows nothing of tokens, weights, actors or disks. A group's
staleness is counted from the step that its replica served when the group started: its oldest token's.
"""

import heapq
import math
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from streamrl.clock import VirtualClock
from streamrl.scheduling.staleness import Admission, Candidate, staleness_of
from streamrl.simulation.book import GroupBook, Place
from streamrl.simulation.policy import Counts, StreamPolicy
from streamrl.simulation.settings import SimulationReport, SimulationSettings


def simulate(
    settings: SimulationSettings,
    seed: int,
    policy: StreamPolicy | None = None,
    on_event: Callable[[GroupBook], None] | None = None,
) -> SimulationReport:
    """Run `settings.steps` learner steps, or until nothing can happen any more.

    policy: the rules to drive; the product's by default. on_event: called after every event.

    Raises:
        ComponentError: the policy admitted groups that cannot be trained in time, or the books do not close.

    Example:
        >>> report = simulate(SimulationSettings(steps=50, heavy_tail=1.0), seed=0)
        >>> report.steps, report.staleness_max <= 2, report.discards
        (50, True, {})
    """
    simulation = _Simulation(settings, seed, policy or _default_policy(settings))
    while simulation.advance():
        if on_event is not None:
            on_event(simulation.book)
    return simulation.report()


def _default_policy(settings: SimulationSettings) -> StreamPolicy:
    total_groups = settings.steps * settings.groups_per_step
    admission = Admission(settings.max_staleness, settings.groups_per_step, total_groups)
    return StreamPolicy(admission, settings.late)


@dataclass(slots=True, eq=False)
class _Replica:
    serving_step: int = 0
    running: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class _Group:
    """One attempt at one group."""

    serial: int
    candidate: Candidate
    oldest_step: int
    replica: _Replica
    started_s: float


@dataclass(slots=True)
class _Tally:
    """Sums for the report."""

    busy_slot_s: float = 0.0
    learner_busy_s: float = 0.0
    staleness_sum: int = 0
    staleness_max: int = 0


@dataclass(slots=True)
class _Groups:
    """Untrained groups by number: running, or scored and ready. In between they wait for the reward."""

    running: dict[int, _Group] = field(default_factory=dict)
    ready: dict[int, _Group] = field(default_factory=dict)
    reissue: deque[int] = field(default_factory=deque)
    next_number: int = 0

    def next(self) -> int:
        """The number of the next group to start: one to try again, else the next of the data."""
        if self.reissue:
            return self.reissue.popleft()
        self.next_number += 1
        return self.next_number - 1


class _Simulation:
    """State and events. Each event is a time and a callable; ties keep the order in which they were made."""

    def __init__(self, settings: SimulationSettings, seed: int, policy: StreamPolicy) -> None:
        self._settings = settings
        self._policy = policy
        self._random = random.Random(seed)
        self._clock = VirtualClock()
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._made_events = 0
        self._replicas = [_Replica() for _ in range(settings.replicas)]
        self._groups = _Groups()
        self._scoring: dict[int, Candidate] = {}
        self._tally = _Tally()
        self._learner_step = 0
        self._learner_idle = True
        self.book = GroupBook()
        self._fill_all()

    def advance(self) -> bool:
        """Let the next event happen; False when the run is over, or none is left."""
        if self._learner_step >= self._settings.steps or not self._events:
            return False
        at_s, _, event = heapq.heappop(self._events)
        self._clock.advance(max(0.0, at_s - self._clock.now()))
        event()
        self.book.check_closed()
        return True

    def report(self) -> SimulationReport:
        now = self._clock.now()
        self._tally.busy_slot_s += sum(now - group.started_s for group in self._groups.running.values())
        trained = self.book.count(Place.TRAINED)
        slot_s = now * self._settings.replicas * self._settings.slots
        return SimulationReport(
            steps=self._learner_step,
            elapsed_s=now,
            deadlocked=self._learner_step < self._settings.steps,
            staleness_max=self._tally.staleness_max,
            staleness_mean=self._tally.staleness_sum / max(1, trained),
            learner_wait_share=1.0 - self._tally.learner_busy_s / now if now else 0.0,
            rollout_utilisation=self._tally.busy_slot_s / slot_s if slot_s else 0.0,
            steps_per_s=self._learner_step / now if now else 0.0,
            issued=self.book.issued,
            trained=trained,
            discards=dict(self.book.dropped),
        )

    def _after(self, delay_s: float, event: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self._clock.now() + delay_s, self._made_events, event))
        self._made_events += 1

    # Rollout ------------------------------------------------------------------------------------------------

    def _fill_all(self) -> None:
        for replica in sorted(self._replicas, key=lambda replica: replica.running):
            self._fill(replica)

    def _fill(self, replica: _Replica) -> None:
        room = self._settings.slots - replica.running
        if room > 0:
            for _ in range(min(room, self._policy.capacity(self._counts(replica)))):
                self._start(replica)

    def _counts(self, replica: _Replica) -> Counts:
        return Counts(
            serving_step=replica.serving_step,
            learner_step=self._learner_step,
            trained=self.book.count(Place.TRAINED),
            waiting=self.book.count(Place.WAITING),
            running=self.book.count(Place.RUNNING),
            lost=self.book.count(Place.DROPPED),
        )

    def _start(self, replica: _Replica) -> None:
        number = self._groups.next()
        candidate = Candidate(number, self._policy.admission.last_step(replica.serving_step))
        group = _Group(self.book.issued, candidate, replica.serving_step, replica, self._clock.now())
        self.book.issue(group.serial)
        self._groups.running[number] = group
        replica.running += 1
        self._after(self._group_seconds(number), partial(self._end, group))

    def _group_seconds(self, number: int) -> float:
        mean, sigma = self._settings.group_s, self._settings.heavy_tail
        if self._settings.straggler is not None and number == self._settings.straggler[0]:
            return mean * self._settings.straggler[1]
        if not sigma:
            return mean
        return self._random.lognormvariate(math.log(mean) - sigma * sigma / 2, sigma)

    def _end(self, group: _Group) -> None:
        if self._groups.running.get(group.candidate.number) is not group:
            return  # cancelled as late; its place and its slot were given back then
        if self._random.random() < self._settings.failure_rate:
            self._lose(group, "failed")
            self._fill_all()
            self._try_step()
            return
        self._release(group)
        self.book.move(group.serial, Place.RUNNING, Place.WAITING)
        self._scoring[group.candidate.number] = group.candidate
        self._after(self._settings.reward_s, partial(self._score, group))
        self._fill(group.replica)

    def _lose(self, group: _Group, reason: str) -> None:
        """Drop a running group: its slot and its place in admission are free from now on."""
        self._release(group)
        self.book.drop(group.serial, Place.RUNNING, reason)

    def _release(self, group: _Group) -> None:
        del self._groups.running[group.candidate.number]
        group.replica.running -= 1
        self._tally.busy_slot_s += self._clock.now() - group.started_s

    # Reward and learner -------------------------------------------------------------------------------------

    def _score(self, group: _Group) -> None:
        del self._scoring[group.candidate.number]
        if self._random.random() < self._settings.filter_rate:
            self.book.drop(group.serial, Place.WAITING, "filtered")
            self._fill_all()
        else:
            self._groups.ready[group.candidate.number] = group
        self._try_step()

    def _try_step(self) -> None:
        if not self._learner_idle:
            return
        batch = self._select()
        if batch is None and self._cancel_late():
            self._fill_all()
            batch = self._select()
        if batch is not None:
            self._train(batch)

    def _select(self) -> list[int] | None:
        unready = [*_candidates(self._groups.running), *self._scoring.values()]
        return self._policy.select(self._learner_step, _candidates(self._groups.ready), unready)

    def _cancel_late(self) -> bool:
        """Take out the groups that hold up the batch, if the policy says so; False if it names none."""
        ready, running = _candidates(self._groups.ready), _candidates(self._groups.running)
        late = self._policy.late_ones(self._learner_step, ready, running)
        for number in late:
            if self._policy.late == "reissue":
                self._groups.reissue.append(number)
            self._lose(self._groups.running[number], f"late_{self._policy.late}")
        return bool(late)

    def _train(self, batch: list[int]) -> None:
        for number in batch:
            group = self._groups.ready.pop(number)
            self.book.move(group.serial, Place.WAITING, Place.TRAINED)
            staleness = staleness_of(self._learner_step, group.oldest_step)
            self._tally.staleness_sum += staleness
            self._tally.staleness_max = max(self._tally.staleness_max, staleness)
        self._learner_idle = False
        self._after(self._settings.step_s, self._finish_step)

    def _finish_step(self) -> None:
        self._tally.learner_busy_s += self._settings.step_s
        self._learner_step += 1
        self._learner_idle = True
        step = self._learner_step
        for replica in self._replicas:
            delay_s = self._settings.update_s * self._random.uniform(0.5, 1.5)
            self._after(delay_s, partial(self._update, replica, step))
        self._try_step()

    def _update(self, replica: _Replica, step: int) -> None:
        replica.serving_step = max(replica.serving_step, step)
        self._fill(replica)


def _candidates(groups: dict[int, _Group]) -> list[Candidate]:
    return [group.candidate for group in groups.values()]
