"""Invariant 3 under random schedules: the product's rules hold, and four plausible variants do not."""

from collections.abc import Callable, Iterable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamrl.errors import ComponentError
from streamrl.scheduling.staleness import Admission, Candidate
from streamrl.simulation.policy import Counts, StreamPolicy
from streamrl.simulation.run import simulate
from streamrl.simulation.settings import SimulationReport, SimulationSettings

MAX_STALENESS = 2
GROUPS_PER_STEP = 8
SEEDS = range(20)


def fleet(**changes: object) -> SimulationSettings:
    """Eight small replicas that take versions up at different times, lognormal groups, a few that fail."""
    arguments: dict[str, object] = {
        "steps": 200,
        "groups_per_step": GROUPS_PER_STEP,
        "max_staleness": MAX_STALENESS,
        "replicas": 8,
        "slots": 4,
        "heavy_tail": 1.0,
        "step_s": 0.3,
        "update_s": 0.5,
        "failure_rate": 0.02,
    }
    return SimulationSettings(**{**arguments, **changes})  # type: ignore[arg-type]


class OldestReadyFirst(StreamPolicy):
    """Without the check: whatever is ready, oldest first."""

    def select(self, step: int, ready: Sequence[Candidate], running: Iterable[Candidate]) -> list[int] | None:
        oldest = sorted(ready, key=lambda group: (group.last_step, group.number))
        batch = oldest[: self.admission.groups_per_step]
        return [group.number for group in batch] if len(batch) == self.admission.groups_per_step else None


class WaitAtLastStepOnly(OldestReadyFirst):
    """Waits for a group only when this is its last step; looks no step further."""

    def select(self, step: int, ready: Sequence[Candidate], running: Iterable[Candidate]) -> list[int] | None:
        if any(group.last_step <= step for group in running):
            return None
        return super().select(step, ready, [])


class LearnerVersionAdmission(StreamPolicy):
    """Counts room by the learner's version in place of the one that the replica serves."""

    def capacity(self, counts: Counts) -> int:
        return super().capacity(counts._replace(serving_step=counts.learner_step))


class FailedKeepTheirPlace(StreamPolicy):
    """A group that was lost is counted as if it were still to come."""

    def capacity(self, counts: Counts) -> int:
        return super().capacity(counts._replace(running=counts.running + counts.lost))


def run_variant(variant: Callable[[Admission], StreamPolicy], seed: int) -> SimulationReport | None:
    """The report, or None when admission went past what can be trained in time: a wait without an end."""
    try:
        return simulate(fleet(), seed, variant(Admission(MAX_STALENESS, GROUPS_PER_STEP)))
    except ComponentError as error:
        if "More were admitted" in str(error):
            return None
        raise


@pytest.mark.parametrize("seed", SEEDS)
def test_invariant_3_the_bound_holds_without_discards_or_deadlock(seed: int) -> None:
    report = simulate(fleet(failure_rate=0.0), seed)
    assert not report.deadlocked
    assert report.staleness_max <= MAX_STALENESS
    assert report.discards == {}
    assert report.trained == report.issued == 200 * GROUPS_PER_STEP


@pytest.mark.parametrize("seed", SEEDS)
def test_invariant_3_every_lost_group_gives_its_place_back(seed: int) -> None:
    report = simulate(fleet(failure_rate=0.1, filter_rate=0.1), seed)
    assert not report.deadlocked
    assert report.staleness_max <= MAX_STALENESS
    assert set(report.discards) <= {"failed", "filtered"}
    assert report.trained == 200 * GROUPS_PER_STEP


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    changes=st.fixed_dictionaries(
        {
            "max_staleness": st.integers(0, 4),
            "groups_per_step": st.integers(1, 9),
            "replicas": st.integers(1, 6),
            "slots": st.integers(1, 9),
            "heavy_tail": st.floats(0, 2.5),
            "step_s": st.floats(0, 3),
            "update_s": st.floats(0, 3),
            "reward_s": st.floats(0, 2),
            "failure_rate": st.sampled_from([0.0, 0.05, 0.5]),
            "filter_rate": st.sampled_from([0.0, 0.05, 0.5]),
            "late": st.sampled_from(["wait", "drop", "reissue"]),
        }
    ),
)
def test_invariant_3_holds_for_any_fleet_and_any_choice_for_late_groups(seed: int, changes: dict[str, object]) -> None:
    report = simulate(fleet(steps=25, **changes), seed)
    assert not report.deadlocked
    assert report.staleness_max <= changes["max_staleness"]
    assert report.trained == 25 * changes["groups_per_step"]
    if changes["late"] == "wait":
        assert set(report.discards) <= {"failed", "filtered"}


@pytest.mark.parametrize("late", ["drop", "reissue"])
def test_late_groups_that_are_cancelled_are_counted_and_save_waiting(late: str) -> None:
    waiting = simulate(fleet(failure_rate=0.0, heavy_tail=1.5), 0)
    cancelling = simulate(fleet(failure_rate=0.0, heavy_tail=1.5, late=late), 0)
    assert cancelling.discards == {f"late_{late}": cancelling.issued - cancelling.trained}
    assert cancelling.discards[f"late_{late}"] > 0
    assert cancelling.learner_wait_share < waiting.learner_wait_share / 2
    assert cancelling.staleness_max <= MAX_STALENESS


def test_invariant_3_fails_for_oldest_ready_first_without_the_rule() -> None:
    reports = [run_variant(OldestReadyFirst, seed) for seed in SEEDS]
    assert all(report is not None and report.staleness_max > 3 * MAX_STALENESS for report in reports)


def test_invariant_3_fails_for_waiting_only_at_the_last_step() -> None:
    reports = [run_variant(WaitAtLastStepOnly, seed) for seed in SEEDS]
    assert any(report is not None and report.staleness_max > MAX_STALENESS for report in reports)


def test_invariant_3_fails_for_the_learners_version_in_admission() -> None:
    assert [run_variant(LearnerVersionAdmission, seed) for seed in SEEDS] == [None] * len(SEEDS)


def test_invariant_3_fails_for_failed_groups_that_keep_their_place() -> None:
    reports = [run_variant(FailedKeepTheirPlace, seed) for seed in SEEDS]
    assert all(report is not None and report.deadlocked for report in reports)
