"""What a run was like lately: shares of the time, from totals that only grow. Pure.

Guarantees: the window is at least `LOOK_BACK_S` long and holds four whole learner steps, so that it does not depend on
the moment within a step at which it is looked at; where the learner waits nearly all the time, and no step ends, the
time alone is enough. No window is longer than `LONGEST_S`. It knows neither replicas nor limits.
"""

from collections import deque
from dataclasses import dataclass

import msgspec

LOOK_BACK_S = 30.0
"""As Ray Serve's `look_back_period_s`."""
LONGEST_S = 3600.0
"""A learner with longer steps is judged by a part of them."""
WHOLE_STEPS = 4
STUCK = 0.9
"""Share of waiting beyond which nobody waits for steps to end."""


class Waited(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds since the queue was opened. learner_s: the learner waited for rows. starved_s: of these, while no replica
    waited for a group. held_back_s: some replica had room and was given no group."""

    learner_s: float = 0.0
    starved_s: float = 0.0
    held_back_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Lately:
    """Of the newest window. learner_waits, starved, held_back: shares of the time, as in `Waited`. used: mean share of
    the replicas' slots that requests took. guests: mean number of clients' requests, of the last `LOOK_BACK_S`."""

    seconds: float
    learner_waits: float
    starved: float
    held_back: float
    used: float
    guests: float


@dataclass(frozen=True, slots=True)
class _Sample:
    """Totals at one moment. guest_s, used_s: integrals over the time."""

    now: float
    step: int
    waited: Waited
    guest_s: float
    used_s: float


class UtilizationWindow:
    """Collects, about once a second.

    Example:
        look_back.add(clock.now(), step=7, waited=waited, guests=3, used=0.4)
        lately = look_back.lately()     # None: too soon to say
    """

    def __init__(self) -> None:
        self._samples: deque[_Sample] = deque()

    def clear(self) -> None:
        """What was until now says nothing of what comes."""
        self._samples.clear()

    def add(self, now: float, *, step: int, waited: Waited, guests: float, used: float) -> None:
        """now: in seconds. step: of the learner. guests: clients' requests that run or wait. used: share of the
        replicas' slots that requests take."""
        if self._samples and step < self._samples[-1].step:
            self.clear()  # the learner began again, from its checkpoint
        last = self._samples[-1] if self._samples else _Sample(now, step, waited, 0.0, 0.0)
        passed = now - last.now
        self._samples.append(_Sample(now, step, waited, last.guest_s + guests * passed, last.used_s + used * passed))
        while len(self._samples) > 2 and self._is_enough(self._samples[1]):
            self._samples.popleft()

    @property
    def guests(self) -> float | None:
        """Mean number of clients' requests over `LOOK_BACK_S`; None: too soon to say."""
        newest = self._samples[-1] if self._samples else None
        for first in reversed(self._samples):
            if newest is not None and newest.now - first.now >= LOOK_BACK_S:
                return (newest.guest_s - first.guest_s) / (newest.now - first.now)
        return None

    def lately(self) -> Lately | None:
        """The newest window; None: too soon to say."""
        guests = self.guests
        if guests is None:
            return None
        first, last = self._samples[0], self._samples[-1]
        seconds = last.now - first.now
        learner_waits = (last.waited.learner_s - first.waited.learner_s) / seconds
        if not self._is_enough(first) and learner_waits < STUCK:
            return None
        return Lately(
            seconds=seconds,
            learner_waits=learner_waits,
            starved=(last.waited.starved_s - first.waited.starved_s) / seconds,
            held_back=(last.waited.held_back_s - first.waited.held_back_s) / seconds,
            used=(last.used_s - first.used_s) / seconds,
            guests=guests,
        )

    def _is_enough(self, first: _Sample) -> bool:
        """Whether a window that begins there is long enough."""
        last = self._samples[-1]
        seconds, steps = last.now - first.now, last.step - first.step
        # One more than whole steps: the first of them was under way when the window began.
        return seconds >= LONGEST_S or (seconds >= LOOK_BACK_S and steps > WHOLE_STEPS)
