"""How many replicas a run asks for, by who waits for whom."""

import pytest

from streamrl.clock import VirtualClock
from streamrl.config.schema.rollout import AutoscalingConfig
from streamrl.scheduling.autoscaling import LONGER, REFUSED_S, ROOMY, TAKEN_BACK, Autoscaler, Decision, Seen
from streamrl.scheduling.utilization import LONGEST_S, LOOK_BACK_S, Waited

UP_S, DOWN_S = 10.0, 60.0


class Run:
    """A run whose shares of waiting are set by hand, looked at once a second."""

    def __init__(self, *, replicas: int = 1, fixed: bool = False, **config: float) -> None:
        limits = {"min_replicas": 1, "max_replicas": 8, "upscale_delay_s": UP_S, "downscale_delay_s": DOWN_S}
        self.clock = VirtualClock()
        self.autoscaler = Autoscaler(AutoscalingConfig(**{**limits, **config}), self.clock, fixed)
        self.wanted = self.serving = replicas
        self.changing = False
        self.step = 0
        self._waited = Waited()

    def second(
        self,
        *,
        waits: float = 0.0,
        starved: float = 0.0,
        held_back: float = 0.0,
        used: float = 1.0,
        guests: int = 0,
        steps: int = 1,
    ) -> Decision | None:
        """One second of such shares. What is decided is done at once."""
        self.clock.advance(1.0)
        self.step += steps
        self._waited = Waited(
            learner_s=self._waited.learner_s + max(waits, starved),
            starved_s=self._waited.starved_s + starved,
            held_back_s=self._waited.held_back_s + held_back,
        )
        seen = Seen(
            wanted=self.wanted,
            serving=self.serving,
            changing=self.changing,
            step=self.step,
            waited=self._waited,
            guests=guests,
            used=used,
        )
        decision = self.autoscaler.decide(seen)
        if decision is not None:
            assert decision.before == self.wanted
            self.wanted = self.serving = decision.replicas
        return decision

    def until_decided(self, limit_s: int, **shares: float) -> tuple[int, Decision] | None:
        """(seconds that it took, what was decided); None where nothing was."""
        for second in range(limit_s):
            if (decision := self.second(**shares)) is not None:
                return second + 1, decision
        return None


STARVED = {"starved": 0.4}
IDLE = {"held_back": 0.9, "used": 0.1}


def test_a_learner_that_waits_for_full_replicas_has_more_after_the_delay_and_is_told_the_figures() -> None:
    decided = Run().until_decided(1000, **STARVED)
    assert decided is not None
    seconds, decision = decided
    assert seconds == LOOK_BACK_S + UP_S + 1
    assert (decision.before, decision.replicas) == (1, 2)
    assert "the learner waited 40% of the time" in decision.reason
    assert "40% while every replica had all it could take" in decision.reason


def test_as_many_are_asked_for_as_would_leave_the_learner_no_wait_but_twice_as_many_at_most() -> None:
    for share, more in ((0.12, 5), (0.3, 6), (0.49, 8), (0.9, 8)):
        decided = Run(replicas=4).until_decided(1000, starved=share)
        assert decided is not None
        assert decided[1].replicas == more, share


@pytest.mark.parametrize(
    "shares",
    [
        {"waits": 0.9, "held_back": 1.0},
        {"waits": 0.9},
        {"waits": 0.9, "starved": 0.09},
        {"starved": 0.09},
        {},
    ],
    ids=[
        "admission is the limit",
        "replicas wait too",
        "mostly for something else",
        "it hardly waits",
        "it does not wait",
    ],
)
def test_a_learner_that_lacks_no_generation_has_no_more(shares: dict[str, float]) -> None:
    assert Run(replicas=2).until_decided(1000, **shares) is None


def test_a_condition_that_breaks_begins_its_delay_anew() -> None:
    run = Run(replicas=2, upscale_delay_s=60.0)
    assert run.until_decided(int(LOOK_BACK_S), starved=1.0) is None
    for _ in range(5):
        # The window holds it for a while: it has been worth having for 46 s when the share falls below its bound.
        assert run.until_decided(int(LOOK_BACK_S) + 10) is None
        assert run.until_decided(22, starved=1.0) is None
    assert run.until_decided(60, starved=1.0) is not None


def test_nothing_is_asked_for_while_something_starts_leaves_or_is_dead() -> None:
    run = Run()
    assert run.until_decided(int(LOOK_BACK_S), **STARVED) is None
    run.wanted = 2
    assert run.until_decided(1000, **STARVED) is None
    run.serving, run.changing = 2, True
    assert run.until_decided(1000, **STARVED) is None
    run.changing = False
    decided = run.until_decided(1000, **STARVED)
    assert decided is not None
    assert decided[0] == LOOK_BACK_S + UP_S + 1, "what was measured before counts for nothing"


def test_the_limits_hold_whatever_is_measured() -> None:
    run = Run(replicas=2, min_replicas=2, max_replicas=3)
    assert run.until_decided(1000, starved=1.0) is not None
    assert run.until_decided(1000, starved=1.0, guests=1000) is None
    assert run.wanted == 3
    run = Run(replicas=2, min_replicas=2, max_replicas=3)
    assert run.until_decided(1000, **IDLE) is None


def test_replicas_that_admission_leaves_idle_go_one_at_a_time_down_to_the_least() -> None:
    run = Run(replicas=4)
    for left in (3, 2, 1):
        decided = run.until_decided(1000, **IDLE)
        assert decided is not None
        seconds, decision = decided
        assert seconds == LOOK_BACK_S + DOWN_S + 1
        assert decision.replicas == left
    assert "were given nothing 90% of the time" in decision.reason
    assert "10% of their slots" in decision.reason
    assert run.until_decided(1000, **IDLE) is None


@pytest.mark.parametrize(
    "shares",
    [
        {"held_back": 0.4, "used": 0.1},
        {"held_back": 0.9, "used": 0.1, "waits": 0.06},
        {"held_back": 0.9, "used": 0.41},
        {"held_back": 0.9, "used": 0.1, "guests": 2},
    ],
    ids=["they have work", "the learner waits", "one alone has no slots for it", "clients need them"],
)
def test_none_goes_that_somebody_needs(shares: dict[str, float]) -> None:
    assert Run(replicas=2).until_decided(1000, **shares) is None


def test_requests_of_clients_beyond_the_target_bring_as_many_replicas_as_they_need() -> None:
    run = Run(replicas=2, target_ongoing_requests=3.0)
    decided = run.until_decided(1000, guests=7)
    assert decided is not None
    assert decided[1].replicas == 3
    assert "7.0 requests of clients" in decided[1].reason
    assert "3.5 for each replica; target_ongoing_requests is 3" in decided[1].reason
    assert run.until_decided(1000, guests=9) is None
    assert run.until_decided(1000, guests=0, **IDLE) is not None


def test_clients_are_served_whether_or_not_the_learner_makes_steps() -> None:
    assert Run().until_decided(100, guests=9, steps=0) is not None


def test_a_wait_at_the_end_of_a_long_step_is_a_small_share_of_it() -> None:
    run = Run()
    for _ in range(20):
        for second in range(300):
            assert run.second(starved=float(second < 15), steps=int(second == 299)) is None


def test_a_learner_without_any_step_has_more_all_the_same() -> None:
    assert Run().until_decided(1000, starved=1.0, steps=0) is not None


def test_a_replica_that_was_missed_comes_back_and_is_not_let_go_at_that_use_again() -> None:
    run = Run(replicas=3)
    use = {"held_back": 0.9, "used": ROOMY * 2 / 3 - 0.01}
    assert run.until_decided(1000, **use) is not None
    # Admission is the limit still, and yet the learner waits since it went.
    decided = run.until_decided(int(LOOK_BACK_S + UP_S + 1), waits=0.3, held_back=0.9)
    assert decided is not None
    assert decided[1].replicas == 3
    assert "which it did not with 3" in decided[1].reason
    assert run.until_decided(5000, **use) is None
    run.autoscaler.pause()
    decided = run.until_decided(1000, held_back=0.9, used=TAKEN_BACK * ROOMY * 2 / 3 - 0.02)
    assert decided is not None
    assert decided[1].replicas == 2
    assert decided[0] == LOOK_BACK_S + LONGER * DOWN_S + 1, "so many were too few before"


def test_a_wait_long_after_one_was_let_go_is_not_put_down_to_it() -> None:
    run = Run(replicas=2)
    assert run.until_decided(1000, **IDLE) is not None
    assert run.until_decided(1000) is None
    assert run.until_decided(1000, waits=0.3, held_back=0.9) is None


def test_what_the_machine_has_no_room_for_is_asked_for_again_only_after_a_while_and_less_at_once() -> None:
    run = Run(replicas=2)
    decided = run.until_decided(1000, starved=0.5)
    assert decided is not None
    assert decided[1].replicas == 4
    run.wanted = run.serving = 2
    run.autoscaler.refused(4)
    decided = run.until_decided(100, starved=0.5)
    assert decided is not None
    assert decided[1].replicas == 3
    run.wanted = run.serving = 2
    run.autoscaler.refused(3)
    decided = run.until_decided(1000, starved=0.5)
    assert decided is not None
    assert decided[0] >= REFUSED_S


def test_a_persons_number_stays_until_it_is_given_back() -> None:
    run = Run(replicas=2, fixed=True)
    assert run.until_decided(1000, **STARVED) is None
    assert run.until_decided(1000, **IDLE) is None
    run.autoscaler.fix(False)
    decided = run.until_decided(1000, **STARVED)
    assert decided is not None
    assert decided[0] == LOOK_BACK_S + UP_S + 1
    run.autoscaler.fix(True)
    assert run.until_decided(1000, **STARVED) is None


def test_what_was_measured_while_a_run_paused_counts_for_nothing() -> None:
    run = Run(replicas=2)
    for _ in range(1000):
        run.second(**IDLE)
        run.autoscaler.pause()
    assert run.wanted == 2


def test_a_learner_that_begins_again_from_its_checkpoint_is_looked_at_anew() -> None:
    run = Run(upscale_delay_s=0.0)
    assert run.until_decided(int(LOOK_BACK_S), **STARVED) is None
    run.step = 0
    decided = run.until_decided(1000, **STARVED)
    assert decided is not None
    assert decided[0] == LOOK_BACK_S + 1


def test_a_learner_whose_steps_take_hours_is_judged_within_the_longest_window() -> None:
    run = Run()
    decided = run.until_decided(2 * int(LONGEST_S), steps=0, **STARVED)
    assert decided is not None
    assert decided[0] == LONGEST_S + UP_S + 1
