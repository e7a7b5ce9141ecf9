"""How often a part may die: in a row, and forgiven by work that it did."""

import asyncio
from typing import Any

import pytest
import ray

from streamrl.errors import ComponentError, DataError, ProcessDiedError
from streamrl.services.actors.actor_slot import ActorSlot
from streamrl.services.actors.deaths import death_in, explain_death, process_died, trace_of
from streamrl.services.actors.restarts import RestartBudget, back_off_s


def test_a_part_that_dies_each_time_before_it_serves_is_given_up() -> None:
    budget = RestartBudget(limit=3)
    assert [budget.died("rollout-0", step) for step in (5, 9, 14, 20)] == [1, 2, 3, None]


def test_serving_alone_forgives_nothing_when_the_run_trained_no_new_step_meanwhile() -> None:
    budget = RestartBudget(limit=2)
    numbers = []
    for _ in range(3):
        budget.served("learner", newest_step=7)
        numbers.append(budget.died("learner", newest_step=7))
    assert numbers == [1, 2, None]


def test_a_part_that_served_while_a_new_step_was_trained_starts_with_a_clean_sheet() -> None:
    budget = RestartBudget(limit=2)
    for step in range(50):
        budget.served("queue", newest_step=step)
        assert budget.died("queue", newest_step=step + 1) == 1


def test_what_a_part_did_before_its_last_death_does_not_count_again() -> None:
    budget = RestartBudget(limit=2)
    budget.served("reward", newest_step=1)
    assert budget.died("reward", newest_step=9) == 1
    assert budget.died("reward", newest_step=20) == 2
    assert budget.died("reward", newest_step=30) is None


def test_parts_are_counted_apart() -> None:
    budget = RestartBudget(limit=1)
    assert budget.died("rollout-0", 0) == 1
    assert budget.died("rollout-1", 0) == 1
    assert budget.died("rollout-0", 0) is None


def test_the_first_restart_comes_at_once_and_each_further_one_later() -> None:
    assert [back_off_s(number) for number in (1, 2, 3, 4)] == [0, 1, 2, 4]


def died() -> ray.exceptions.ActorDiedError:
    return ray.exceptions.ActorDiedError()


def passed_on(cause: Exception) -> Any:
    error = ray.exceptions.RayTaskError("run", "traceback", cause)
    return error.as_instanceof_cause()


def test_the_death_of_the_part_itself_is_told_from_one_that_it_passes_on() -> None:
    assert process_died(died())
    assert not process_died(passed_on(died()))
    assert not process_died(passed_on(DataError("damage")))
    assert "its process died" in str(explain_death("learner-0", died()))
    echo = explain_death("learner-0", passed_on(died()))
    assert isinstance(echo, ProcessDiedError)
    assert "a part that it needs died" in str(echo)


def test_the_death_that_is_in_an_error_is_found_whoever_raised_it() -> None:
    own, needed = died(), died()
    ours = ProcessDiedError("learner-0: its process died")
    ours.__cause__ = own
    assert death_in(own) is own
    assert death_in(passed_on(needed)) is needed
    assert death_in(ours) is own
    lacked = ray.exceptions.OutOfMemoryError("1 worker(s) were killed\nMemory usage exceeded\ntable")
    assert death_in(lacked) is lacked
    assert process_died(lacked)
    told = str(explain_death("rollout-0", lacked))
    assert told == "rollout-0: its process died: 1 worker(s) were killed; Memory usage exceeded"
    failed = ray.exceptions.RayTaskError("__init__", "trace", ValueError("no"))
    for error in (ray.exceptions.ActorDiedError(failed), passed_on(DataError("damage")), ProcessDiedError("a server")):
        assert death_in(error) is None


def test_a_part_that_could_not_be_made_is_no_process_that_died_and_its_last_line_is_told() -> None:
    failed = ray.exceptions.RayTaskError("__init__", "Traceback\nValueError: no such file", ValueError("no such file"))
    error = ray.exceptions.ActorDiedError(failed)
    assert not process_died(error)
    told = explain_death("learner-0", error)
    assert type(told) is ComponentError
    assert "no such file" in str(told)


def test_an_error_of_ours_stays_what_it_is() -> None:
    error = DataError("frame at offset 8 is damaged")
    told = explain_death("queue", passed_on(error))
    assert (type(told), str(told)) == (DataError, str(error))


def test_the_trace_of_an_error_is_the_remote_one_where_there_is_one() -> None:
    told = ComponentError("learner-1: KeyError: 'rows'")
    told.__cause__ = passed_on(KeyError("rows"))
    assert [trace_of(error) for error in (told, passed_on(KeyError("rows")))] == ["traceback", "traceback"]
    slow = ComponentError("it took too long")
    slow.__cause__ = TimeoutError()
    assert trace_of(slow) == "it took too long"


class Handle:
    """Stands for an actor: a slot only compares handles."""


async def test_a_slot_is_waited_for_and_left_only_by_who_is_in_it() -> None:
    slot, first, second = ActorSlot(), Handle(), Handle()
    waiting = asyncio.create_task(slot.get())
    await asyncio.sleep(0)
    assert not waiting.done()
    slot.take(first)
    assert await waiting is first
    slot.take(second)
    slot.leave(first)
    assert await slot.get() is second
    slot.leave(second)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(slot.get(), 0)
