"""The replay index, case by case: bytes, steps, going back, scorers, and rows that are lost."""

import pytest
from support.queue.small_index import (
    ROLLOUT_BYTES,
    accept,
    assert_books_close,
    both,
    finish,
    frame,
    make_index,
    score,
)

from streamrl.buffers.index.groups.group import Group, Row
from streamrl.buffers.index.groups.leasing import build_lease
from streamrl.clock import VirtualClock
from streamrl.errors import ComponentError, StartAgainError


def test_invariant_4_a_lease_is_in_data_order_in_whatever_order_its_groups_are_given():
    row = Row(frame(rows=2), 0, 0, 4, 3, 0)
    groups = [Group(number, 0, 1, 0.0, 0, number, number, rows={(1, 0): row, (0, 0): row}) for number in (5, 2, 9)]
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
    assert index.counts().rows_unscored == 5
    rest = index.unscored("b", 100)
    assert [n for part in rest for n in part.number.tolist()] == [0, 1, 2, 3, 3]
    assert index.unscored("a", 5) == []


def test_rows_of_a_dropped_group_are_not_handed_out():
    index = make_index()
    index.issue("r", 0, 2)
    accept(index, both(0) + both(1))
    index.drop(0, "cancelled")
    assert index.counts().rows_unscored == 2
    assert [part.number.tolist() for part in index.unscored("s", 10)] == [[1, 1]]


def test_groups_that_run_too_long_are_named_with_their_replica():
    clock = VirtualClock()
    index = make_index(clock=clock)
    index.issue("r0", 0, 1)
    clock.advance(5)
    index.issue("r1", 0, 1)
    clock.advance(6)
    assert index.overdue(10) == [(0, "r0")]


def test_a_group_that_waits_for_a_replica_is_overdue_only_when_none_had_any_for_twice_as_long():
    clock = VirtualClock()
    index = make_index(clock=clock)
    index.issue("r0", 0, 1)
    index.issue("r1", 0, 1)
    index.release("r1")
    for _ in range(9):
        clock.advance(5)
        assert index.overdue(10) == ([(0, "r0")] if clock.now() > 10 else [])
    index.release("r0")
    clock.advance(20)
    assert index.overdue(10) == []
    clock.advance(1)
    assert index.overdue(10) == [(0, ""), (1, "")]


def test_a_group_that_waits_for_scores_is_overdue_after_twice_the_limit_whoever_is_busy():
    clock = VirtualClock()
    index = make_index(clock=clock)
    index.issue("r0", 0, 1)
    accept(index, both(0))
    clock.advance(15)
    index.issue("r0", 0, 1)
    assert index.overdue(10) == []
    clock.advance(6)
    assert index.overdue(10) == [(0, "")]


def test_a_ready_group_whose_row_is_lost_is_issued_again_and_its_bytes_are_free():
    index = make_index(groups_per_step=1)
    index.issue("r", 0, 2)
    finish(index, 0)
    before = index.counts()
    assert index.lost.find({frame(rows=2)}, leased=False) == [0]
    assert index.lost.begin_again([0], 0) == (2, -1)
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
    assert index.lost.find(set(lease.frames), leased=False) == []
    assert index.lease(0) is lease
    assert index.lost.find(set(lease.frames), leased=True) == [0]
    assert index.lost.begin_again([0], 0) == (2, -1)
    assert index.lease(0).group.tolist() == [1, 1]


def test_a_step_that_cannot_take_its_groups_again_frees_those_of_the_steps_behind_it_too():
    index = make_index(groups_per_step=1, max_staleness=2)
    index.issue("r", 0, 3)
    for step in range(3):
        finish(index, step)
        index.lease(step)
        index.commit(step)
    index.go_to(0)
    assert index.lost.begin_again([1], 0) == (2, 1)
    assert index.lease(0).group.tolist() == [0, 0]
    index.commit(0)
    (again,) = index.issue("r", 1, 1)
    assert again.number == 1
    # Step 1 takes what is ready, which step 2 had before.
    assert index.lease(1).group.tolist() == [2, 2]
