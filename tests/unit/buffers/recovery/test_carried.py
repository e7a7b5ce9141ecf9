"""What goes along with a checkpoint: a queue opened on it goes on at the step, and asks for no row."""

from pathlib import Path

import pytest
from support.queue.queue_parts import Parts, both, groups_of, kill, open_queue

from streamrl.buffers.ledger.ledger import Ledger, read_ledger
from streamrl.buffers.ledger.records import (
    Accepted,
    Covered,
    Declined,
    Dropped,
    Failed,
    Gathered,
    Incarnation,
    Issued,
    Measured,
    Offered,
    Record,
    RunHeader,
    Scored,
    Step,
)
from streamrl.buffers.recovery.carried import LOST_WITH_MACHINE, carried
from streamrl.buffers.segments.places import LEDGER_DIR
from streamrl.types import FrameRef, Ticket, Version

HEADER = RunHeader(1, "data", 0, 2, -1)


def records_of(run: Path) -> list[Record]:
    return [record for file in read_ledger(run / LEDGER_DIR) for record in file.records]


def elsewhere(run: Path, other: Path, step: int) -> None:
    """A folder of another machine, with what goes along and nothing else."""
    records = records_of(run)
    (other / LEDGER_DIR).mkdir(parents=True)
    header = next(record for record in records if isinstance(record, RunHeader))
    ledger = Ledger(other / LEDGER_DIR, header, durability="disk", commit_interval_s=0.0)
    ledger.append(*carried(records, step)).result()
    ledger.close()


def offered(name: str) -> Offered:
    frame = FrameRef("queue/completions/x.arrow", 0, 10, 1, 0, 0)
    return Offered(name, name, 0, frame, b"", frame, b"", 1.0, [])


@pytest.mark.parametrize("step", range(6))
async def test_a_queue_elsewhere_goes_on_at_the_step_and_trains_each_group_once(tmp_path: Path, step: int) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    parts = Parts(open_queue(here), here)
    for number in range(5):
        await parts.one_step(number)
    kill(parts.queue)
    elsewhere(here, there, step)
    parts = Parts(open_queue(there, resume_step=step), there)
    counts = parts.queue.counts()
    assert (counts.next_step, counts.groups_trained) == (step, 2 * step)
    for number in range(step, 8):
        await parts.one_step(number)
    trained = [number for lease in parts.leases for number in groups_of(lease)]
    assert trained == list(range(2 * step, 16))
    parts.queue.close()


async def test_a_group_that_was_under_way_is_generated_again_under_its_number(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    parts = Parts(open_queue(here), here)
    tickets = await parts.queue.take("r", 0, Version(0, 0), 4)
    for ticket in tickets[:3]:
        await parts.accept(both(ticket.number))
    await parts.score_waiting()
    lease = await parts.queue.lease(0)
    await parts.queue.commit(0)
    kill(parts.queue)
    assert groups_of(lease) == [0, 1]
    elsewhere(here, there, 1)
    queue = open_queue(there, resume_step=1)
    assert queue.counts().rows_waiting == 0
    again = await queue.take("r", await queue.next_epoch("r"), Version(0, 1), 2)
    assert [(ticket.number, ticket.data_index) for ticket in again] == [
        (one.number, one.data_index) for one in tickets[2:]
    ]
    queue.close()


async def test_what_came_after_the_step_is_forgotten_and_the_incarnation_rises(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    for launch in range(3):
        queue = open_queue(here, resume_step=2 * launch)
        parts = Parts(queue, here, epoch=await queue.next_epoch("r"))
        await queue.next_epoch("reward")
        for step in range(2 * launch, 2 * launch + 2):
            await parts.one_step(step)
        kill(queue)
    elsewhere(here, there, 3)
    kept = records_of(there)
    assert [record.step for record in kept if isinstance(record, Step)] == [0, 1, 2]
    assert not any(isinstance(record, Accepted | Scored) for record in kept)
    assert kept[-1] == Covered(3)
    assert open_queue(there, resume_step=3).incarnation == 2


async def test_a_lost_branch_leaves_its_later_steps_behind(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    parts = Parts(open_queue(here), here)
    for step in range(4):
        await parts.one_step(step)
    await parts.queue.resume_from(1)
    for step in (1, 2):
        await parts.queue.lease(step)
        await parts.queue.commit(step)
    kill(parts.queue)
    elsewhere(here, there, 3)
    assert [record.step for record in records_of(there) if isinstance(record, Step)] == [0, 1, 2, 1, 2]
    queue = open_queue(there, resume_step=3)
    assert queue.counts().next_step == 3
    queue.close()


def test_trajectories_of_clients_that_were_not_trained_are_lost_with_a_reason() -> None:
    records: list[Record] = [
        HEADER,
        Incarnation(0, 0),
        *(offered(name) for name in "abcdef"),
        Gathered(0, [0, 1]),
        Issued("trajectories", [Ticket(0, 0, 0, 0, 1, submitted=True)]),
        Gathered(1, [2, 3]),
        Issued("trajectories", [Ticket(1, 1, 0, 0, 1, submitted=True)]),
        Declined([4], "too_stale"),
        Step(0, [0]),
    ]
    kept = carried(records, 1)
    assert kept[-3:] == [Declined([5], LOST_WITH_MACHINE), Dropped([1], LOST_WITH_MACHINE), Covered(1)]


def test_what_is_known_of_prompts_of_another_data_set_is_left_behind() -> None:
    failed, measured = Failed(0, 0, "no"), Measured([1], [1], [0], [0.5])
    later = Failed(2, 2, "no")
    other = RunHeader(1, "other", 0, 2, 10)
    records: list[Record] = [HEADER, failed, measured, other, later, Step(0, [0])]
    assert carried(records, 1) == [later, Step(0, [0]), Covered(1)]
    assert carried([HEADER, failed, measured, HEADER, Step(0, [0])], 1) == [failed, measured, Step(0, [0]), Covered(1)]
