"""Waits have owners and deadlines, loops have one clock, events reach every reader."""

import asyncio

import pytest

from streamrl.errors import ComponentError, DeadlineError
from streamrl.services.actors.deadline import within
from streamrl.services.actors.named_tasks import run_all, run_until
from streamrl.services.controller.events import KEPT, EventLog


async def test_invariant_7_a_wait_past_its_deadline_names_who_and_what() -> None:
    with pytest.raises(DeadlineError, match=r"rollout-0: taking up version 0\.3 took longer than 0\.01 s"):
        await within(0.01, asyncio.Event().wait(), who="rollout-0", what="taking up version 0.3")


async def test_invariant_7_a_deadline_inside_keeps_its_own_words() -> None:
    async def inner() -> None:
        raise DeadlineError("the store: no answer")

    with pytest.raises(DeadlineError, match="the store: no answer"):
        await within(5.0, inner(), who="learner", what="a step")


async def test_the_clock_loop_decides_and_the_others_are_cancelled() -> None:
    cancelled = asyncio.Event()

    async def endless() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    async def clock() -> int:
        await asyncio.sleep(0)
        return 7

    assert await run_until("learner", {"learner": clock(), "reward": endless()}) == 7
    assert cancelled.is_set()


async def test_another_loop_that_ends_is_an_error_that_names_it() -> None:
    async def ends() -> None:
        return None

    with pytest.raises(ComponentError, match="reward ended before learner"):
        await run_until("learner", {"learner": asyncio.Event().wait(), "reward": ends()})


async def test_the_first_error_of_any_loop_is_raised() -> None:
    async def fails() -> None:
        raise ComponentError("reward: no")

    with pytest.raises(ComponentError, match="reward: no"):
        await run_until("learner", {"learner": asyncio.Event().wait(), "reward": fails()})


async def test_run_all_cancels_the_rest_at_the_first_error() -> None:
    ended = asyncio.Event()

    async def endless() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    async def fails() -> None:
        await asyncio.sleep(0)
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await run_all({"a": endless(), "b": fails()})
    assert ended.is_set()


async def test_two_readers_see_every_event_and_a_close_ends_both() -> None:
    log = EventLog()

    async def read() -> list[int]:
        seen, number = [], 0
        while True:
            number, events = await log.after(number)
            if not events:
                return seen
            seen += [event["n"] for event in events]

    readers = [asyncio.create_task(read()) for _ in range(2)]
    for n in range(5):
        log.add({"n": n})
        await asyncio.sleep(0)
    log.close()
    assert await asyncio.gather(*readers) == [[0, 1, 2, 3, 4]] * 2


async def test_a_late_reader_gets_the_newest_events_and_the_log_stays_bounded() -> None:
    log = EventLog()
    for n in range(3 * KEPT):
        log.add({"n": n})
    number, events = await log.after(0)
    assert number == 3 * KEPT
    assert len(events) <= KEPT
    assert events[-1]["n"] == 3 * KEPT - 1


async def test_a_cancellation_that_comes_as_the_awaited_thing_ends_is_not_forgotten() -> None:
    """Else a loop that is cancelled when a start succeeds would go on for ever, and its run with it."""
    started: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    went_on = False

    async def loop() -> None:
        nonlocal went_on
        await within(5.0, started, who="rollout-0", what="the start")
        went_on = True

    task = asyncio.create_task(loop())
    await asyncio.sleep(0)
    started.set_result("started")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not went_on
