"""When a run is said to stand still, how often, and what it is said to wait for."""

from typing import Any

import pytest

from streamrl.clock import VirtualClock
from streamrl.observability.stall_detector import Change, Parts, StallWatch, wait_line, waits_for

BOOKS = {
    "learner_waits": True,
    "groups_ready": 0,
    "groups_running": 0,
    "rows_complete": 0,
    "prompts_waiting": 0,
    "scores_ok": 40,
    "paused": "",
}
STAGE = {"scored": 40, "answered": 10, "workers": 3, "children_lost": 0, "busy": 0, "oldest_s": 0.0, "paused": ""}
RANK = {"step": 7, "doing": "wait", "entered": 50, "paused": ""}
REPLICA = {
    "generated_tokens": 900,
    "finished_requests": 30,
    "version": "0.7",
    "state": "serving",
    "spare_steps": 0,
    "running": 0,
    "waiting": 0,
    "paused": "",
}


def say(
    *,
    queue: dict[str, Any] | None = BOOKS,
    reward: dict[str, Any] | None = STAGE,
    learner: tuple[dict[str, Any] | None, ...] = (RANK,),
    replicas: dict[str, dict[str, Any] | None] | None = None,
    weights: str | None = "0.7",
    evaluation: str = "",
) -> Parts:
    told = {"rollout-0": REPLICA} if replicas is None else replicas
    return Parts(queue=queue, reward=reward, learner=learner, replicas=told, weights=weights, evaluation=evaluation)


def moved(told: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {**told, **changes}


def watched(*, stall_s: float = 300.0) -> tuple[StallWatch, VirtualClock]:
    clock = VirtualClock(1000.0)
    watch = StallWatch(clock, stall_s)
    watch.observe(say().marks(), meant_to_move=True)
    return watch, clock


def test_a_stall_is_told_once_and_again_only_after_something_moved() -> None:
    watch, clock = watched()
    found = []
    for _ in range(8):
        clock.advance(100.0)
        found.append(watch.observe(say().marks(), meant_to_move=True))
    assert found == [Change.NONE, Change.NONE, Change.STALLED, *[Change.NONE] * 5]
    assert watch.still_s == 800.0
    clock.advance(1.0)
    assert watch.observe(say(weights="0.8").marks(), meant_to_move=True) is Change.MOVES_AGAIN
    assert (watch.stalled, watch.still_s) == (False, 801.0)
    clock.advance(299.0)
    assert watch.observe(say(weights="0.8").marks(), meant_to_move=True) is Change.NONE
    clock.advance(1.0)
    assert watch.observe(say(weights="0.8").marks(), meant_to_move=True) is Change.STALLED


@pytest.mark.parametrize(
    "later",
    [
        say(queue=moved(BOOKS, scores_ok=41)),
        say(queue=moved(BOOKS, prompts_submitted=1)),
        say(reward=moved(STAGE, answered=11)),
        say(learner=(moved(RANK, entered=51),)),
        say(learner=(RANK, RANK)),
        say(replicas={"rollout-0": moved(REPLICA, generated_tokens=901)}),
        say(replicas={"rollout-0": moved(REPLICA, spare_steps=1)}),
        say(replicas={"rollout-0": REPLICA, "rollout-1": REPLICA}),
        say(weights="0.8"),
        say(evaluation="0.7"),
    ],
)
def test_whatever_moves_in_any_part_begins_the_time_anew(later: Parts) -> None:
    watch, clock = watched()
    clock.advance(299.0)
    assert watch.observe(later.marks(), meant_to_move=True) is Change.NONE
    clock.advance(299.0)
    assert watch.observe(later.marks(), meant_to_move=True) is Change.NONE
    clock.advance(1.0)
    assert watch.observe(later.marks(), meant_to_move=True) is Change.STALLED


def test_the_age_of_a_batch_is_no_movement_nor_is_a_part_that_answers_now_and_then() -> None:
    watch, clock = watched()
    for second in range(1, 301):
        clock.advance(1.0)
        stage = moved(STAGE, busy=3, oldest_s=float(second)) if second % 2 else None
        found = watch.observe(say(reward=stage).marks(), meant_to_move=True)
    assert found is Change.STALLED


def test_the_time_stands_still_while_the_run_is_not_meant_to_move() -> None:
    watch, clock = watched()
    for _ in range(10):
        clock.advance(200.0)
        assert watch.observe(say().marks(), meant_to_move=False) is Change.NONE
    clock.advance(299.0)
    assert watch.observe(say().marks(), meant_to_move=True) is Change.NONE
    clock.advance(1.0)
    assert watch.observe(say().marks(), meant_to_move=True) is Change.STALLED


def test_a_pause_for_the_disk_is_found_in_whichever_part_says_so() -> None:
    full = "no room for 5 bytes"
    assert say().paused() == ""
    assert say(queue=None, reward=None).paused() == ""
    for told in (
        say(queue=moved(BOOKS, paused=full)),
        say(reward=moved(STAGE, paused=full)),
        say(learner=(RANK, moved(RANK, paused=full))),
        say(replicas={"rollout-0": moved(REPLICA, paused=full)}),
    ):
        assert told.paused() == full


def test_a_run_that_trains_on_clients_prompts_alone_waits_for_these_and_stands_still_over_one_that_runs() -> None:
    assert say().waits_for_clients(0.0)
    assert not say().waits_for_clients(1.0)
    assert not say(queue=None).waits_for_clients(0.0)
    for busy in ("groups_running", "rows_complete", "prompts_waiting"):
        assert not say(queue=moved(BOOKS, **{busy: 1})).waits_for_clients(0.0)
    assert not say(queue=moved(BOOKS, learner_waits=False)).waits_for_clients(0.0)


def test_the_line_names_the_wait_and_says_from_what_it_is_seen() -> None:
    parts = say(queue=moved(BOOKS, rows_complete=12, groups_running=3), reward=moved(STAGE, busy=3, oldest_s=297.4))
    assert wait_line(parts, 300.2) == (
        "no progress for 300 s, waiting for reward: the learner waits for rows; "
        "queue has 0 groups ready, 12 rows unscored, 3 groups running; "
        "reward stage has 3 of 3 workers busy, the oldest sample for 297 s; replicas idle 100%"
    )


@pytest.mark.parametrize(
    ("parts", "who", "says"),
    [
        (say(queue=None), "the queue", "the queue does not answer"),
        (
            say(queue=moved(BOOKS, learner_waits=False), learner=(moved(RANK, doing="forward_backward"),)),
            "the learner",
            "the learner is at step 7, forward_backward",
        ),
        (say(queue=moved(BOOKS, learner_waits=False), learner=(None,)), "the learner", "learner-0 does not answer"),
        (
            say(queue=moved(BOOKS, learner_waits=False), learner=(moved(RANK, doing="ended"),), evaluation="0.9"),
            "the evaluation",
            "version 0.9 is being evaluated",
        ),
        (
            say(
                queue=moved(BOOKS, groups_running=2),
                replicas={"rollout-0": moved(REPLICA, running=8), "rollout-1": REPLICA, "rollout-2": None},
            ),
            "the replicas",
            "2 groups running; reward stage has 0 of 3 workers busy; rollout-2 does not answer; replicas idle 50%",
        ),
        (say(weights=None), "the weight store", "the weight store does not answer"),
        (say(replicas={}), "a replica", "no replica serves"),
        (say(), "a group that may be issued", "replicas idle 100%"),
        (say(queue=moved(BOOKS, rows_complete=1), reward=None), "reward", "the reward stage does not answer"),
    ],
)
def test_whom_the_run_waits_for(parts: Parts, who: str, says: str) -> None:
    assert waits_for(parts) == who
    assert says in wait_line(parts, 5.0)


def test_ranks_that_do_something_else_than_the_first_are_named() -> None:
    ranks = (moved(RANK, doing="publish"), moved(RANK, doing="publish"), None)
    line = wait_line(say(queue=moved(BOOKS, learner_waits=False), learner=ranks), 5.0)
    assert "the learner is at step 7, publish; learner-2 does not answer; queue" in line
