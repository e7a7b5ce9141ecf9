"""What the page is told of a run at one moment, from its status and its newest rows."""

from typing import Any

import pytest

from streamrl.gateway.page.backlog import Backlog
from streamrl.gateway.page.picture import Behind, Wait, behind, dropped_groups, queue_rows, who_waits

ROWS = {"pending": 40, "complete": 6, "scored": 3, "ready": 8, "leased": 3}
QUEUE = {"rows_trained": 99, **{f"rows_{state}": count for state, count in ROWS.items()}}


def replica(name: str, *, version: str = "0.5", state: str = "serving") -> dict[str, Any]:
    return {"name": name, "version": version, "state": state}


def test_each_wait_has_its_share() -> None:
    rows = [{"time/step": 1.0, "time/wait": 0.9, "rollout/idle_share": 1.0}] * 5
    rows += [{"time/step": 2.0, "time/wait": 0.5, "rollout/idle_share": 0.2}] * 20
    status = {
        "queue": {**QUEUE, "rows_unscored": 5},
        "replicas": [replica("a"), replica("b", state="updating"), replica("c", state="pulling"), replica("d")],
    }
    assert who_waits(rows, status) == [
        Wait("replicas", "admission", pytest.approx(0.2)),
        Wait("finished rows", "a score", pytest.approx(5 / 20)),
        Wait("learner", "rows", pytest.approx(0.25)),
        Wait("replicas", "a version", 0.5),
    ]


@pytest.mark.parametrize("status", [{}, {"queue": None, "replicas": [], "metrics": None}])
def test_what_is_not_told_gives_nothing(status: dict[str, Any]) -> None:
    assert who_waits([], status) == []
    assert who_waits([{"step": 1}, {"step": 2, "time/step": None, "time/wait": 1.0}], status) == []
    assert (behind(status), queue_rows(status), dropped_groups(status)) == ([], {}, {})


def test_a_queue_without_finished_rows_has_none_that_wait() -> None:
    queue = {**dict.fromkeys(QUEUE, 0), "rows_pending": 9, "rows_unscored": 0}
    assert who_waits([], {"queue": queue}) == [Wait("finished rows", "a score", 0.0)]


def test_a_replica_is_as_many_steps_behind_as_its_version_is() -> None:
    replicas = [replica("a", version="1.7"), replica("b", version="1.9"), replica("c", version="0.9"), replica("d")]
    replicas += [replica("e", version="none"), {"name": "f"}]
    status = {"metrics": {"version": "1.9"}, "replicas": replicas}
    assert [(one.name, one.steps) for one in behind(status)] == [
        ("a", 2),
        ("b", 0),
        ("c", 0),
        ("d", 4),
        ("e", None),
        ("f", None),
    ]
    assert behind({"replicas": [replica("a")]}) == [Behind("a", "0.5", None)]


def test_rows_are_told_by_state_and_drops_by_reason_with_the_most_first() -> None:
    dropped = {"stale": 1, "zero_variance": 7, "cancelled": 1}
    status = {"queue": {**QUEUE, "groups_dropped": dropped}}
    assert queue_rows(status) == ROWS
    assert list(dropped_groups(status).items()) == [("zero_variance", 7), ("cancelled", 1), ("stale", 1)]


# ---- what a reader has not taken


def test_of_what_is_said_anew_only_the_newest_waits_and_in_its_place() -> None:
    backlog = Backlog(9, frozenset({"status"}))
    for number, kind in enumerate(["status", "step", "status", "notice", "status"]):
        backlog.add(kind, f"{kind} {number}".encode())
    assert backlog.all() == backlog.take() == [b"step 1", b"notice 3", b"status 4"]
    assert backlog.take() == []


def test_there_are_never_more_than_may_be_and_the_newest_stay() -> None:
    backlog = Backlog(3, frozenset({"status"}))
    for number in range(10):
        backlog.add("step", b"%d" % number)
        backlog.add("status", b"status")
        assert len(backlog) <= 3
    assert backlog.take() == [b"8", b"9", b"status"]
