"""The replay index: states, books, places and bytes, against a plain model and case by case."""

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from buffers.group import Group, Row
from buffers.index import ReplayIndex
from buffers.leasing import build_lease
from buffers.records import ACCEPTED, SCORED, QueueSettings
from streamrl.clock import VirtualClock
from streamrl.errors import ComponentError, DataError, StartAgainError
from streamrl.types import FrameRef, Ticket

STOP, LENGTH, ABORT, ERROR = range(4)
ROLLOUT_BYTES = 100


class Order:
    """Data in its own order, five items a pass."""

    def at(self, n: int, /) -> tuple[int, int]:
        return divmod(n, 5)


def queue_settings(
    *, group_size=2, groups_per_step=2, max_staleness=1, byte_budget=10**9, total=None, late="wait", journalled=False
):
    return QueueSettings(
        group_size=group_size,
        groups_per_step=groups_per_step,
        max_staleness=max_staleness,
        byte_budget=byte_budget,
        rollout_bytes=ROLLOUT_BYTES,
        total_groups=total,
        late=late,
        journalled=journalled,
    )


def make_index(*, clock=None, **options) -> ReplayIndex:
    return ReplayIndex(queue_settings(**options), Order(), clock or VirtualClock())


def frame(*, rows, offset=0, row_bytes=10) -> FrameRef:
    return FrameRef("queue/completions/r-0-0.arrow", offset, rows * row_bytes, rows, 0, 0)


def accepted(keys, *, finish=STOP, attempt=0, oldest=0, sampled=3):
    """Rows of type ACCEPTED; keys are (number, sample index) or (number, sample index, branch)."""
    rows = np.zeros(len(keys), ACCEPTED)
    for row, key in enumerate(keys):
        branch = key[2] if len(key) > 2 else 0
        rows[row] = (key[0], key[1], branch, attempt, row, 4, sampled, oldest, finish)
    return rows


def scored(keys, *, attempt=0):
    rows = np.zeros(len(keys), SCORED)
    for row, key in enumerate(keys):
        rows[row] = (key[0], key[1], key[2] if len(key) > 2 else 0, attempt, row)
    return rows


def both(number):
    return [(number, 0), (number, 1)]


def accept(index, keys, *, offset=0, row_bytes=10, **options):
    return index.accept(frame(rows=len(keys), offset=offset, row_bytes=row_bytes), accepted(keys, **options))


def score(index, keys, *, valid=None, reward=None, attempt=0):
    flags = np.ones(len(keys), np.bool_) if valid is None else np.array(valid)
    rewards = np.arange(len(keys), dtype=np.float64) if reward is None else np.array(reward, np.float64)
    return index.score(scored(keys, attempt=attempt), flags, rewards)


def finish(index, number, *, oldest=0, attempt=0):
    accept(index, both(number), offset=100 * number, oldest=oldest, attempt=attempt)
    score(index, both(number), attempt=attempt)


def assert_books_close(counts, *, group_size=2):
    dropped = sum(counts.groups_dropped.values())
    assert counts.groups_issued == (
        counts.groups_running + counts.groups_ready + counts.groups_leased + counts.groups_trained + dropped
    )
    assert counts.tokens_accepted == (
        counts.tokens_queued + counts.tokens_leased + counts.tokens_trained + counts.tokens_dropped
    )
    assert min(counts.rows_pending, counts.rows_complete, counts.bytes_reserved, counts.bytes_held) >= 0
    assert counts.bytes_used <= counts.byte_budget


def test_a_group_goes_from_issue_to_trained_and_the_books_close_at_each_step_invariant_11():
    index = make_index(groups_per_step=1)
    (ticket,) = index.issue("r", 0, 1)
    assert ticket == Ticket(0, 0, 0, 0, 1)
    seen = [index.counts()]
    accept(index, both(0))
    seen.append(index.counts())
    assert index.lease(0) is None
    score(index, [(0, 0)])
    seen.append(index.counts())
    score(index, [(0, 1)])
    seen.append(index.counts())
    lease = index.lease(0)
    seen.append(index.counts())
    assert index.commit(0) == [0]
    seen.append(index.counts())
    for counts in seen:
        assert_books_close(counts)
    rows = [(c.rows_pending, c.rows_complete, c.rows_scored, c.rows_ready, c.rows_leased, c.rows_trained) for c in seen]
    assert rows == [
        (2, 0, 0, 0, 0, 0),
        (0, 2, 0, 0, 0, 0),
        (0, 1, 1, 0, 0, 0),
        (0, 0, 0, 2, 0, 0),
        (0, 0, 0, 0, 2, 0),
        (0, 0, 0, 0, 0, 2),
    ]
    assert lease.num_rows == 2


def test_data_indices_follow_the_order_and_the_pass():
    index = make_index(groups_per_step=8)
    tickets = index.issue("r", 0, 7)
    assert [(t.number, t.data_pass, t.data_index) for t in tickets] == [(n, *divmod(n, 5)) for n in range(7)]


def test_admission_counts_ready_leased_and_trained_groups_and_grows_with_the_version_served():
    index = make_index()
    assert len(index.issue("r", 0, 100)) == 4
    for number in range(4):
        finish(index, number)
    assert index.issue("r", 0, 100) == []
    index.lease(0)
    index.commit(0)
    assert index.issue("r", 0, 100) == []
    assert [ticket.last_step for ticket in index.issue("r", 1, 100)] == [2, 2]


def test_no_more_groups_than_the_run_trains_are_issued_and_a_lost_one_is_replaced():
    index = make_index(groups_per_step=4, total=3)
    assert len(index.issue("r", 0, 100)) == 3
    assert index.issue("r", 0, 100) == []
    accept(index, both(0), finish=ERROR)
    assert index.counts().groups_dropped == {"reward_failed": 1}
    assert [ticket.number for ticket in index.issue("r", 0, 100)] == [3]


@pytest.mark.parametrize("code", [ERROR, ABORT])
def test_a_rollout_that_broke_has_a_failed_score_at_once_and_no_scorer_sees_it(code):
    index = make_index(group_size=3)
    index.issue("r", 0, 1)
    accept(index, [(0, 0), (0, 1)])
    accept(index, [(0, 2)], finish=code)
    handed = [n for part in index.unscored("s", 10) for n in part.sample_index.tolist()]
    assert handed == [0, 1]
    score(index, both(0))
    assert index.counts().scores_failed == 1
    assert index.counts().groups_ready == 1


def test_a_group_with_fewer_than_two_valid_scores_is_dropped_with_its_reason_and_frees_place_and_bytes():
    index = make_index(group_size=3, groups_per_step=1, max_staleness=0)
    index.issue("r", 0, 1)
    keys = [(0, 0), (0, 1), (0, 2)]
    accept(index, keys)
    score(index, keys, valid=[True, False, False], reward=[1.0, np.nan, 7.0])
    counts = index.counts()
    assert counts.groups_dropped == {"reward_failed": 1}
    assert index.pop_failed() == [0]
    assert (counts.bytes_reserved, counts.bytes_held) == (0, 0)
    assert counts.tokens_dropped == 9
    assert [ticket.number for ticket in index.issue("r", 0, 5)] == [1]


def test_invariant_8_a_failed_score_has_no_number_in_the_lease():
    index = make_index(group_size=3, groups_per_step=1)
    index.issue("r", 0, 1)
    keys = [(0, 0), (0, 1), (0, 2)]
    accept(index, keys)
    score(index, keys, valid=[True, False, True], reward=[1.0, 0.0, 0.5])
    lease = index.lease(0)
    assert lease.valid.tolist() == [True, False, True]
    assert np.isnan(lease.rewards[1])
    assert lease.rewards[[0, 2]].tolist() == [1.0, 0.5]


def test_a_group_of_one_needs_one_valid_score():
    index = make_index(group_size=1, groups_per_step=1)
    index.issue("r", 0, 2)
    accept(index, [(0, 0), (1, 0)])
    score(index, [(0, 0), (1, 0)], valid=[True, False])
    assert index.counts().groups_ready == 1
    assert index.counts().groups_dropped == {"reward_failed": 1}


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_valid_score_that_is_no_finite_number_is_refused_and_nothing_is_taken(value):
    index = make_index()
    index.issue("r", 0, 1)
    accept(index, both(0))
    with pytest.raises(DataError, match="group 0, sample 1"):
        score(index, both(0), reward=[1.0, value])
    assert index.counts().rows_scored == 0


def test_a_second_row_or_score_for_the_same_rollout_is_ignored_and_counted():
    index = make_index()
    index.issue("r", 0, 1)
    assert len(accept(index, both(0), offset=0)) == 2
    assert len(accept(index, both(0), offset=500)) == 0
    assert len(score(index, [(0, 0)], reward=[1.0])) == 1
    assert len(score(index, both(0), reward=[5.0, 2.0])) == 1
    assert len(score(index, both(0), reward=[6.0, 6.0])) == 0
    counts = index.counts()
    assert (counts.rows_ignored, counts.tokens_ignored, counts.groups_ready) == (2, 6, 1)
    index.issue("r", 0, 1)
    finish(index, 1)
    lease = index.lease(0)
    assert lease.rewards[:2].tolist() == [1.0, 2.0]
    assert {ref.offset for ref in lease.frames} == {0, 100}


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (accepted([(0, 0), (1, 0)]), r"group 1 was never issued"),
        (accepted([(0, 0), (-1, 0)]), r"group -1 was never issued"),
        (accepted([(0, 0), (0, 2)]), r"sample index 2 is not in 0..1"),
    ],
)
def test_a_frame_with_an_impossible_row_is_refused_whole(rows, message):
    index = make_index()
    index.issue("r", 0, 1)
    with pytest.raises(DataError, match=message):
        index.accept(frame(rows=2), rows)
    assert index.counts().rows_complete == 0


def test_tokens_older_than_the_version_that_the_ticket_was_given_for_are_refused():
    index = make_index(groups_per_step=1)
    index.issue("r", 0, 2)
    finish(index, 0)
    index.lease(0)
    index.commit(0)
    index.issue("r", 1, 1)
    with pytest.raises(DataError, match=r"tokens of step 0, .* served step 1"):
        accept(index, [(2, 0)], oldest=0)
    accept(index, [(2, 0)], oldest=1)


def test_forked_branches_are_rows_of_their_own_and_all_of_them_are_scored_before_a_group_is_ready():
    index = make_index(groups_per_step=1)
    index.issue("r", 0, 1)
    keys = [(0, 0, 0), (0, 0, 1), (0, 1, 0)]
    accept(index, keys)
    score(index, keys[:1] + keys[2:])
    assert index.counts().groups_ready == 0
    score(index, [(0, 0, 1)])
    lease = index.lease(0)
    assert [(s, b) for s, b in zip(lease.sample_index.tolist(), lease.branch.tolist(), strict=True)] == [
        (0, 0),
        (0, 1),
        (1, 0),
    ]


def test_a_lease_is_sorted_by_group_and_sample_whatever_the_order_of_arrival():
    index = make_index()
    index.issue("r", 0, 2)
    accept(index, [(1, 1), (0, 1)], offset=0)
    accept(index, [(0, 0), (1, 0)], offset=100)
    score(index, [(1, 0), (0, 1), (1, 1), (0, 0)], reward=[10, 1, 11, 0])
    lease = index.lease(0)
    assert lease.group.tolist() == [0, 0, 1, 1]
    assert lease.sample_index.tolist() == [0, 1, 0, 1]
    assert lease.rewards.tolist() == [0, 1, 10, 11]
    places = [(lease.frames[f].offset, r) for f, r in zip(lease.frame_index, lease.row, strict=True)]
    assert places == [(100, 0), (0, 1), (100, 1), (0, 0)]
    assert lease.num_tokens.tolist() == [7] * 4
    assert lease.sampled_tokens.tolist() == [3] * 4


def test_the_same_lease_is_given_again_until_it_is_committed_and_no_other():
    index = make_index()
    index.issue("r", 0, 4)
    for number in range(4):
        finish(index, number)
    lease = index.lease(0)
    assert index.lease(0) is lease
    with pytest.raises(ComponentError, match="next step is 0"):
        index.lease(1)
    with pytest.raises(ComponentError, match="not leased"):
        index.commit(1)
    assert index.commit(0) == [0, 1]
    assert index.commit(0) is None
    with pytest.raises(ComponentError, match="next step is 1"):
        index.lease(0)


def test_a_lost_replicas_groups_are_issued_again_under_their_numbers_and_accepted_rollouts_stay():
    index = make_index()
    index.issue("r0", 0, 2)
    index.issue("r1", 0, 1)
    accept(index, [(0, 0)])
    assert index.release("r0") == [0, 1]
    assert index.counts().groups_orphaned == 2
    tickets = index.issue("r1", 0, 3)
    assert [(t.number, t.attempt) for t in tickets] == [(0, 1), (1, 1), (3, 0)]
    kept = accept(index, both(0), attempt=1)
    assert kept["sample_index"].tolist() == [1]
    assert_books_close(index.counts())


def test_a_group_that_only_waits_for_scores_is_not_issued_again():
    index = make_index()
    index.issue("r0", 0, 1)
    accept(index, both(0))
    assert index.release("r0") == []
    assert index.counts().groups_orphaned == 0


def test_a_group_is_not_issued_again_under_an_older_version_than_before():
    index = make_index(groups_per_step=1)
    index.issue("r0", 0, 2)
    finish(index, 0)
    index.lease(0)
    index.commit(0)
    (ticket,) = index.issue("r0", 1, 1)
    index.release("r0")
    assert [t.number for t in index.issue("r1", 0, 5)] == [1]
    assert [t.number for t in index.issue("r1", 1, 5)] == [ticket.number]


def test_invariant_3_a_group_whose_tokens_may_be_journalled_keeps_its_last_step_so_that_they_can_be_used():
    index = make_index(journalled=True)
    (ticket,) = index.issue("a", 0, 1)
    index.release("a")
    (again,) = index.issue("b", 1, 1)
    assert (again.number, again.attempt, again.last_step) == (0, 1, ticket.last_step)
    # What was sampled under the old version is accepted with what came later.
    assert len(accept(index, both(0), attempt=1, oldest=0)) == 2


def test_a_group_issued_again_without_any_row_counts_from_the_new_version_and_refuses_the_old_attempt():
    index = make_index(groups_per_step=1)
    index.issue("r0", 0, 2)
    finish(index, 0)
    index.lease(0)
    index.commit(0)
    index.release("r0")
    (ticket,) = index.issue("r1", 1, 1)
    assert (ticket.number, ticket.attempt, ticket.last_step) == (1, 1, 2)
    assert len(accept(index, both(1), attempt=0, oldest=0)) == 0
    assert index.counts().rows_ignored == 2
    assert len(accept(index, both(1), attempt=1, oldest=1)) == 2


def test_a_group_issued_again_with_rows_keeps_its_last_step():
    index = make_index(groups_per_step=1)
    index.issue("r0", 0, 2)
    finish(index, 0)
    index.lease(0)
    index.commit(0)
    accept(index, [(1, 0)])
    index.release("r0")
    (ticket,) = index.issue("r1", 1, 1)
    assert (ticket.number, ticket.last_step) == (1, 1)
    assert len(accept(index, [(1, 1)], attempt=0)) == 1


def test_a_withdrawn_group_loses_its_rows_and_takes_no_verdict_on_them():
    index = make_index()
    index.issue("r", 0, 1)
    accept(index, both(0), sampled=3)
    (handed,) = index.unscored("s", 10)
    assert index.withdraw(0, 0)
    counts = index.counts()
    assert (counts.rows_dropped, counts.tokens_dropped, counts.rows_pending) == (2, 6, 2)
    assert counts.bytes_held == 0
    assert counts.bytes_reserved == 2 * ROLLOUT_BYTES
    (ticket,) = index.issue("r", 0, 1)
    assert (ticket.number, ticket.attempt) == (0, 1)
    accept(index, both(0), attempt=1)
    assert handed.attempt.tolist() == [0, 0]
    assert len(score(index, both(0), attempt=0)) == 0
    assert len(score(index, both(0), attempt=1)) == 2
    assert_books_close(index.counts())


def test_rows_of_a_withdrawn_attempt_that_come_before_it_is_issued_again_are_ignored():
    index = make_index()
    index.issue("r", 0, 1)
    assert index.withdraw(0, 0)
    assert len(accept(index, both(0), attempt=0)) == 0
    assert index.counts().rows_ignored == 2
    assert_books_close(index.counts())


def test_invariant_4_a_lease_is_in_data_order_in_whatever_order_its_groups_are_given():
    row = Row(frame(rows=2), 0, 0, 4, 3, 0)
    groups = [Group(number, 0, 1, 0.0, 0, rows={(1, 0): row, (0, 0): row}) for number in (5, 2, 9)]
    lease = build_lease(3, groups)
    assert lease.group.tolist() == [2, 2, 5, 5, 9, 9]
    assert lease.sample_index.tolist() == [0, 1] * 3


def test_bytes_are_reserved_at_issue_and_trimmed_as_rows_come():
    index = make_index(groups_per_step=1)
    index.issue("r", 0, 1)
    assert index.counts().bytes_reserved == 2 * ROLLOUT_BYTES
    accept(index, [(0, 0)], row_bytes=30)
    counts = index.counts()
    assert (counts.bytes_reserved, counts.bytes_held) == (ROLLOUT_BYTES, 30)
    accept(index, [(0, 1)], row_bytes=30)
    counts = index.counts()
    assert (counts.bytes_reserved, counts.bytes_held) == (0, 60)


def test_invariant_9_admission_stops_at_the_byte_budget_and_a_checkpoint_makes_room():
    index = make_index(groups_per_step=1, max_staleness=9, byte_budget=5 * ROLLOUT_BYTES)
    assert len(index.issue("r", 0, 10)) == 2
    assert index.issue("r", 0, 10) == []
    accept(index, both(0), row_bytes=60)
    score(index, both(0))
    assert index.counts().bytes_used == 2 * ROLLOUT_BYTES + 120
    assert index.issue("r", 0, 10) == []
    index.lease(0)
    index.commit(0)
    assert index.counts().bytes_held == 120
    index.cover(1)
    assert index.counts().bytes_held == 0
    assert len(index.issue("r", 0, 10)) == 1


def test_trained_groups_are_let_go_once_a_checkpoint_covers_their_step():
    index = make_index(groups_per_step=1)
    for step in range(4):
        index.issue("r", step, 1)
        finish(index, step, oldest=step)
        index.lease(step)
        index.commit(step)
    index.cover(3)
    assert sorted(index._steps._trained) == [3]
    with pytest.raises(ComponentError, match="not trained"):
        index.cover(9)


def test_going_back_leases_the_same_groups_again_in_the_same_order_invariant_2():
    index = make_index()
    leases = []
    for step in range(3):
        for ticket in index.issue("r", step, 2):
            finish(index, ticket.number, oldest=step)
        leases.append(index.lease(step))
        index.commit(step)
    for ticket in index.issue("r", 3, 2):
        finish(index, ticket.number, oldest=3)
    index.lease(3)
    index.go_to(1)
    assert index.counts().groups_trained == 2
    assert_books_close(index.counts())
    for step in (1, 2):
        again = index.lease(step)
        assert again.group.tolist() == leases[step].group.tolist()
        index.commit(step)
    assert index.lease(3).group.tolist() == [6, 6, 7, 7]
    index.commit(3)
    assert_books_close(index.counts())


@pytest.mark.parametrize("back_to", [0, 1])
def test_a_step_that_was_leased_again_keeps_its_groups_when_the_learner_is_lost_once_more_invariant_2(back_to):
    """Going back to 0 leases the same groups for it; a checkpoint after it counts them as trained."""
    index = make_index(groups_per_step=1)
    leases = []
    for step in range(2):
        index.issue("r", step, 1)
        finish(index, step, oldest=step)
        leases.append(index.lease(step).group.tolist())
        index.commit(step)
    index.go_to(0)
    index.lease(0)
    index.go_to(back_to)
    assert not index.drop(0, "cancelled")
    assert index.counts().groups_trained == back_to
    for step in range(back_to, 2):
        assert index.lease(step).group.tolist() == leases[step]
        index.commit(step)
    assert (index.counts().groups_trained, index.counts().groups_ready) == (2, 0)
    assert_books_close(index.counts())


def test_going_back_behind_a_checkpoint_is_refused_since_its_rows_are_gone():
    index = make_index(groups_per_step=1)
    for step in range(3):
        index.issue("r", step, 1)
        finish(index, step, oldest=step)
        index.lease(step)
        index.commit(step)
    index.cover(2)
    with pytest.raises(StartAgainError, match=r"step 1: the queue has steps 2\.\.3 in memory; those .* in its log"):
        index.go_to(1)
    with pytest.raises(ComponentError, match=r"step 4: the queue has steps 2\.\.3; .* was never trained"):
        index.go_to(4)


@pytest.mark.parametrize("late", ["drop", "reissue"])
def test_late_groups_are_named_and_when_they_are_out_of_the_way_the_batch_goes(late):
    index = make_index(max_staleness=1)
    index.issue("r", 0, 4)
    for number in (0, 1):
        finish(index, number)
    index.lease(0)
    index.commit(0)
    for ticket in index.issue("r", 1, 2):
        finish(index, ticket.number, oldest=1)
    assert index.lease(1) is None
    assert index.late(1) == [2, 3]
    for number in (2, 3):
        assert index.drop(number, "late") if late == "drop" else index.withdraw(number, 1)
    assert index.lease(1).group.tolist() == [4, 4, 5, 5]
    assert_books_close(index.counts())


def test_scorers_share_the_rows_and_a_lost_ones_come_first_again():
    index = make_index(groups_per_step=4)
    index.issue("r", 0, 4)
    for number in range(4):
        accept(index, both(number), offset=number)
    first = index.unscored("a", 3)
    assert [part.row.tolist() for part in first] == [[0, 1], [0]]
    assert [n for part in index.unscored("b", 2) for n in part.number.tolist()] == [1, 2]
    score(index, [(0, 0)])
    assert index.requeue_unscored("a") == 2
    assert index.num_unscored == 5
    rest = index.unscored("b", 100)
    assert [n for part in rest for n in part.number.tolist()] == [0, 1, 2, 3, 3]
    assert index.unscored("a", 5) == []


def test_rows_of_a_dropped_group_are_not_handed_out():
    index = make_index()
    index.issue("r", 0, 2)
    accept(index, both(0) + both(1))
    index.drop(0, "cancelled")
    assert index.num_unscored == 2
    assert [part.number.tolist() for part in index.unscored("s", 10)] == [[1, 1]]


def test_groups_that_run_too_long_are_named_with_their_replica():
    clock = VirtualClock()
    index = make_index(clock=clock)
    index.issue("r0", 0, 1)
    clock.advance(5)
    index.issue("r1", 0, 1)
    clock.advance(6)
    assert index.overdue(10) == [(0, "r0")]


class Books(RuleBasedStateMachine):
    """Random schedules of everything that may happen, beside a plain dict of what every group must be."""

    @initialize(size=st.integers(1, 3), per_step=st.integers(1, 3), staleness=st.integers(0, 2))
    def start(self, size, per_step, staleness):
        self.size, self.per_step, self.staleness = size, per_step, staleness
        budget = (staleness + 4) * per_step * size * ROLLOUT_BYTES
        self.index = make_index(group_size=size, groups_per_step=per_step, max_staleness=staleness, byte_budget=budget)
        self.model: dict[int, dict] = {}
        self.step = 0
        self.leased: list[int] = []
        self.tokens = 0
        self.history: dict[int, list[int]] = {}

    def running(self):
        return [n for n, group in self.model.items() if group["state"] == "running"]

    def pick(self, data):
        """A group, most often one that runs, and one of its samples."""
        anywhere = data.draw(st.integers(0, 9)) == 0
        numbers = sorted(self.model) if anywhere or not self.running() else self.running()
        return data.draw(st.sampled_from(numbers)), data.draw(st.integers(0, self.size - 1))

    def settle(self, number):
        group = self.model[number]
        if len(group["rows"]) == self.size and None not in group["rows"].values():
            enough = sum(group["rows"].values()) >= min(2, self.size)
            group["state"] = "ready" if enough else "dropped"

    @rule(replica=st.sampled_from(["a", "b"]), lag=st.integers(0, 1), room=st.integers(1, 4))
    def issue(self, replica, lag, room):
        serving = max(0, self.step - lag)
        for ticket in self.index.issue(replica, serving, room):
            group = self.model.get(ticket.number)
            if group is None:
                assert ticket.number == len(self.model)
                group = {"state": "running", "rows": {}, "floor": 0, "attempt": -1}
                self.model[ticket.number] = group
            assert ticket.attempt == group["attempt"] + 1
            assert ticket.last_step <= serving + self.staleness
            if not group["rows"]:
                group["floor"] = ticket.attempt
            group.update(replica=replica, attempt=ticket.attempt, last_step=ticket.last_step)
            if ticket.attempt == 0:
                started = sum(group["state"] != "dropped" for group in self.model.values())
                assert started <= (self.staleness + serving + 1) * self.per_step

    @precondition(lambda self: self.model)
    @rule(data=st.data(), finish=st.sampled_from([STOP, STOP, STOP, LENGTH, ERROR]))
    def accept(self, data, finish):
        number, sample = self.pick(data)
        group = self.model[number]
        oldest = max(0, group["last_step"] - self.staleness)
        kept = accept(self.index, [(number, sample)], finish=finish, attempt=group["attempt"], oldest=oldest)
        new = group["state"] == "running" and sample not in group["rows"]
        assert len(kept) == new
        if new:
            self.tokens += 3
            group["rows"][sample] = False if finish == ERROR else None
            group.setdefault("tries", {})[sample] = group["attempt"]
            self.settle(number)

    @precondition(lambda self: self.model)
    @rule(data=st.data(), valid=st.sampled_from([True, True, True, False]))
    def score(self, data, valid):
        number, sample = self.pick(data)
        group = self.model[number]
        attempt = group.get("tries", {}).get(sample, 0)
        kept = score(self.index, [(number, sample)], valid=[valid], attempt=attempt)
        new = group["state"] == "running" and group["rows"].get(sample, "absent") is None
        assert len(kept) == new
        if new:
            group["rows"][sample] = valid
            self.settle(number)

    @precondition(lambda self: self.running())
    @rule(data=st.data())
    def finish(self, data):
        number = data.draw(st.sampled_from(self.running()))
        group = self.model[number]
        oldest = max(0, group["last_step"] - self.staleness)
        missing = [(number, sample) for sample in range(self.size) if sample not in group["rows"]]
        self.tokens += 3 * len(missing)
        if missing:
            kept = accept(self.index, missing, attempt=group["attempt"], oldest=oldest)
            assert len(kept) == len(missing)
        for _, sample in missing:
            group["rows"][sample] = None
            group.setdefault("tries", {})[sample] = group["attempt"]
        for sample in [sample for sample, value in group["rows"].items() if value is None]:
            assert len(score(self.index, [(number, sample)], attempt=group["tries"][sample])) == 1
            group["rows"][sample] = True
        self.settle(number)

    @rule(replica=st.sampled_from(["a", "b"]))
    def release(self, replica):
        lost = self.index.release(replica)
        for number in lost:
            assert self.model[number]["replica"] == replica
            assert self.model[number]["state"] == "running"
            self.model[number]["replica"] = None

    @precondition(lambda self: self.running())
    @rule(data=st.data())
    def drop(self, data):
        number = data.draw(st.sampled_from(self.running()))
        assert self.index.drop(number, "cancelled")
        assert not self.index.drop(number, "cancelled")
        self.model[number]["state"] = "dropped"

    @precondition(lambda self: not self.leased)
    @rule()
    def lease(self):
        lease = self.index.lease(self.step)
        if lease is None:
            return
        numbers = sorted(set(lease.group.tolist()))
        assert len(numbers) == self.per_step
        for number in numbers:
            assert self.model[number]["state"] == "ready"
            assert self.model[number]["last_step"] >= self.step
            self.model[number]["state"] = "leased"
        assert (np.maximum(0, self.step - lease.oldest_step) <= self.staleness).all()
        self.leased = numbers
        assert numbers == self.history.get(self.step, numbers)

    @precondition(lambda self: self.leased)
    @rule()
    def commit(self):
        assert self.index.commit(self.step) == self.leased
        for number in self.leased:
            self.model[number]["state"] = "trained"
        self.history[self.step] = self.leased
        self.leased = []
        self.step += 1

    @rule(back=st.integers(0, 2))
    def cover(self, back):
        self.index.cover(max(self.index._steps.covered_step, self.step - back))

    @rule(back=st.integers(0, 2))
    def resume(self, back):
        step = max(self.index._steps.covered_step, self.step - back)
        self.index.go_to(step)
        for number in self.leased:
            self.model[number]["state"] = "ready"
        for later in range(step, self.step):
            for number in self.history[later]:
                self.model[number]["state"] = "ready"
        self.leased, self.step = [], step

    @invariant()
    def books_close(self):
        if not hasattr(self, "model"):
            return
        counts = self.index.counts()
        assert_books_close(counts)
        states = [group["state"] for group in self.model.values()]
        assert counts.groups_issued == len(states)
        for state in ("running", "ready", "leased", "trained"):
            assert getattr(counts, f"groups_{state}") == states.count(state)
        assert sum(counts.groups_dropped.values()) == states.count("dropped")
        assert counts.tokens_accepted == self.tokens
        running = [group for group in self.model.values() if group["state"] == "running"]
        assert counts.rows_pending == sum(self.size - len(group["rows"]) for group in running)
        assert counts.bytes_reserved == counts.rows_pending * ROLLOUT_BYTES
        covered = self.index._steps.covered_step
        gone = {number for step in range(covered) for number in self.history[step]}
        held = [g for n, g in self.model.items() if g["state"] != "dropped" and n not in gone]
        assert counts.bytes_held == 10 * sum(len(group["rows"]) for group in held)
        assert counts.rows_scored == sum(value is not None for group in running for value in group["rows"].values())


Books.TestCase.settings = settings(max_examples=50, stateful_step_count=50, deadline=None)
test_invariant_11_the_books_close_on_any_schedule = Books.TestCase


def test_a_ready_group_whose_row_is_lost_is_issued_again_and_its_bytes_are_free():
    index = make_index(groups_per_step=1)
    index.issue("r", 0, 2)
    finish(index, 0)
    before = index.counts()
    assert index.lost_groups({frame(rows=2)}, leased=False) == [0]
    assert index.lose([0], 0) == (2, -1)
    counts = index.counts()
    assert_books_close(counts)
    assert (counts.groups_ready, counts.groups_running, counts.groups_orphaned) == (0, 2, 1)
    assert (counts.rows_dropped, counts.bytes_held) == (2, 0)
    assert counts.bytes_reserved == before.bytes_reserved + 2 * ROLLOUT_BYTES
    (again,) = index.issue("r", 0, 1)
    assert (again.number, again.attempt) == (0, 1)
    accept(index, both(0), attempt=0)
    assert index.counts().rows_ignored == 2
    finish(index, 0, attempt=1)
    assert index.lease(0).group.tolist() == [0, 0]


def test_a_lease_with_lost_rows_is_given_up_only_by_who_has_it():
    index = make_index(groups_per_step=1)
    index.issue("r", 0, 2)
    finish(index, 0)
    finish(index, 1)
    lease = index.lease(0)
    assert index.lost_groups(set(lease.frames), leased=False) == []
    assert index.lease(0) is lease
    assert index.lost_groups(set(lease.frames), leased=True) == [0]
    assert index.lose([0], 0) == (2, -1)
    assert index.lease(0).group.tolist() == [1, 1]


def test_a_step_that_cannot_take_its_groups_again_frees_those_of_the_steps_behind_it_too():
    index = make_index(groups_per_step=1, max_staleness=2)
    index.issue("r", 0, 3)
    for step in range(3):
        finish(index, step)
        index.lease(step)
        index.commit(step)
    index.go_to(0)
    assert index.lose([1], 0) == (2, 1)
    assert index.lease(0).group.tolist() == [0, 0]
    index.commit(0)
    (again,) = index.issue("r", 1, 1)
    assert again.number == 1
    # Step 1 takes what is ready, which step 2 had before.
    assert index.lease(1).group.tolist() == [2, 2]
