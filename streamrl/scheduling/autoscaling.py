"""How many rollout replicas a run should have, by who waits for whom. Pure: an injected clock, no I/O.

    up      the learner waits for rows while every replica has all it could take; or clients' requests are more for each
            replica than the target
    down    replicas have room and are given nothing, admission being the limit or the queue full, the learner does not
            wait, and those that stay have slots enough for what runs

Guarantees: the number stays within the limits; a condition holds without a break for its delay before anything is asked
for; nothing more is asked for until what was asked for serves; up at most doubles, down takes one. Under a steady load
it settles: a replica that was let go and had to be brought back lowers the use of slots at which one is let go again,
and makes the wait before it four times as long.
A person's number is kept until it is taken back. It knows neither actors nor memory: whoever asks for the replicas says
when the machine has no room for them.
"""

import math
from collections import Counter
from dataclasses import dataclass

from streamrl.clock import Clock
from streamrl.config.schema.rollout import AutoscalingConfig
from streamrl.scheduling.utilization import LOOK_BACK_S, Lately, UtilizationWindow, Waited

STARVED = 0.1
"""Share of the time that the learner lacks rows from which on more replicas are worth having; `streamrl why` calls a
learner with less than that busy."""
CALM = 0.05
"""The same below which one fewer is thought of: what lies between changes nothing."""
HELD_BACK = 0.5
"""Share of the time that replicas with room are given nothing from which on they are too many."""
ROOMY = 0.8
"""Use of their slots that those who stay may come to."""
TAKEN_BACK = 0.7
"""What that use is multiplied by when a replica that was let go was missed."""
LONGER = 4.0
"""What the delay of letting one go is multiplied by, for each time that so many were too few."""
GUESTS_STAY = 0.8
"""Share of the target that clients' requests may come to for those who stay."""
REFUSED_S = 600.0
"""Seconds until more replicas are asked for again than the machine had room for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What a run is like at one moment. wanted: replicas that were asked for last. serving: those that serve. changing:
    whether some start or leave. step, waited: of the queue. guests: clients' requests that run or wait, of all
    replicas. used: share of the replicas' slots that requests take."""

    wanted: int
    serving: int
    changing: bool
    step: int
    waited: Waited
    guests: int
    used: float


@dataclass(frozen=True, slots=True)
class Decision:
    """Have `replicas` instead of `before`. reason: in words, with the figures."""

    before: int
    replicas: int
    reason: str

    @property
    def more(self) -> int:
        """Replicas more than before; below 0 fewer."""
        return self.replicas - self.before


@dataclass(slots=True)
class _LetGo:
    """The last time that one was let go. use: what the slots of those who stay were thought to come to. until: as long
    as a learner that waits is put down to it, whatever else it may wait for; None until there is something to see."""

    before: int
    use: float
    until: float | None = None


class Autoscaler:
    """Of one run.

    Example:
        decision = autoscaler.decide(seen)        # once a second
        if decision is not None:
            ...                                 # scale; or, without room: autoscaler.refused(decision.replicas)
    """

    def __init__(self, config: AutoscalingConfig, clock: Clock, fixed: bool = False) -> None:
        """config: with `max_replicas`. fixed: a person has set the number."""
        assert config.max_replicas is not None, "without it there is no autoscaling"
        self._config = config
        self._max = config.max_replicas
        self._clock = clock
        self._look_back = UtilizationWindow()
        self._wish = 0
        """How many more (fewer, below 0) were worth having at the last look, and more or fewer since `_since`."""
        self._since = 0.0
        self._let_go: _LetGo | None = None
        self._roomy = ROOMY
        self._missed: Counter[int] = Counter()
        """How often a number was too few, after one was let go."""
        self._refused: tuple[int, float] | None = None
        """(the number that was refused, until when)."""
        self.fixed = fixed

    def fix(self, fixed: bool) -> None:
        """A person has set the number, or leaves it to us from now on. Either way what was learnt is forgotten."""
        self.fixed = fixed
        self._roomy, self._let_go, self._refused = ROOMY, None, None
        self._missed.clear()
        self.pause()

    def pause(self) -> None:
        """What is measured now says nothing of the replicas: look at what comes after it alone."""
        self._look_back.clear()
        self._wish = 0

    def refused(self, replicas: int) -> None:
        """The machine has no room for so many."""
        self._refused = replicas, self._clock.now() + REFUSED_S

    def decide(self, seen: Seen) -> Decision | None:
        """What to ask for now, if anything. Called about once a second."""
        if self.fixed or seen.changing or seen.serving != seen.wanted:
            self.pause()
            return None
        now = self._clock.now()
        self._look_back.add(now, step=seen.step, waited=seen.waited, guests=seen.guests, used=seen.used)
        decision = self._up(seen.wanted) or self._down(seen.wanted)
        wish = 0 if decision is None else decision.more
        holds = decision is not None and self._holds(decision, now)
        self._wish = wish
        if decision is None or not holds:
            return None
        self._decided(decision)
        return decision

    # ---- inside

    def _holds(self, decision: Decision, now: float) -> bool:
        """Whether more, or fewer, have been worth having for their delay, however many."""
        if decision.more * self._wish <= 0:
            self._since = now
        return now - self._since >= (self._config.upscale_delay_s if decision.more > 0 else self._patience_s(decision))

    def _patience_s(self, decision: Decision) -> float:
        """Seconds for which fewer must have been enough."""
        delay_s, missed = self._config.downscale_delay_s, self._missed[decision.replicas]
        return max(delay_s, LOOK_BACK_S) * LONGER**missed if missed else delay_s

    def _decided(self, decision: Decision) -> None:
        lately = self._look_back.lately()
        if decision.more < 0 and lately is not None:
            self._let_go = _LetGo(decision.before, _use_by(lately, decision.before, decision.replicas))
        elif lately is not None and lately.learner_waits >= STARVED and self._let_go is not None:
            # It was missed: such a use of the slots is too much for those who stay.
            self._roomy = min(self._roomy, TAKEN_BACK * self._let_go.use)
            self._missed[self._let_go.before - 1] += 1
            self._let_go = None
        self.pause()

    def _up(self, wanted: int) -> Decision | None:
        for replicas, reason in (
            self._for_clients(wanted),
            self._for_the_learner(wanted),
            self._restore_learner(wanted),
        ):
            number = min(replicas, 2 * wanted, self._max, self._replica_limit())
            if number > wanted:
                return Decision(wanted, number, reason)
        return None

    def _replica_limit(self) -> int:
        """The most replicas that the machine is thought to have room for."""
        if self._refused is not None and self._clock.now() >= self._refused[1]:
            self._refused = None
        return self._refused[0] - 1 if self._refused is not None else self._max

    def _for_clients(self, wanted: int) -> tuple[int, str]:
        guests, target = self._look_back.guests, self._config.target_ongoing_requests
        if guests is None:
            return wanted, ""
        reason = (
            f"{guests:.1f} requests of clients at once over the last {LOOK_BACK_S:g} s are {guests / wanted:.1f} for "
            f"each replica; target_ongoing_requests is {target:g}"
        )
        return math.ceil(guests / target), reason

    def _for_the_learner(self, wanted: int) -> tuple[int, str]:
        lately = self._look_back.lately()
        if lately is None or lately.starved < STARVED:
            return wanted, ""
        reason = (
            f"over the last {lately.seconds:.0f} s the learner waited {lately.learner_waits:.0%} of the time, "
            f"{lately.starved:.0%} while every replica had all it could take: generation is the limit"
        )
        # As many as would leave the learner no wait, if each adds what the others do.
        return math.ceil(wanted / max(0.5, 1.0 - lately.starved)), reason

    def _restore_learner(self, wanted: int) -> tuple[int, str]:
        """A learner that waits right after one was let go has it back, whatever it waits for: it did not before."""
        lately, let_go, now = self._look_back.lately(), self._let_go, self._clock.now()
        if lately is None or let_go is None:
            return wanted, ""
        if let_go.until is None:
            let_go.until = now + self._config.upscale_delay_s + self._config.downscale_delay_s + LOOK_BACK_S
        if lately.learner_waits < STARVED or now > let_go.until:
            return wanted, ""
        reason = (
            f"over the last {lately.seconds:.0f} s the learner waited {lately.learner_waits:.0%} of the time, which it "
            f"did not with {let_go.before}"
        )
        return let_go.before, reason

    def _down(self, wanted: int) -> Decision | None:
        lately, number = self._look_back.lately(), wanted - 1
        if lately is None or number < self._config.min_replicas:
            return None
        if lately.learner_waits >= CALM or lately.held_back < HELD_BACK:
            return None
        if lately.guests > GUESTS_STAY * self._config.target_ongoing_requests * number:
            return None
        if _use_by(lately, wanted, number) >= self._roomy:
            return None
        reason = (
            f"over the last {lately.seconds:.0f} s replicas with room were given nothing {lately.held_back:.0%} of the "
            f"time (max_staleness, or a full queue) and {lately.used:.0%} of their slots were in use; the learner "
            f"waited {lately.learner_waits:.0%}"
        )
        return Decision(wanted, number, reason)


def _use_by(lately: Lately, wanted: int, number: int) -> float:
    """What the use of slots comes to when `number` replicas have what `wanted` have now."""
    return lately.used * wanted / number
