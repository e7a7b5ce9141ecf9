"""The two rules by themselves: numbers in, numbers out."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamrl.errors import ComponentError, ConfigError
from streamrl.scheduling.staleness import Admission, Candidate, late_groups, select_batch, staleness_of


def outstanding(*last_steps: int, first: int = 0) -> list[Candidate]:
    return [Candidate(first + index, last_step) for index, last_step in enumerate(last_steps)]


def slow_select(step: int, groups_per_step: int, ready: list[Candidate], running: list[Candidate]) -> list[int] | None:
    """The batch rule as the design words it, for each d by itself."""
    oldest = sorted(ready, key=lambda group: (group.last_step, group.number))
    taken = oldest[:groups_per_step]
    untaken = oldest[groups_per_step:] + running
    if len(taken) < groups_per_step:
        return None
    horizon = max((group.last_step for group in untaken), default=step)
    for d in range(step, horizon + 1):
        if sum(group.last_step <= d for group in untaken) > (d - step) * groups_per_step:
            return None
    return sorted(group.number for group in taken)


@pytest.mark.parametrize(
    ("serving_step", "trained", "waiting", "running", "expected"),
    [
        (0, 0, 0, 0, 24),
        (0, 0, 10, 14, 0),
        (1, 8, 4, 4, 16),
        (0, 24, 0, 0, 0),
        (0, 80, 0, 0, 0),
        (9, 80, 8, 8, 0),
        (7, 64, 8, 7, 1),
    ],
)
def test_capacity_is_the_formula_of_the_design(
    serving_step: int, trained: int, waiting: int, running: int, expected: int
) -> None:
    admission = Admission(max_staleness=2, groups_per_step=8)
    room = admission.capacity(serving_step=serving_step, trained=trained, waiting=waiting, running=running)
    assert room == expected


def test_capacity_never_goes_past_the_groups_that_the_run_trains() -> None:
    admission = Admission(max_staleness=2, groups_per_step=8, total_groups=20)
    assert admission.capacity(serving_step=0, trained=0, waiting=0, running=0) == 20
    assert admission.capacity(serving_step=1, trained=8, waiting=6, running=5) == 1
    assert admission.capacity(serving_step=5, trained=20, waiting=0, running=0) == 0


def test_on_policy_admission_starts_one_batch_for_each_version() -> None:
    admission = Admission(max_staleness=0, groups_per_step=4)
    assert admission.capacity(serving_step=3, trained=12, waiting=0, running=0) == 4
    assert admission.capacity(serving_step=3, trained=16, waiting=0, running=0) == 0
    assert admission.last_step(3) == 3


@pytest.mark.parametrize(
    "arguments",
    [{"max_staleness": -1}, {"groups_per_step": 0}, {"total_groups": -1}],
)
def test_admission_refuses_settings_without_a_meaning(arguments: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match=next(iter(arguments))):
        Admission(**{"max_staleness": 1, "groups_per_step": 1, **arguments})


def test_the_oldest_ready_groups_are_taken_and_named_in_data_order() -> None:
    ready = [Candidate(7, 3), Candidate(2, 4), Candidate(9, 3), Candidate(1, 5)]
    assert select_batch(3, 3, ready, []) == [2, 7, 9]


def test_the_order_of_arrival_does_not_change_the_batch() -> None:
    ready = outstanding(4, 3, 5, 3, 4, 4)
    assert select_batch(2, 3, ready, []) == select_batch(2, 3, ready[::-1], []) == [0, 1, 3]


def test_too_few_ready_groups_wait() -> None:
    assert select_batch(0, 3, outstanding(2, 2), []) is None


def test_invariant_3_a_batch_waits_for_a_group_at_its_last_step() -> None:
    ready = outstanding(2, 2, 2)
    assert select_batch(1, 2, ready, [Candidate(9, 1)]) is None
    assert select_batch(1, 2, ready, [Candidate(9, 2)]) == [0, 1]


def test_invariant_3_a_batch_waits_when_too_many_groups_would_be_due_later() -> None:
    """No group is at its last step here, yet three due at step 1 cannot fit into one batch of two."""
    ready = outstanding(2, 2)
    due_next = outstanding(1, 1, 1, first=5)
    assert select_batch(0, 2, ready, due_next) is None
    assert select_batch(0, 2, ready, due_next[:2]) == [0, 1]


def test_ready_groups_that_cannot_be_trained_in_time_are_an_error_that_names_them() -> None:
    with pytest.raises(ComponentError, match=r"at step 5, 1 of 2 ready groups .* group 0, last step 4"):
        select_batch(5, 2, outstanding(4, 6), [])
    with pytest.raises(ComponentError, match=r"at step 5, 1 of 3 ready groups .* group 2, last step 5"):
        select_batch(5, 2, outstanding(5, 5, 5), [])


candidates = st.lists(st.integers(3, 7), max_size=12)


@settings(max_examples=300, deadline=None)
@given(candidates, candidates, st.integers(1, 4))
def test_invariant_3_select_batch_is_the_rule_of_the_design(
    ready_steps: list[int], running_steps: list[int], groups_per_step: int
) -> None:
    ready = outstanding(*ready_steps)
    running = outstanding(*running_steps, first=100)
    try:
        chosen = select_batch(3, groups_per_step, ready, running)
    except ComponentError:
        assert not feasible(ready, groups_per_step)
        return
    assert chosen == slow_select(3, groups_per_step, ready, running)


def feasible(ready: list[Candidate], groups_per_step: int) -> bool:
    """Whether earliest-deadline-first from step 3 trains every ready group in time."""
    due = sorted(group.last_step for group in ready)
    return all(last_step >= 3 + index // groups_per_step for index, last_step in enumerate(due))


@settings(max_examples=300, deadline=None)
@given(candidates, candidates, st.integers(1, 4))
def test_late_groups_are_the_fewest_whose_leaving_lets_the_batch_go(
    ready_steps: list[int], running_steps: list[int], groups_per_step: int
) -> None:
    ready = outstanding(*ready_steps)
    running = outstanding(*running_steps, first=100)
    late = late_groups(3, groups_per_step, ready, running)
    if len(ready) < groups_per_step:
        assert late == []
        return
    if not feasible(ready, groups_per_step):
        return
    kept = [group for group in running if group.number not in late]
    assert select_batch(3, groups_per_step, ready, kept) is not None
    assert (late == []) == (select_batch(3, groups_per_step, ready, running) is not None)
    for number in late:
        spared = [group for group in running if group.number not in late or group.number == number]
        assert select_batch(3, groups_per_step, ready, spared) is None or len(late) > 1


def test_late_groups_names_only_what_is_in_the_way_oldest_first() -> None:
    ready = outstanding(2, 2, 2)
    running = [Candidate(9, 2), Candidate(8, 1), Candidate(7, 1), Candidate(6, 3)]
    assert late_groups(1, 2, ready, running) == [7, 8]


def test_of_equally_obstructive_groups_the_oldest_leave() -> None:
    running = [Candidate(9, 3), Candidate(7, 2), Candidate(6, 2), Candidate(8, 2)]
    assert late_groups(1, 2, outstanding(4, 4), running) == [6]


def test_staleness_is_never_negative() -> None:
    assert staleness_of(5, 3) == 2
    assert staleness_of(3, 5) == 0


def test_a_lead_limits_what_waits_or_runs_and_never_opens_more_than_the_bound() -> None:
    for lead, expected in ((1.0, 8), (1.5, 12), (9.0, 24), (None, 24)):
        admission = Admission(max_staleness=2, groups_per_step=8, lead=lead)
        assert admission.capacity(serving_step=0, trained=0, waiting=0, running=0) == expected
    admission = Admission(max_staleness=2, groups_per_step=8, lead=1.0)
    assert admission.capacity(serving_step=3, trained=32, waiting=5, running=3) == 0
    assert admission.capacity(serving_step=3, trained=40, waiting=0, running=3) == 5


def test_a_lead_below_one_batch_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"lead is 0\.5"):
        Admission(max_staleness=2, groups_per_step=8, lead=0.5)
