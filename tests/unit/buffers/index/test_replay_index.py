"""The replay index, case by case: states, books, places, and what is issued again."""

import numpy as np
import pytest
from support.queue.small_index import (
    ABORT,
    ERROR,
    ROLLOUT_BYTES,
    accept,
    accepted,
    assert_books_close,
    both,
    finish,
    frame,
    make_index,
    score,
)

from streamrl.errors import ComponentError, DataError
from streamrl.types import Ticket


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
    assert index.pop_dropped() == {"reward_failed": [0]}
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


def test_rows_of_several_groups_are_kept_and_scored_in_the_order_of_their_frame_whichever_are_ignored():
    index = make_index()
    index.issue("r", 0, 2)
    accept(index, [(1, 0)], offset=0)
    index.unscored("s", 1)
    kept = accept(index, [(1, 1), (0, 1), (1, 0), (0, 0), (0, 1)], offset=100)
    assert kept["row"].tolist() == [0, 1, 3]
    (waiting,) = index.unscored("s", 9)
    assert list(zip(waiting.number.tolist(), waiting.sample_index.tolist(), strict=True)) == [(1, 1), (0, 1), (0, 0)]
    taken = score(index, [(0, 0), (0, 1), (1, 0), (1, 1)])
    assert len(taken) == 4
    assert index.counts().rows_ignored == 2


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
