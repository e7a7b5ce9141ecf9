"""The replay queue after its end: what was acknowledged is there again, and the same steps take the same groups."""

from pathlib import Path

import pytest
from support.queue.queue_parts import Order, Parts, both, groups_of, kill, open_queue

from streamrl.buffers.ledger.ledger import read_ledger
from streamrl.buffers.ledger.records import Step
from streamrl.buffers.queue.replay_queue import ReplayQueue
from streamrl.buffers.segments.places import LEDGER_DIR, SCORES_DIR
from streamrl.errors import DataError, RunFolderError, StartAgainError
from streamrl.types import Version


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
    assert back.counts().next_step == 2
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
    with pytest.raises(StartAgainError, match="those before are in its log"):
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
