"""Prompts of clients in the replay queue: each is trained once, or dropped with a reason, whatever is killed."""

import asyncio
import random

import pytest
from support.faults.fault_scale import SEED, replay
from support.queue.queue_parts import Parts, both, groups_of, kill, open_queue, turn

from streamrl.buffers.index.submitted.submissions import Outcome, SubmissionState
from streamrl.buffers.ledger.ledger import read_ledger
from streamrl.buffers.ledger.records import Issued, Submitted
from streamrl.buffers.ledger.table import ledger_table
from streamrl.buffers.queue.replay_queue import ReplayQueue
from streamrl.buffers.segments.places import LEDGER_DIR
from streamrl.config.schema.streams import TASK, Share
from streamrl.errors import ComponentError, DataError
from streamrl.tasks.base import Prompt, SubmittedPrompt
from streamrl.types import Ticket, Version

ONLY_CLIENTS = {TASK: Share(0.0)}


def asked(*keys: str) -> list[SubmittedPrompt]:
    return [SubmittedPrompt(key, f"text of {key}", f'{{"answer":"{key}"}}') for key in keys]


async def take(queue: ReplayQueue, step: int = 0, room: int = 10, epoch: int = 0) -> list[Ticket]:
    return await queue.take("r", epoch, Version(0, step), room)


def known(queue: ReplayQueue, *items: int) -> list[Prompt]:
    return [given.prompt for given in queue.submitted.prompts(items) if given is not None]


async def first_ends(queue: ReplayQueue, items: list[int]) -> list[Outcome]:
    """Those that have ended, as soon as there is one; [] once closed."""
    count = 0
    while not (found := await queue.submitted.ended(items)) and (ends := await queue.submitted.ends(count)):
        count += len(ends)
    return found


async def finish(parts: Parts, tickets: list[Ticket], step: int = 0) -> None:
    for ticket in tickets:
        await parts.accept(both(ticket.number), oldest=step, attempt=ticket.attempt)
    await parts.score_waiting()


async def test_a_submitted_prompt_becomes_a_group_between_those_of_the_task(tmp_path) -> None:
    queue = open_queue(tmp_path)
    assert await queue.submitted.submit("agents", asked("a", "b")) == [0, 1]
    tickets = await take(queue)
    assert [(one.number, one.submitted, one.data_pass, one.data_index) for one in tickets] == [
        (0, True, 0, 0),
        (1, False, 0, 0),
        (2, True, 0, 1),
        (3, False, 0, 1),
    ]
    prompts = known(queue, 0, 1)
    assert [(one.text, one.payload) for one in prompts] == [
        ("text of a", '{"answer":"a"}'),
        ("text of b", '{"answer":"b"}'),
    ]
    assert prompts[0].prompt_id != prompts[1].prompt_id
    assert (queue.counts().prompts_submitted, queue.counts().prompts_waiting) == (2, 0)
    queue.close()


async def test_a_submission_wakes_a_replica_that_has_nothing_to_do(tmp_path) -> None:
    queue = open_queue(tmp_path, streams=ONLY_CLIENTS)
    taking = asyncio.ensure_future(take(queue))
    await turn()
    assert not taking.done()
    await queue.submitted.submit("agents", asked("a"))
    assert [one.submitted for one in await taking] == [True]
    queue.close()


async def test_invariant_1_a_submission_is_durable_when_it_is_acknowledged(tmp_path) -> None:
    queue = open_queue(tmp_path)
    queue._journal._ledger._committer._interval_s = 3600.0
    submitting = asyncio.ensure_future(queue.submitted.submit("agents", asked("a")))
    await turn()
    assert not submitting.done()
    queue.close()
    assert await submitting == [0]
    records = [record for file in read_ledger(tmp_path / LEDGER_DIR) for record in file.records]
    assert Submitted("agents", asked("a")) in records


async def test_a_key_is_one_prompt_however_often_it_is_submitted(tmp_path) -> None:
    queue = open_queue(tmp_path)
    assert await queue.submitted.submit("agents", asked("a", "b", "a")) == [0, 1, 0]
    assert await queue.submitted.submit("agents", asked("c", "b")) == [2, 1]
    assert await queue.submitted.submit("others", asked("a")) == [3]
    kill(queue)
    again = open_queue(tmp_path)
    assert await again.submitted.submit("agents", asked("b", "d", "c")) == [1, 4, 2]
    assert again.counts().prompts_submitted == 5
    again.close()


async def test_ended_tells_of_a_group_with_its_rows_once_it_is_scored(tmp_path) -> None:
    parts = Parts(open_queue(tmp_path, streams=ONLY_CLIENTS), tmp_path)
    queue = parts.queue
    items = await queue.submitted.submit("agents", asked("a", "b"))
    ending = asyncio.ensure_future(first_ends(queue, items))
    (_, second) = await take(queue)
    await finish(parts, [second])
    (outcome,) = await ending
    assert (outcome.item, outcome.state, outcome.group) == (1, SubmissionState.FINISHED, 1)
    assert outcome.rows is not None
    assert [(row.sample_index, row.reward) for row in outcome.rows] == [(0, 1.0), (1, 1.1)]
    assert [row.row for row in outcome.rows] == [0, 1]
    assert outcome.rows[0].frame.num_rows == 2
    queue.close()


async def test_it_is_told_that_a_group_was_dropped_and_why(tmp_path) -> None:
    queue = open_queue(tmp_path)
    items = await queue.submitted.submit("agents", asked("a"))
    (ticket, *_) = await take(queue)
    ending = asyncio.ensure_future(first_ends(queue, items))
    await turn()
    await queue.drop([ticket.number], "late")
    assert await ending == [Outcome(0, SubmissionState.DROPPED, ticket.number, "late", None)]
    queue.close()


async def test_cancelling_gives_up_what_waits_and_what_runs_and_says_where(tmp_path) -> None:
    queue = open_queue(tmp_path, streams=ONLY_CLIENTS)
    items = await queue.submitted.submit("agents", asked("runs", "waits"))
    (ticket,) = await take(queue, room=1)
    assert await queue.submitted.cancel(items) == [(ticket.number, "r")]
    assert [one.reason for one in await queue.submitted.ended(items)] == ["cancelled", "cancelled"]
    assert queue.submitted.prompts(items) == [None, None]
    assert queue.counts().groups_dropped == {"cancelled": 1}
    assert await queue.submitted.cancel(items) == []
    kill(queue)
    again = open_queue(tmp_path, streams=ONLY_CLIENTS)
    assert [one.state for one in await again.submitted.ended(items)] == [SubmissionState.DROPPED] * 2
    assert again.counts().prompts_waiting == 0
    taking = asyncio.ensure_future(take(again))
    await turn()
    assert not taking.done(), "nothing that was cancelled is given out"
    again.close()
    assert await taking == []


async def test_a_finished_group_cannot_be_cancelled_any_more(tmp_path) -> None:
    parts = Parts(open_queue(tmp_path, streams=ONLY_CLIENTS), tmp_path)
    items = await parts.queue.submitted.submit("agents", asked("a"))
    await finish(parts, await take(parts.queue))
    assert await parts.queue.submitted.cancel(items) == []
    assert parts.queue.counts().groups_ready == 1
    parts.queue.close()


async def test_invariant_9_submitting_waits_while_too_many_bytes_wait(tmp_path) -> None:
    queue = open_queue(tmp_path, streams=ONLY_CLIENTS, submitted_bytes=60)
    await queue.submitted.submit("agents", asked("a", "b"))  # 27 bytes each
    submitting = asyncio.ensure_future(queue.submitted.submit("agents", asked("c")))
    await turn()
    assert not submitting.done()
    assert await queue.submitted.submit("agents", asked("a")) == [0], "what is known needs no room"
    await take(queue, room=1)
    assert await submitting == [2]
    queue.close()


async def test_more_than_the_limit_at_once_is_taken_when_nothing_else_waits(tmp_path) -> None:
    queue = open_queue(tmp_path, submitted_bytes=10)
    assert await queue.submitted.submit("agents", asked("a", "b")) == [0, 1]
    queue.close()


async def test_closing_wakes_everyone(tmp_path) -> None:
    queue = open_queue(tmp_path, streams=ONLY_CLIENTS, submitted_bytes=10)
    items = await queue.submitted.submit("agents", asked("a"))
    ending = asyncio.ensure_future(first_ends(queue, items))
    submitting = asyncio.ensure_future(queue.submitted.submit("agents", asked("b")))
    await turn()
    queue.close()
    assert await ending == []
    with pytest.raises(ComponentError, match="takes no more prompts"):
        await submitting


async def test_numbers_that_nobody_got_are_refused(tmp_path) -> None:
    queue = open_queue(tmp_path)
    for call in (queue.submitted.ended([0]), queue.submitted.cancel([-1])):
        with pytest.raises(DataError, match="was never submitted; there are 0"):
            await call
    queue.close()


async def test_invariant_2_a_resume_from_a_checkpoint_knows_the_data_cursor_beside_submitted_groups(tmp_path) -> None:
    parts = Parts(open_queue(tmp_path), tmp_path)
    await parts.queue.submitted.submit("agents", asked("a", "b", "c"))
    for step in range(2):
        await parts.one_step(step)
    await parts.queue.covered(1)
    kill(parts.queue)
    again = open_queue(tmp_path, resume_step=1)
    assert [one.data_index for one in await take(again, 1) if not one.submitted] == [2]
    lease = await again.lease(1)
    assert groups_of(lease) == [2, 3]
    outcomes = await again.submitted.ended([0, 1])
    assert [(one.state, one.rows is None) for one in outcomes] == [
        (SubmissionState.FINISHED, True),
        (SubmissionState.FINISHED, False),
    ]
    again.close()


async def test_a_group_whose_rows_are_lost_with_their_node_runs_again_under_its_prompt(tmp_path) -> None:
    parts = Parts(open_queue(tmp_path, streams=ONLY_CLIENTS), tmp_path)
    queue = parts.queue
    items = await queue.submitted.submit("agents", asked("a"))
    (ticket,) = await take(queue)
    await finish(parts, [ticket])
    (outcome,) = await queue.submitted.ended(items)
    assert outcome.rows is not None
    assert await queue.lose([outcome.rows[0].frame], leased=False) == (1, 2)
    ending = asyncio.ensure_future(first_ends(queue, items))
    await turn()
    assert not ending.done(), "what it was told to be is not so any more"
    (again,) = await take(queue, step=1)
    assert (again.number, again.data_index, again.submitted, again.attempt) == (0, 0, True, 1)
    assert [one.text for one in known(queue, 0)] == ["text of a"]
    queue.close()
    assert await ending == []


async def test_the_shares_of_streams_go_on_where_they_were(tmp_path) -> None:
    queue = open_queue(tmp_path, streams={"agents": Share(3.0)})
    await queue.submitted.submit("agents", asked(*"abcdefgh"))
    assert [one.submitted for one in await take(queue, room=1)] == [True]
    kill(queue)
    again = open_queue(tmp_path, streams={"agents": Share(3.0)})
    assert [(one.number, one.submitted) for one in await take(again, room=4)] == [
        (0, True),
        (1, False),
        (2, True),
        (3, True),
    ]
    again.close()


async def test_the_ledger_as_a_table_has_who_submitted_what(tmp_path) -> None:
    queue = open_queue(tmp_path)
    items = await queue.submitted.submit("agents", asked("a", "b"))
    await take(queue, room=1)
    await queue.submitted.cancel(items[1:])
    queue.close()
    rows = ledger_table(read_ledger(tmp_path / LEDGER_DIR)).to_pylist()
    told = [(row["kind"], row["who"], row["key"]) for row in rows if row["kind"] == "submitted"]
    assert told == [("submitted", "agents", "a"), ("submitted", "agents", "b")]
    assert [row["submitted"] for row in rows if row["kind"] == "issued"] == [True]
    assert [(row["data_index"], row["reason"]) for row in rows if row["kind"] == "cancelled"] == [(1, "cancelled")]


@pytest.mark.parametrize("place", range(20))
async def test_invariants_1_and_2_of_submitted_prompts_over_random_kills(place: int, tmp_path) -> None:
    """An independent book: what was acknowledged is given out once, in order within its stream, and the task's own
    prompts come in the data order without a gap."""
    print(replay(place))
    chance = random.Random(SEED + place)
    streams = {"a": Share(chance.choice([0.5, 1.0, 3.0])), "b": Share(1.0, chance.randrange(2))}
    parts = Parts(open_queue(tmp_path, streams=streams), tmp_path)
    numbers: dict[tuple[str, str], int] = {}
    cancelled: set[int] = set()
    step, covered = 0, 0
    for _ in range(30):
        match chance.choice(["submit", "submit", "step", "kill", "cover", "cancel"]):
            case "submit":
                stream = chance.choice("ab")
                keys = [str(chance.randrange(12)) for _ in range(chance.randrange(1, 4))]
                for key, item in zip(keys, await parts.queue.submitted.submit(stream, asked(*keys)), strict=True):
                    assert numbers.setdefault((stream, key), item) == item
            case "step":
                await whole_step(parts, step)
                step += 1
            case "cover":
                covered = step
                await parts.queue.covered(covered)
            case "cancel" if numbers:
                item = chance.choice(list(numbers.values()))
                await parts.queue.submitted.cancel([item])
                (outcome,) = await parts.queue.submitted.ended([item])
                cancelled |= {item} if outcome.state is SubmissionState.DROPPED else set()
            case "kill":
                kill(parts.queue)
                step = covered
                parts = Parts(open_queue(tmp_path, resume_step=step, streams=streams), tmp_path, parts.epoch + 1)
    while parts.queue.counts().prompts_waiting:
        await whole_step(parts, step)
        step += 1
    parts.queue.close()
    check_tickets(tmp_path, numbers, cancelled)


async def whole_step(parts: Parts, step: int) -> None:
    """Take until the batch of `step` is there, and train it."""
    leasing = asyncio.ensure_future(parts.queue.lease(step))
    await turn()
    while not leasing.done():
        tickets = await parts.queue.take("r", parts.epoch, Version(0, step), 1)
        for ticket in tickets:
            await parts.accept(both(ticket.number), attempt=ticket.attempt, oldest=step)
        await parts.score_waiting()
        await turn()
    await leasing
    await parts.queue.commit(step)


def check_tickets(run_folder, known: dict[tuple[str, str], int], cancelled: set[int]) -> None:
    records = [record for file in read_ledger(run_folder / LEDGER_DIR) for record in file.records]
    first: dict[int, Ticket] = {}
    for record in records:
        for ticket in record.tickets if isinstance(record, Issued) else ():
            before = first.setdefault(ticket.number, ticket)
            assert (before.submitted, before.data_pass, before.data_index) == (
                ticket.submitted,
                ticket.data_pass,
                ticket.data_index,
            ), "a group keeps its prompt"
    assert sorted(first) == list(range(len(first)))
    of_task = [(one.data_pass, one.data_index) for _, one in sorted(first.items()) if not one.submitted]
    assert of_task == [divmod(place, 5) for place in range(len(of_task))]
    given = [one.data_index for _, one in sorted(first.items()) if one.submitted]
    assert len(given) == len(set(given))
    assert set(given) | cancelled == set(known.values())
    for stream in "ab":
        of_stream = {item for (name, _), item in known.items() if name == stream}
        mine = [item for item in given if item in of_stream]
        assert mine == sorted(mine)
