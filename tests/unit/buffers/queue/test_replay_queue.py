"""The replay queue: who waits for what, who is fenced, what counts once."""

import asyncio
import errno
import os

import pytest
from support.queue.queue_parts import Order, Parts, both, groups_of, kill, open_queue, queue_settings, turn

from streamrl.buffers.ledger.ledger import read_ledger
from streamrl.buffers.ledger.records import Dropped, Issued
from streamrl.buffers.queue.replay_queue import ReplayQueue
from streamrl.buffers.segments.places import COMPLETIONS_DIR, LEDGER_DIR
from streamrl.clock import VirtualClock
from streamrl.errors import ComponentError, DataError, FencedError
from streamrl.types import FrameRef, Version


async def test_the_stream_runs_from_take_to_commit_and_the_rewards_arrive(tmp_path):
    parts = Parts(open_queue(tmp_path), tmp_path)
    for step in range(5):
        await parts.one_step(step)
    lease = parts.leases[2]
    assert lease.group.tolist() == [4, 4, 5, 5]
    assert lease.rewards.tolist() == [4.0, 4.1, 5.0, 5.1]
    assert parts.queue.counts().groups_trained == 10
    parts.queue.close()


async def test_take_waits_until_the_learner_made_room(tmp_path):
    parts = Parts(open_queue(tmp_path), tmp_path)
    tickets = await parts.queue.take("r", 0, Version(0, 0), 10)
    assert [ticket.number for ticket in tickets] == [0, 1, 2, 3]
    waiting = asyncio.ensure_future(parts.queue.take("r", 0, Version(0, 0), 10))
    await turn()
    assert not waiting.done()
    await parts.accept(both(0), finish=3)
    (ticket,) = await waiting
    assert ticket.number == 4
    parts.queue.close()


async def test_invariant_3_a_take_that_waits_counts_from_the_version_that_the_replica_serves_meanwhile(tmp_path):
    parts = Parts(open_queue(tmp_path), tmp_path)
    await parts.queue.take("r", 0, Version(0, 0), 10)
    waiting = asyncio.ensure_future(parts.queue.take("r", 0, Version(0, 0), 1))
    await turn()
    assert not waiting.done()
    parts.queue.serving("r", 0, Version(0, 3))
    (ticket,) = await waiting
    assert ticket.last_step == 3 + 1
    parts.queue.close()


async def test_a_ticket_is_in_the_ledger_before_take_returns_it_invariant_1(tmp_path):
    """At a commit interval without end, only closing commits."""
    queue = open_queue(tmp_path)
    assert await queue.next_epoch("r") == 0
    queue._journal._ledger._committer._interval_s = 3600.0
    taken = asyncio.ensure_future(queue.take("r", 0, Version(0, 0), 3))
    await turn()
    assert not taken.done()
    queue.close()
    records = [record for file in read_ledger(tmp_path / LEDGER_DIR) for record in file.records]
    assert Issued("r", await taken) in records


async def test_unscored_and_lease_wait_for_what_they_need_and_close_wakes_all_of_them(tmp_path):
    parts = Parts(open_queue(tmp_path), tmp_path)
    queue = parts.queue
    unscored = asyncio.ensure_future(queue.unscored("s", 0, 10))
    lease = asyncio.ensure_future(queue.lease(0))
    await queue.take("r", 0, Version(0, 0), 10)
    await parts.accept(both(0))
    assert [part.number.tolist() for part in await unscored] == [[0, 0]]
    waiting = [
        asyncio.ensure_future(queue.unscored("s", 0, 10)),
        asyncio.ensure_future(queue.take("r", 0, Version(0, 0), 1)),
        lease,
    ]
    await turn()
    assert not any(task.done() for task in waiting)
    queue.close()
    assert await asyncio.gather(*waiting) == [[], [], None]
    assert await queue.take("r", 0, Version(0, 0), 1) == []
    assert await queue.unscored("s", 0, 1) == []
    assert await queue.lease(0) is None
    with pytest.raises(ComponentError, match="closed"):
        await parts.accept(both(1))


async def test_a_repeated_accept_or_score_changes_nothing(tmp_path):
    parts = Parts(open_queue(tmp_path), tmp_path)
    await parts.queue.take("r", 0, Version(0, 0), 2)
    await parts.accept(both(0), sequence=0)
    await parts.accept(both(0), sequence=0)
    assert parts.queue.counts().rows_ignored == 0
    await parts.accept(both(0), sequence=1)
    assert parts.queue.counts().rows_ignored == 2
    (part,) = await parts.queue.unscored("reward", 0, 10)
    await parts.add_scores(part, [1.0, 2.0])
    parts.scored = 0
    await parts.add_scores(part, [7.0, 7.0])
    await parts.accept(both(1))
    await parts.score_waiting()
    assert (await parts.queue.lease(0)).rewards[:2].tolist() == [1.0, 2.0]
    parts.queue.close()


async def test_a_repeated_accept_is_not_acknowledged_before_the_first_is_durable(tmp_path):
    """At a commit interval without end, only closing commits."""
    queue = open_queue(tmp_path)
    await queue.take("r", 0, Version(0, 0), 2)
    queue._journal._ledger._committer._interval_s = 3600.0
    parts = Parts(queue, tmp_path)
    first = asyncio.ensure_future(parts.accept(both(0), sequence=0))
    again = asyncio.ensure_future(parts.accept(both(0), sequence=0))
    await turn()
    assert not first.done()
    assert not again.done()
    queue.close()
    await asyncio.gather(first, again)


async def test_sequence_numbers_count_once_in_any_order(tmp_path):
    parts = Parts(open_queue(tmp_path), tmp_path)
    await parts.queue.take("r", 0, Version(0, 0), 4)
    for sequence, number in ((2, 0), (0, 1), (2, 2), (1, 3), (0, 2)):
        await parts.accept(both(number), sequence=sequence)
    counts = parts.queue.counts()
    assert counts.rows_complete == 6
    assert counts.rows_pending == 2
    parts.queue.close()


async def test_a_replaced_replica_is_fenced_everywhere_and_its_groups_go_to_the_next(tmp_path):
    parts = Parts(open_queue(tmp_path), tmp_path)
    queue = parts.queue
    await queue.take("r", 0, Version(0, 0), 2)
    await parts.accept([(0, 0)])
    assert await queue.release("r", 1) == [0, 1]
    with pytest.raises(FencedError, match="r acts under epoch 0, but epoch 1"):
        await parts.accept([(0, 1)])
    with pytest.raises(FencedError):
        await queue.take("r", 0, Version(0, 0), 1)
    with pytest.raises(FencedError):
        await queue.release("r", 0)
    tickets = await queue.take("r", 1, Version(0, 0), 2)
    assert [(ticket.number, ticket.attempt) for ticket in tickets] == [(0, 1), (1, 1)]
    queue.close()


async def test_a_waiting_zombie_is_woken_and_fenced_when_it_is_replaced(tmp_path):
    queue = open_queue(tmp_path)
    await queue.take("r", 0, Version(0, 0), 10)
    waiting = asyncio.ensure_future(queue.take("r", 0, Version(0, 0), 1))
    await turn()
    await queue.release("r", 1)
    with pytest.raises(FencedError):
        await waiting
    queue.close()


async def test_a_retired_replica_takes_no_more_and_hands_in_what_it_has(tmp_path):
    parts = Parts(open_queue(tmp_path), tmp_path)
    queue = parts.queue
    await queue.take("r", 0, Version(0, 0), 4)
    waiting = asyncio.ensure_future(queue.take("r", 0, Version(0, 0), 1))
    await turn()
    queue.retire("r", 0)
    assert await waiting == []
    assert await queue.take("r", 0, Version(0, 0), 1) == []
    await parts.accept(both(0), finish=3)
    (ticket,) = await queue.take("s", 0, Version(0, 0), 1)
    assert ticket.number == 4
    assert await queue.take("r", 0, Version(0, 0), 1) == []
    assert await queue.next_epoch("r") == 1
    with pytest.raises(FencedError):
        queue.retire("r", 0)
    again = await queue.take("r", 1, Version(0, 0), 9)
    assert [ticket.number for ticket in again] == [1, 2, 3]
    queue.close()


async def test_epochs_are_given_out_once_each_also_after_a_restart(tmp_path):
    queue = open_queue(tmp_path)
    assert [await queue.next_epoch("r"), await queue.next_epoch("r"), await queue.next_epoch("s")] == [0, 1, 0]
    kill(queue)
    queue = open_queue(tmp_path)
    with pytest.raises(FencedError):
        await queue.take("r", 0, Version(0, 0), 1)
    assert await queue.next_epoch("r") == 2
    queue.close()


async def test_rows_of_a_lost_scorer_go_to_another(tmp_path):
    parts = Parts(open_queue(tmp_path), tmp_path)
    await parts.queue.take("r", 0, Version(0, 0), 1)
    await parts.accept(both(0))
    assert len(await parts.queue.unscored("a", 0, 10)) == 1
    waiting = asyncio.ensure_future(parts.queue.unscored("b", 0, 10))
    await turn()
    assert not waiting.done()
    assert parts.queue.requeue_unscored("a") == 2
    (part,) = await waiting
    assert part.row.tolist() == [0, 1]
    assert await parts.queue.next_epoch("b") == 1
    (again,) = await parts.queue.unscored("a", 0, 10)
    assert again.row.tolist() == [0, 1]
    parts.queue.close()


async def test_a_frame_whose_rows_are_not_all_told_is_refused(tmp_path):
    parts = Parts(open_queue(tmp_path), tmp_path)
    await parts.queue.take("r", 0, Version(0, 0), 1)
    frame = FrameRef(f"{COMPLETIONS_DIR}/r.arrow", 0, 50, 3, 7, 9)
    with pytest.raises(DataError, match="2 rows are told of a frame of 3"):
        await parts.queue.accept("r", 0, 0, frame, parts.rows(both(0)))
    parts.queue.close()


async def test_a_refused_accept_does_not_use_up_its_sequence_number(tmp_path):
    parts = Parts(open_queue(tmp_path), tmp_path)
    await parts.queue.take("r", 0, Version(0, 0), 1)
    with pytest.raises(DataError, match="never issued"):
        await parts.accept(both(9), sequence=0)
    await parts.accept(both(0), sequence=0)
    assert parts.queue.counts().rows_complete == 2
    parts.queue.close()


async def test_a_group_that_failed_is_recorded_and_replaced(tmp_path):
    parts = Parts(open_queue(tmp_path, total_groups=2), tmp_path)
    await parts.queue.take("r", 0, Version(0, 0), 2)
    await parts.accept(both(0))
    await parts.score_waiting(reward=lambda number, sample: None)
    (ticket,) = await parts.queue.take("r", 0, Version(0, 0), 2)
    assert ticket.number == 2
    records = [record for file in read_ledger(tmp_path / LEDGER_DIR) for record in file.records]
    assert Dropped([0], "reward_failed") in records
    parts.queue.close()


@pytest.mark.parametrize("late", ["drop", "reissue"])
async def test_a_batch_does_not_wait_for_late_groups_if_it_was_told_so(tmp_path, late):
    parts = Parts(open_queue(tmp_path, late=late), tmp_path)
    queue = parts.queue
    await queue.take("r", 0, Version(0, 0), 4)
    for number in (0, 1):
        await parts.accept(both(number))
    await parts.score_waiting()
    await queue.lease(0)
    await queue.commit(0)
    await parts.accept([(2, 0)])
    for ticket in await queue.take("r", 0, Version(0, 1), 2):
        await parts.accept(both(ticket.number), oldest=1)
    await parts.score_waiting()
    assert groups_of(await queue.lease(1)) == [4, 5]
    counts = queue.counts()
    assert counts.groups_dropped == ({"late": 2} if late == "drop" else {})
    tickets = await queue.take("r", 0, Version(0, 1), 2)
    assert [t.number for t in tickets] == ([6, 7] if late == "drop" else [2, 3])
    kill(queue)
    back = open_queue(tmp_path, late=late)
    assert back.counts().groups_dropped == counts.groups_dropped
    assert back.counts().tokens_dropped == counts.tokens_dropped == 3
    assert back.counts().bytes_held == counts.bytes_held
    assert back.counts().groups_orphaned == 2
    back.close()


async def test_a_failed_ledger_fails_every_call_and_wakes_every_waiter(tmp_path, monkeypatch):
    queue = open_queue(tmp_path)
    await queue.take("r", 0, Version(0, 0), 4)
    waiting = [asyncio.ensure_future(queue.lease(0)), asyncio.ensure_future(queue.take("q", 0, Version(0, 0), 1))]
    await turn()

    def fail(fd):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fdatasync", fail)
    with pytest.raises(ComponentError, match="fdatasync"):
        await Parts(queue, tmp_path).accept(both(0))
    for task in waiting:
        with pytest.raises(ComponentError, match="fdatasync"):
            await task
    with pytest.raises(ComponentError, match="fdatasync"):
        await queue.take("r", 0, Version(0, 0), 1)
    queue.close()


async def test_a_waiter_that_is_cancelled_disturbs_nobody(tmp_path):
    parts = Parts(open_queue(tmp_path), tmp_path)
    await parts.queue.take("r", 0, Version(0, 0), 4)
    cancelled = asyncio.ensure_future(parts.accept(both(0)))
    lease = asyncio.ensure_future(parts.queue.lease(0))
    await asyncio.sleep(0)
    cancelled.cancel()
    lease.cancel()
    await asyncio.gather(cancelled, lease, return_exceptions=True)
    await parts.accept(both(1))
    await parts.score_waiting()
    assert groups_of(await parts.queue.lease(0)) == [0, 1]
    parts.queue.close()


async def test_the_lease_says_how_long_the_learner_waited(tmp_path):
    clock = VirtualClock()
    queue = ReplayQueue.open(tmp_path, queue_settings(), Order(), clock)
    parts = Parts(queue, tmp_path)
    await queue.take("r", 0, Version(0, 0), 2)
    lease = asyncio.ensure_future(queue.lease(0))
    await turn()
    clock.advance(2.5)
    for number in (0, 1):
        await parts.accept(both(number))
    await parts.score_waiting()
    assert (await lease).waited_s == 2.5
    queue.close()
