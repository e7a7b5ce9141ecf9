"""A curriculum follows from the ledger: over kills, and where verdicts were let go."""

import asyncio
from pathlib import Path

import pytest
from support.queue.queue_parts import Parts, both, kill, open_queue

from streamrl.buffers.ledger.ledger import read_ledger
from streamrl.buffers.ledger.records import Issued, Measured
from streamrl.buffers.ledger.table import ledger_table
from streamrl.buffers.segments.places import LEDGER_DIR
from streamrl.config.schema.data import CurriculumConfig
from streamrl.types import Ticket, Version

SOLVED, HARD, ITEMS = 1, 3, 5
RULE = {"curriculum": CurriculumConfig(low=0.1, high=0.9, rest=2), "max_staleness": 50}


def reward(item: int) -> float:
    return {SOLVED: 1.0, HARD: 0.0}.get(item, 0.5)


async def turns(parts: Parts, count: int) -> list[Ticket]:
    """So many groups, one after the other, each generated and scored before the next."""
    taken: list[Ticket] = []
    for _ in range(count):
        (ticket,) = await parts.queue.take("r", parts.epoch, Version(0, 0), 1)
        await parts.accept(both(ticket.number), attempt=ticket.attempt)
        await parts.score_waiting(reward=lambda *_, item=ticket.data_index: reward(item))
        taken.append(ticket)
    return taken


def expected(count: int) -> list[tuple[int, int]]:
    """(pass, item): what is solved or too hard has a turn in every third pass."""
    places = [(data_pass, item) for data_pass in range(count) for item in range(ITEMS)]
    return [(data_pass, item) for data_pass, item in places if item not in (SOLVED, HARD) or data_pass % 3 == 0][:count]


async def test_prompts_that_are_solved_or_too_hard_rest_and_come_back(tmp_path: Path) -> None:
    parts = Parts(open_queue(tmp_path, **RULE), tmp_path)
    taken = await turns(parts, 30)
    assert [(ticket.data_pass, ticket.data_index) for ticket in taken] == expected(30)
    counts = parts.queue.counts()
    assert (counts.prompts_resting, counts.prompts_quarantined) == (2, 0)
    assert counts.prompts_passed_over == sum(ticket.passed_over for ticket in taken) > 0
    parts.queue.close()
    table = ledger_table(read_ledger(tmp_path / LEDGER_DIR)).to_pylist()
    assert [row["data_index"] for row in table if row["kind"] == "measured"] == [one.data_index for one in taken]


async def test_without_bounds_nothing_rests_and_nothing_is_written(tmp_path: Path) -> None:
    parts = Parts(open_queue(tmp_path, max_staleness=50), tmp_path)
    taken = await turns(parts, 12)
    assert [ticket.data_index for ticket in taken] == [place % ITEMS for place in range(12)]
    parts.queue.close()
    assert not [one for file in read_ledger(tmp_path / LEDGER_DIR) for one in file.records if isinstance(one, Measured)]


@pytest.mark.parametrize("every", [1, 2, 7])
async def test_kills_change_no_turn(tmp_path: Path, every: int) -> None:
    taken: list[Ticket] = []
    for life in range(-(-24 // every)):
        parts = Parts(open_queue(tmp_path, **RULE), tmp_path, epoch=life)
        assert await parts.queue.next_epoch("r") == life
        taken += await turns(parts, every)
        kill(parts.queue)
    assert [(one.data_pass, one.data_index) for one in taken] == expected(len(taken))
    groups = [one for file in read_ledger(tmp_path / LEDGER_DIR) for one in file.records if isinstance(one, Measured)]
    numbers = [number for record in groups for number in record.numbers]
    assert sorted(numbers) == list(range(len(taken)))


async def test_what_was_measured_outlives_the_verdicts_of_covered_steps(tmp_path: Path) -> None:
    parts = Parts(open_queue(tmp_path, **RULE), tmp_path)
    await turns(parts, 10)
    for step in range(4):
        assert await parts.queue.lease(step) is not None
        await parts.queue.commit(step)
    await parts.queue.covered(4)
    kill(parts.queue)
    again = Parts(open_queue(tmp_path, resume_step=4, **RULE), tmp_path, epoch=1)
    assert await again.queue.next_epoch("r") == 1
    assert again.queue.counts().prompts_resting == 2
    assert [(one.data_pass, one.data_index) for one in await turns(again, 10)] == expected(20)[10:]
    kill(again.queue)


async def test_at_staleness_0_a_turn_waits_for_the_group_that_it_hangs_on(tmp_path: Path) -> None:
    rule = {**RULE, "max_staleness": 0, "groups_per_step": 2 * ITEMS}
    parts = Parts(open_queue(tmp_path, **rule), tmp_path)
    first = await parts.queue.take("r", 0, Version(0, 0), 2 * ITEMS)
    assert [ticket.data_index for ticket in first] == list(range(ITEMS))
    waiting = asyncio.create_task(parts.queue.take("r", 0, Version(0, 0), 1))
    for ticket in first:
        assert ticket.data_index > 2 or not waiting.done()
        await parts.accept(both(ticket.number))
        await parts.score_waiting(reward=lambda *_, item=ticket.data_index: reward(item))
        if ticket.data_index == 0:
            (second,) = await waiting
            assert (second.data_pass, second.data_index) == (1, 0)
            waiting = asyncio.create_task(parts.queue.take("r", 0, Version(0, 0), 1))
    (third,) = await waiting
    assert (third.data_pass, third.data_index, third.passed_over) == (1, 2, 1)
    parts.queue.close()
    issued = [one for file in read_ledger(tmp_path / LEDGER_DIR) for one in file.records if isinstance(one, Issued)]
    assert sum(len(one.tickets) for one in issued) == ITEMS + 2
