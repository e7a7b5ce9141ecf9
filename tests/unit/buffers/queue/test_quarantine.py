"""Prompts that fail again and again are started no more: by a rule that follows from the ledger alone."""

import asyncio
import shutil
from collections import Counter

import pytest
from support.queue.queue_parts import Order, Parts, both, kill, open_queue, queue_settings, turn

from streamrl.buffers.index.submitted.submissions import SubmissionState
from streamrl.buffers.ledger.ledger import Ledger, read_ledger
from streamrl.buffers.ledger.records import Dropped, Failed, Issued, Quarantined, Record, Scored
from streamrl.buffers.ledger.table import ledger_table
from streamrl.buffers.queue.replay_queue import ReplayQueue
from streamrl.buffers.segments.places import LEDGER_DIR
from streamrl.config.schema.streams import TASK, Share
from streamrl.errors import ComponentError, DataError
from streamrl.services.actors.restarts import RestartBudget
from streamrl.services.controller.health.quarantine_notices import sentence
from streamrl.tasks.base import SubmittedPrompt
from streamrl.types import Ticket, Version

BAD = 3
"""The item of the five whose reward raises always."""
ERROR, ABORT = 3, 2
RULE = {"quarantine_after": 3, "max_staleness": 50}


async def take(queue: ReplayQueue, room: int, epoch: int) -> list[Ticket]:
    return await queue.take("r", epoch, Version(0, 0), room)


async def end(parts: Parts, tickets: list[Ticket], *, bad: int = BAD) -> None:
    """Generate and score these; all rollouts of the bad item fail."""
    item = {ticket.number: ticket.data_index for ticket in tickets}
    for ticket in tickets:
        await parts.accept(both(ticket.number), attempt=ticket.attempt)
    await parts.score_waiting(reward=lambda number, sample: None if item.get(number) == bad else number + sample)


def records(folder) -> list[Record]:
    return [record for file in read_ledger(folder / LEDGER_DIR) for record in file.records]


def issued(folder) -> list[Ticket]:
    return [ticket for one in records(folder) if isinstance(one, Issued) for ticket in one.tickets]


async def test_a_prompt_whose_group_failed_three_times_is_passed_over_and_all_others_have_every_turn(tmp_path):
    parts = Parts(open_queue(tmp_path, **RULE), tmp_path)
    taken = []
    for _ in range(30):
        tickets = await take(parts.queue, 1, 0)
        taken += tickets
        await end(parts, tickets)
    places = [(ticket.data_pass, ticket.data_index) for ticket in taken]
    whole = [(data_pass, item) for data_pass in range(8) for item in range(5) if item != BAD or data_pass < 3]
    assert places == whole[:30]
    counts = parts.queue.counts()
    assert (counts.prompts_quarantined, counts.groups_dropped) == (1, {"reward_failed": 3})
    assert counts.prompts_passed_over == sum(ticket.passed_over for ticket in taken) == 3
    (one,) = parts.queue.quarantined.listed()
    assert (one.item, one.failures, one.reason) == (BAD, 3, "no")
    assert [record for record in records(tmp_path) if isinstance(record, Quarantined)] == [one]
    parts.queue.close()


@pytest.mark.parametrize("after", [1, 2])
async def test_the_number_of_failures_is_the_one_that_is_set_and_a_group_that_succeeds_takes_none_back(tmp_path, after):
    queue = open_queue(tmp_path, **{**RULE, "quarantine_after": after})
    parts, turns = Parts(queue, tmp_path), Counter()
    for place in range(20):
        tickets = await take(queue, 1, 0)
        turns.update(ticket.data_index for ticket in tickets)
        # In its second pass it has a score.
        await end(parts, tickets, bad=-1 if place // 5 == 1 else BAD)
    assert turns[BAD] == (1 if after == 1 else 3)
    queue.close()


async def test_what_the_engine_refuses_is_a_failure_of_the_prompt_and_what_was_aborted_is_none(tmp_path):
    queue = open_queue(tmp_path, **{**RULE, "quarantine_after": 1})
    parts = Parts(queue, tmp_path)
    for finish, ticket in zip((ERROR, ABORT), await take(queue, 2, 0), strict=True):
        await parts.accept(both(ticket.number), finish=finish)
    assert queue.counts().groups_dropped == {"reward_failed": 2}
    assert [(one.item, one.reason) for one in queue.quarantined.listed()] == [(0, "its generation ended as error")]
    queue.close()


async def play(folder, *, groups: int, kill_every: int) -> list[Ticket]:
    """Take, generate and score until so many groups were begun; the process is killed after each so many of these."""
    folder.mkdir()
    parts, life, acts, begun = Parts(open_queue(folder, **RULE), folder), 0, 0, {}

    def reward(number, _):
        return None if begun[number] == BAD else 1.0

    parts.epoch = await parts.queue.next_epoch("r")
    while len(begun) < groups:
        tickets = []
        for act in ("take", "generate", "score"):
            if act == "take":
                tickets = await take(parts.queue, 2, parts.epoch)
                begun.update({ticket.number: ticket.data_index for ticket in tickets})
            elif act == "generate":
                for ticket in tickets:
                    await parts.accept(both(ticket.number), attempt=ticket.attempt)
            else:
                await parts.score_waiting(reward=reward)
            acts += 1
            if acts % kill_every == 0:
                kill(parts.queue)
                life += 1
                parts = Parts(open_queue(folder, **RULE), folder, epoch=life)
                assert await parts.queue.next_epoch("r") == life
                await parts.score_waiting(reward=reward)
                break
    assert parts.queue.counts().prompts_quarantined == 1
    kill(parts.queue)
    return [ticket for ticket in issued(folder) if ticket.attempt == 0]


@pytest.mark.parametrize("kill_every", [2, 4, 5])
async def test_failures_are_counted_once_over_kills_and_the_prompts_are_those_of_a_run_that_nobody_killed(
    tmp_path, kill_every
):
    calm = await play(tmp_path / "calm", groups=24, kill_every=10**6)
    killed = await play(tmp_path / "killed", groups=24, kill_every=kill_every)
    same = [(ticket.number, ticket.data_index, ticket.data_pass, ticket.passed_over) for ticket in calm]
    assert [(one.number, one.data_index, one.data_pass, one.passed_over) for one in killed] == same
    assert Counter(ticket.data_index for ticket in killed)[BAD] == 3
    written = [record for record in records(tmp_path / "killed") if isinstance(record, Quarantined)]
    assert [(record.item, record.failures) for record in written] == [(BAD, 3)]
    failed = [record for record in records(tmp_path / "killed") if isinstance(record, Failed)]
    assert [record.item for record in failed] == [BAD] * 3
    assert len({record.number for record in failed}) == 3


async def test_whatever_record_a_crash_comes_behind_the_opening_counts_as_the_process_did_and_tells_what_was_not_told(
    tmp_path,
):
    whole = tmp_path / "whole"
    whole.mkdir()
    parts = Parts(open_queue(whole, **RULE), whole)
    for _ in range(17):
        await end(parts, await take(parts.queue, 1, 0))
    kill(parts.queue)
    header, *others = records(whole)
    for cut in range(1, len(others) + 1):
        folder = tmp_path / f"cut-{cut}"
        shutil.copytree(whole / "queue", folder / "queue")
        shutil.rmtree(folder / LEDGER_DIR)
        ledger = Ledger(folder / LEDGER_DIR, header, durability="memory", commit_interval_s=0.0)
        ledger.append(*others[:cut]).result()
        ledger.close()
        queue = open_queue(folder, **RULE)
        # A group is dropped as soon as its verdicts are known, with or without the record that says so.
        scored = sum(isinstance(record, Scored) for record in others[:cut])
        failures = sum(ticket.data_index == BAD for ticket in issued(whole)[:scored])
        assert queue.counts().groups_dropped == ({"reward_failed": failures} if failures else {})
        assert queue.counts().prompts_quarantined == (failures >= 3)
        told = [record for record in others[:cut] if isinstance(record, Quarantined)]
        newly = await queue.quarantined.newer(0) if failures >= 3 and not told else []
        queue.close()
        written = [record for record in records(folder) if isinstance(record, Quarantined)]
        assert written == [*told, *newly]
        assert len(written) == (failures >= 3)


async def test_who_waits_for_news_is_woken_once_for_each_prompt_and_by_the_end(tmp_path):
    queue = open_queue(tmp_path, **{**RULE, "quarantine_after": 1})
    parts = Parts(queue, tmp_path)
    waiting = asyncio.ensure_future(queue.quarantined.newer(0))
    await turn()
    assert not waiting.done()
    await end(parts, await take(queue, 5, 0))
    assert [one.item for one in await waiting] == [BAD]
    again = asyncio.ensure_future(queue.quarantined.newer(1))
    await turn()
    assert not again.done()
    queue.close()
    assert await again == []


async def test_another_data_set_has_other_prompts_and_none_of_them_is_quarantined(tmp_path):
    queue = open_queue(tmp_path, **{**RULE, "quarantine_after": 1})
    await end(Parts(queue, tmp_path), await take(queue, 5, 0))
    queue.close()
    settings = queue_settings(**{**RULE, "quarantine_after": 1, "fingerprint": "other"})
    changed = ReplayQueue.open(tmp_path, settings, Order(), queue._index._clock, 0, accept_changed_data=True)
    assert changed.counts().prompts_quarantined == 0
    await end(Parts(changed, tmp_path, epoch=1), await take(changed, 5, 1), bad=0)
    assert [one.item for one in changed.quarantined.listed()] == [0]
    changed.close()
    third = ReplayQueue.open(tmp_path, settings, Order(), queue._index._clock)
    assert [one.item for one in third.quarantined.listed()] == [0]
    third.close()


async def test_a_run_of_which_every_prompt_is_quarantined_ends_and_says_why(tmp_path):
    queue = open_queue(tmp_path, **{**RULE, "quarantine_after": 1})
    parts = Parts(queue, tmp_path)
    for ticket in await take(queue, 5, 0):
        await parts.accept(both(ticket.number), finish=ERROR)
    with pytest.raises(ComponentError, match=r"every prompt of the task is quarantined.*streamrl sql"):
        await take(queue, 5, 0)
    queue.close()


async def test_a_client_whose_prompt_fails_has_its_answer_at_once_and_the_data_set_is_not_blamed(tmp_path):
    queue = open_queue(tmp_path, **{**RULE, "quarantine_after": 1, "streams": {TASK: Share(0.0)}})
    parts = Parts(queue, tmp_path)
    (item,) = await queue.submitted.submit("agents", [SubmittedPrompt("a", "text", "{}")])
    (ticket,) = await take(queue, 5, 0)
    await parts.accept(both(ticket.number))
    await parts.score_waiting(reward=lambda *_: None)
    (outcome,) = await queue.submitted.ended([item])
    assert (outcome.state, outcome.reason) == (SubmissionState.DROPPED, "reward_failed")
    assert queue.counts().prompts_quarantined == 0
    queue.close()


async def test_invariant_4_which_turns_are_passed_over_does_not_depend_on_which_group_ends_first(tmp_path):
    rule = {"quarantine_after": 1, "max_staleness": 0, "groups_per_step": 8}
    orders = []
    for name, backwards in (("one", False), ("other", True)):
        folder = tmp_path / name
        folder.mkdir()
        parts = Parts(open_queue(folder, **rule), folder)
        while parts.queue.counts().groups_ready < 8:
            tickets = await take(parts.queue, 8, 0)
            # The next turn of a prompt that may be quarantined by then waits for its group.
            assert len({ticket.data_index for ticket in tickets}) == len(tickets)
            for ticket in tickets[::-1] if backwards else tickets:
                await end(parts, [ticket])
        parts.queue.close()
        orders.append([(ticket.data_pass, ticket.data_index) for ticket in issued(folder)])
    assert orders[0] == orders[1]
    assert (1, BAD) not in orders[0]


async def test_a_replica_that_waits_for_a_prompt_in_doubt_is_woken_when_its_group_has_a_score(tmp_path):
    parts = Parts(open_queue(tmp_path, quarantine_after=1, max_staleness=0, groups_per_step=8), tmp_path)
    tickets = await take(parts.queue, 8, 0)
    waiting = asyncio.ensure_future(take(parts.queue, 3, 0))
    await turn()
    assert not waiting.done()
    await end(parts, tickets[:1])
    assert [(ticket.data_pass, ticket.data_index) for ticket in await waiting] == [(1, 0)]
    parts.queue.close()


# ---- replicas that die


async def die(queue: ReplayQueue, replica: str = "r") -> int:
    epoch, _ = await queue.replace(replica, died=True)
    return epoch


async def test_a_prompt_that_kills_each_replica_is_generated_alone_and_given_up_and_no_other_is(tmp_path):
    parts = Parts(open_queue(tmp_path, **RULE), tmp_path)
    epoch = await parts.queue.next_epoch("r")
    for _ in range(2):
        assert {0, 1, 2} <= {ticket.number for ticket in await take(parts.queue, 3, epoch)}
        epoch = await die(parts.queue)
    alone = []
    while parts.queue.counts().groups_dropped == {}:
        tickets = await take(parts.queue, 3, epoch)
        alone.append([ticket.number for ticket in tickets])
        if tickets[0].number == 1:
            epoch = await die(parts.queue)
        else:
            parts.epoch = epoch
            parts.sequence = 0
            await end(parts, tickets, bad=-1)
    assert alone == [[0], [1], [1]]
    assert parts.queue.quarantined.excused == {"r"}
    (one,) = parts.queue.quarantined.listed()
    assert (one.item, one.number, one.failures) == (1, 1, 1)
    assert one.reason == "4 replicas died while they generated it, the last with nothing else to do"
    assert [record for record in records(tmp_path) if isinstance(record, Dropped)] == [Dropped([1], "replica_died")]
    # The last of the three is a suspect still; once it has ended, others run beside each other again.
    assert [ticket.number for ticket in await take(parts.queue, 3, epoch)] == [2]
    waiting = asyncio.ensure_future(take(parts.queue, 3, epoch))
    await turn()
    assert not waiting.done()
    parts.epoch, parts.sequence = epoch, 0
    await parts.accept(both(2), attempt=2)
    assert [ticket.number for ticket in await waiting] == [3, 4, 5]
    parts.queue.close()


async def test_deaths_are_remembered_over_openings_and_stopping_a_run_is_none(tmp_path):
    dropped = []
    for _ in range(6):
        queue = open_queue(tmp_path, **RULE)
        epoch = await queue.next_epoch("r")
        assert [ticket.number for ticket in await take(queue, 1, epoch)][:1] == [0]
        kill(queue)
        dropped.append(queue.counts().groups_dropped)
    assert not any(dropped)
    for death in range(4):
        queue = open_queue(tmp_path, **RULE)
        await take(queue, 1, await queue.next_epoch("r"))
        assert queue.counts().groups_dropped == {}
        await die(queue)
        assert queue.counts().groups_dropped == ({"replica_died": 1} if death == 3 else {})
        kill(queue)
    back = open_queue(tmp_path, **RULE)
    assert (back.counts().groups_dropped, back.counts().prompts_quarantined) == ({"replica_died": 1}, 1)
    assert not (await take(back, 1, await back.next_epoch("r")))[0].attempt
    back.close()


async def test_groups_that_die_together_to_the_last_are_not_blamed(tmp_path):
    queue = open_queue(tmp_path, **RULE)
    epoch = await queue.next_epoch("r")
    await take(queue, 2, epoch)
    for _ in range(5):
        queue._index.died([0, 1])
    assert queue.counts().groups_dropped == {}
    queue.close()


async def test_a_suspect_waits_for_no_replica_that_may_not_have_it(tmp_path):
    queue = open_queue(tmp_path, **RULE)
    epoch = await queue.next_epoch("r")
    for _ in range(2):
        assert await queue.take("r", epoch, Version(0, 1), 1)
        epoch = await die(queue)
    # It was begun under step 1, and one that serves step 0 would be too old for it.
    assert [ticket.number for ticket in await queue.take("old", 0, Version(0, 0), 2)] == [1, 2]
    queue.close()


def test_a_part_whose_killer_was_found_is_started_again_as_often_as_a_new_one():
    budget = RestartBudget()
    assert [budget.died("r", 0) for _ in range(3)] == [1, 2, 3]
    budget.excuse("r")
    assert [budget.died("r", 0) for _ in range(4)] == [1, 2, 3, None]


def test_a_warning_names_the_prompt_the_failures_and_the_last_reason():
    text = sentence({"prompt_id": "p7", "item": 7, "number": 40, "failures": 3, "reason": "KeyError: 'x'"})
    assert all(part in text for part in ("p7", "item 7", "3 groups", "KeyError: 'x'"))


async def test_the_ledgers_table_lists_them(tmp_path):
    queue = open_queue(tmp_path, **{**RULE, "quarantine_after": 1})
    epoch = await queue.next_epoch("r")
    parts = Parts(queue, tmp_path, epoch=epoch)
    await end(parts, await take(queue, 5, epoch))
    await take(queue, 1, epoch)
    await die(queue)
    queue.close()
    rows = ledger_table(read_ledger(tmp_path / LEDGER_DIR)).to_pylist()
    told = [(row["data_index"], row["group_number"], row["reason"]) for row in rows if row["kind"] == "quarantined"]
    assert told == [(BAD, BAD, "no")]
    failed = [(row["data_index"], row["group_number"], row["reason"]) for row in rows if row["kind"] == "failed"]
    assert failed == told
    assert [row["group_number"] for row in rows if row["kind"] == "died"] == [5]


async def test_a_file_of_verdicts_that_are_needed_is_missed(tmp_path):
    rule = {**RULE, "quarantine_after": 2}
    parts = Parts(open_queue(tmp_path, **rule), tmp_path)
    for _ in range(4):
        await end(parts, await take(parts.queue, 1, 0))
    parts.queue.close()
    parts.scores.close()
    (file,) = {record.frame.path for record in records(tmp_path) if isinstance(record, Scored)}
    (tmp_path / file).unlink()
    with pytest.raises(DataError, match=file):
        open_queue(tmp_path, **rule)


async def test_failures_outlive_the_verdicts_that_were_let_go_with_their_file(tmp_path):
    rule = {**RULE, "quarantine_after": 2}
    queue = open_queue(tmp_path, **rule)
    parts = Parts(queue, tmp_path)
    await end(parts, await take(queue, 1, 0), bad=0)
    parts.scores.close()
    queue.close()
    for record in records(tmp_path):
        if isinstance(record, Scored):
            (tmp_path / record.frame.path).unlink()
    back = open_queue(tmp_path, **rule)
    assert (back.counts().groups_dropped, back.counts().prompts_quarantined) == ({"reward_failed": 1}, 0)
    parts = Parts(back, tmp_path, epoch=1)
    while not back.counts().prompts_quarantined:
        await end(parts, await take(back, 1, 1), bad=0)
    assert [(one.item, one.number, one.failures) for one in back.quarantined.listed()] == [(0, 5, 2)]
    back.close()


async def test_a_suspect_is_given_to_no_replica_that_has_others_until_they_have_ended(tmp_path):
    queue = open_queue(tmp_path, **RULE)
    parts = Parts(queue, tmp_path)
    assert [ticket.number for ticket in await take(queue, 1, 0)] == [0]
    epoch = await queue.next_epoch("s")
    for _ in range(2):
        assert [ticket.number for ticket in await queue.take("s", epoch, Version(0, 0), 1)] == [1]
        epoch = await die(queue, "s")
    assert queue._index._running.suspects == {1}
    waiting = asyncio.ensure_future(take(queue, 3, 0))
    await turn()
    assert not waiting.done(), "it still has group 0"
    await parts.accept(both(0))
    assert [ticket.number for ticket in await waiting] == [1]
    queue.close()


async def test_a_group_whose_rows_are_discarded_keeps_its_deaths(tmp_path):
    queue = open_queue(tmp_path, **RULE)
    epoch = await queue.next_epoch("r")
    for _ in range(2):
        await take(queue, 1, epoch)
        epoch = await die(queue)
    assert queue._index.withdraw(0, 0)
    assert [ticket.number for ticket in await take(queue, 3, epoch)] == [0], "it is generated alone still"
    queue.close()
