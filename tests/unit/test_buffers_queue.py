"""The queue: awaitable, durable, idempotent, fenced; and the same after it was closed or killed."""

import asyncio
import errno
import os
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from buffers.ledger import read_ledger
from buffers.ledger_records import Dropped, Issued, Step
from buffers.queue import COMPLETIONS_DIR, LEDGER_DIR, SCORES_DIR, ReplayQueue
from buffers.records import AcceptedRows, QueueSettings, ScoredRows
from buffers.rows import scores_batch
from buffers.schema import SCORES
from buffers.segment_writer import SegmentWriter
from streamrl.clock import VirtualClock
from streamrl.errors import ComponentError, DataError, FencedError, RunFolderError
from streamrl.types import FrameRef, Score, Version

GROUP_SIZE = 2


class Order:
    def at(self, n: int, /) -> tuple[int, int]:
        return divmod(n, 5)


def queue_settings(**changes) -> QueueSettings:
    values = {
        "group_size": GROUP_SIZE,
        "groups_per_step": 2,
        "max_staleness": 1,
        "byte_budget": 10**9,
        "rollout_bytes": 1000,
        "commit_interval_s": 0.0,
        "fingerprint": "data",
    }
    return QueueSettings(**(values | changes))


def open_queue(run: Path, *, resume_step=0, **changes) -> ReplayQueue:
    return ReplayQueue.open(run, queue_settings(**changes), Order(), VirtualClock(), resume_step)


def kill(queue: ReplayQueue) -> None:
    """End it as `kill -9` would: the ledger keeps what was committed, nothing is closed or cut."""
    queue._journal._ledger._committer.close()


@dataclass
class Parts:
    """A replica, a scorer and a learner of the smallest kind, around one queue."""

    queue: ReplayQueue
    run: Path
    epoch: int = 0
    sequence: int = 0
    scored: int = 0
    leases: list = field(default_factory=list)

    def __post_init__(self):
        self.scores = SegmentWriter(
            self.run, SCORES_DIR, f"reward-{id(self)}", self.epoch, SCORES, 2**16, "memory", 0.0
        )

    def rows(self, keys, *, attempt=0, oldest=0, finish=0) -> AcceptedRows:
        count = len(keys)
        return AcceptedRows(
            number=np.array([number for number, _ in keys], np.int64),
            sample_index=np.array([sample for _, sample in keys], np.int32),
            branch=np.zeros(count, np.int32),
            attempt=np.full(count, attempt, np.int32),
            prompt_tokens=np.full(count, 4, np.int32),
            sampled_tokens=np.full(count, 3, np.int32),
            oldest_step=np.full(count, oldest, np.int64),
            finish=np.full(count, finish, np.uint8),
        )

    async def accept(self, keys, *, sequence=None, **options):
        place = self.sequence if sequence is None else sequence
        frame = FrameRef(f"{COMPLETIONS_DIR}/r.arrow", 1000 * place, 50 * len(keys), len(keys), 7, 9)
        self.sequence = max(self.sequence, place + 1)
        await self.queue.accept("r", self.epoch, place, frame, self.rows(keys, **options))

    async def score_waiting(self, *, reward=lambda number, sample: number + sample / 10):
        """Score what waits; a reward of None is a failed score."""
        while self.queue.counts().rows_unscored:
            for part in await self.queue.unscored("reward", self.epoch, 100):
                pairs = zip(part.number.tolist(), part.sample_index.tolist(), strict=True)
                values = [reward(number, sample) for number, sample in pairs]
                await self.add_scores(part, values)

    async def add_scores(self, part, values):
        verdicts = [Score.failed("no") if value is None else Score.ok(float(value)) for value in values]
        names = [f"{n}/{s}" for n, s in zip(part.number, part.sample_index, strict=True)]
        frame = self.scores.append(scores_batch(names, part.branch, verdicts, scorer="reward", scored_ns=0)).result()
        rows = ScoredRows(
            part.number,
            part.sample_index,
            part.branch,
            part.attempt,
            np.array([value is not None for value in values]),
            np.array([np.nan if value is None else value for value in values], np.float64),
        )
        self.scored += 1
        await self.queue.add_scores("reward", self.epoch, self.scored - 1, frame, rows)

    async def one_step(self, step):
        """Take, accept, score, lease and commit one step."""
        for ticket in await self.queue.take("r", self.epoch, Version(0, step), 2):
            await self.accept(both(ticket.number), oldest=step)
        await self.score_waiting()
        lease = await self.queue.lease(step)
        self.leases.append(lease)
        await self.queue.commit(step)


def both(number):
    return [(number, 0), (number, 1)]


def groups_of(lease) -> list[int]:
    return sorted(set(lease.group.tolist()))


async def turn():
    """Let every task that can run do so."""
    for _ in range(20):
        await asyncio.sleep(0)


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


# After the end


def state_of(queue: ReplayQueue):
    """What a queue knows, without what a restart may change: who runs what, and what was counted as ignored."""
    counts = queue.counts()
    running = {
        number: (group.last_step, sorted(group.rows), group.num_bytes, group.reserved)
        for number, group in queue._index._running.groups.items()
    }
    ready = {
        group.number: sorted((key, row.frame, row.row, row.valid, row.reward) for key, row in group.rows.items())
        for group in queue._index._steps._ready
    }
    return running, ready, counts.bytes_held, counts.bytes_reserved, counts.groups_dropped, counts.tokens_accepted


async def a_busy_queue(run: Path, *, steps=2) -> Parts:
    """Trained steps, a dropped group, a ready one, one half accepted, one half scored, one only issued."""
    parts = Parts(open_queue(run, max_staleness=4), run)
    for step in range(steps):
        await parts.one_step(step)
    tickets = await parts.queue.take("r", 0, Version(0, steps), 5)
    dropped, ready, half, scored, _ = (ticket.number for ticket in tickets)
    await parts.accept(both(dropped), oldest=steps)
    await parts.score_waiting(reward=lambda number, sample: None)
    await parts.accept(both(ready), oldest=steps)
    await parts.score_waiting()
    await parts.accept([(half, 1)], oldest=steps)
    await parts.accept([(scored, 0)], oldest=steps)
    await parts.score_waiting()
    await parts.accept([(scored, 1)], oldest=steps)
    return parts


@pytest.mark.parametrize("end", [kill, ReplayQueue.close])
async def test_invariant_1_after_the_end_everything_acknowledged_is_there_again(tmp_path, end):
    parts = await a_busy_queue(tmp_path)
    before = state_of(parts.queue)
    end(parts.queue)
    back = open_queue(tmp_path, max_staleness=4, resume_step=2)
    after = state_of(back)
    trained_bytes = 4 * 2 * 50
    assert after == (*before[:2], before[2] - trained_bytes, *before[3:])
    assert back.counts().groups_trained == 4
    assert back.next_step == 2
    assert back.incarnation == 1
    back.close()


@pytest.mark.parametrize("resume_step", [0, 1, 2])
async def test_invariant_11_the_books_close_after_a_restart_too(tmp_path, resume_step):
    parts = await a_busy_queue(tmp_path)
    before = parts.queue.counts()
    kill(parts.queue)
    back = open_queue(tmp_path, max_staleness=4, resume_step=resume_step)
    counts = back.counts()
    trained_before = before.tokens_trained // 2
    assert counts.tokens_trained == resume_step * trained_before
    assert counts.rows_trained == resume_step * before.rows_trained // 2
    assert counts.tokens_accepted == before.tokens_accepted
    assert counts.tokens_accepted == counts.tokens_queued + counts.tokens_trained + counts.tokens_dropped
    dropped = sum(counts.groups_dropped.values())
    closed = counts.groups_trained + dropped
    assert counts.groups_issued == counts.groups_running + counts.groups_ready + closed
    back.close()


async def test_unfinished_groups_are_issued_again_first_under_the_same_numbers(tmp_path):
    parts = await a_busy_queue(tmp_path)
    kill(parts.queue)
    back = open_queue(tmp_path, max_staleness=4, resume_step=2)
    tickets = await back.take("r", 1, Version(1, 2), 4)
    assert [(t.number, t.attempt) for t in tickets] == [(6, 1), (8, 1), (9, 0), (10, 0)]
    assert [(t.data_pass, t.data_index) for t in tickets] == [Order().at(t.number) for t in tickets]
    again = await back.unscored("reward", 1, 10)
    assert [part.number.tolist() for part in again] == [[7]]
    back.close()


@pytest.mark.parametrize("late_resume", [False, True])
async def test_invariant_2_steps_after_the_checkpoint_are_leased_again_with_the_same_groups(tmp_path, late_resume):
    parts = await a_busy_queue(tmp_path, steps=4)
    kill(parts.queue)
    back = open_queue(tmp_path, max_staleness=4, resume_step=0 if late_resume else 2)
    if late_resume:
        await back.resume_from(2)
    assert back.counts().groups_trained == 4
    for step in (2, 3):
        lease = await back.lease(step)
        for name in ("group", "sample_index", "row", "rewards", "oldest_step", "frame_index"):
            assert getattr(lease, name).tolist() == getattr(parts.leases[step], name).tolist()
        assert lease.frames == parts.leases[step].frames
        await back.commit(step)
    kill(back)
    third = open_queue(tmp_path, max_staleness=4, resume_step=3)
    assert groups_of(await third.lease(3)) == groups_of(parts.leases[3])
    third.close()


async def test_a_learner_that_restarts_alone_gets_its_steps_again_from_a_living_queue(tmp_path):
    parts = Parts(open_queue(tmp_path), tmp_path)
    for step in range(3):
        await parts.one_step(step)
    await parts.queue.covered(1)
    assert await parts.queue.resume_from(1) == 1
    assert groups_of(await parts.queue.lease(1)) == groups_of(parts.leases[1])
    with pytest.raises(ComponentError, match="open it anew"):
        await parts.queue.resume_from(0)
    parts.queue.close()


async def test_invariant_11_the_books_close_when_a_living_queue_goes_back(tmp_path):
    parts = Parts(open_queue(tmp_path), tmp_path)
    for step in range(3):
        await parts.one_step(step)
    accepted = parts.queue.counts().tokens_accepted
    await parts.queue.resume_from(1)
    counts = parts.queue.counts()
    assert (counts.groups_trained, counts.groups_ready, counts.groups_issued) == (2, 4, 6)
    assert (counts.rows_trained, counts.rows_ready) == (4, 8)
    assert counts.tokens_accepted == accepted == counts.tokens_trained + counts.tokens_queued
    parts.queue.close()


async def test_an_uncommitted_lease_is_ready_again_after_the_end(tmp_path):
    parts = Parts(open_queue(tmp_path), tmp_path)
    await parts.queue.take("r", 0, Version(0, 0), 2)
    for number in (0, 1):
        await parts.accept(both(number))
    await parts.score_waiting()
    await parts.queue.lease(0)
    kill(parts.queue)
    back = open_queue(tmp_path)
    assert groups_of(await back.lease(0)) == [0, 1]
    back.close()


async def test_recovering_twice_gives_what_recovering_once_gave(tmp_path):
    parts = await a_busy_queue(tmp_path)
    kill(parts.queue)
    once = open_queue(tmp_path, max_staleness=4, resume_step=2)
    first = state_of(once)
    kill(once)
    twice = open_queue(tmp_path, max_staleness=4, resume_step=2)
    assert state_of(twice) == first
    assert twice.incarnation == 2
    twice.close()


async def test_a_torn_end_of_the_ledger_costs_only_what_was_not_acknowledged(tmp_path):
    parts = await a_busy_queue(tmp_path)
    before = state_of(parts.queue)
    kill(parts.queue)
    path = tmp_path / LEDGER_DIR / "000000.log"
    end = read_ledger(tmp_path / LEDGER_DIR)[0].good_bytes
    data = path.read_bytes()
    path.write_bytes(data[:end] + b"SRL\x02" + b"\x40" + bytes(100))
    back = open_queue(tmp_path, max_staleness=4, resume_step=2)
    assert state_of(back)[:2] == before[:2]
    back.close()


async def test_every_prefix_of_the_ledger_opens_with_closed_books(tmp_path):
    parts = await a_busy_queue(tmp_path)
    kill(parts.queue)
    (file,) = read_ledger(tmp_path / LEDGER_DIR)
    path = tmp_path / LEDGER_DIR / "000000.log"
    data = path.read_bytes()[: file.good_bytes]
    for size in range(0, len(data), 37):
        for extra in (tmp_path / LEDGER_DIR).glob("*.log"):
            extra.unlink()
        path.write_bytes(data[:size] + bytes(len(data) + 1 - size))
        back = open_queue(tmp_path, max_staleness=4)
        counts = back.counts()
        dropped = sum(counts.groups_dropped.values())
        assert counts.groups_issued == counts.groups_running + counts.groups_ready + dropped
        assert counts.groups_orphaned <= counts.groups_running
        back.close()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"fingerprint": "other"},
            "data fingerprint 'data', and the data set has 'other' now: .*--accept-changed-data",
        ),
        ({"seed": 5}, "seed 0, and is opened with 5"),
        ({"group_size": 4}, "group size 2, and is opened with 4"),
    ],
)
async def test_a_ledger_of_another_run_is_refused_by_what_differs(tmp_path, change, message):
    open_queue(tmp_path).close()
    with pytest.raises(RunFolderError, match=message):
        open_queue(tmp_path, **change)


async def test_a_checkpoint_of_a_step_that_the_ledger_does_not_have_is_refused(tmp_path):
    parts = await a_busy_queue(tmp_path)
    parts.queue.close()
    with pytest.raises(RunFolderError, match="the ledger does not have step 2"):
        open_queue(tmp_path, max_staleness=4, resume_step=3)


async def test_a_damaged_scores_frame_is_found_when_the_queue_opens(tmp_path):
    parts = await a_busy_queue(tmp_path)
    kill(parts.queue)
    (path,) = (tmp_path / SCORES_DIR).glob("*.arrow")
    data = bytearray(path.read_bytes())
    data[data.rindex(b"reward") + 1] ^= 1
    path.write_bytes(bytes(data))
    with pytest.raises(DataError, match="do not have their checksum"):
        open_queue(tmp_path, max_staleness=4)


async def test_the_ledger_names_the_ordered_groups_of_each_step(tmp_path):
    parts = await a_busy_queue(tmp_path, steps=3)
    parts.queue.close()
    (file,) = read_ledger(tmp_path / LEDGER_DIR)
    steps = [record for record in file.records if isinstance(record, Step)]
    assert steps == [Step(step, groups_of(parts.leases[step])) for step in range(3)]
