"""What the page is told of a run at one moment: who waits for whom, how far replicas are behind, drops. Pure.

    status of the run + its newest rows  -->  figures and sentences, which the page draws

A figure that the run does not tell gives nothing, never a guess.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

Row = Mapping[str, Any]
WINDOW = 20
"""Rows that a share of the learner's time is of."""
QUEUE_STATES = ("pending", "complete", "scored", "ready", "leased")
"""Of rows on their way, in the order in which they go through them."""


class Wait(msgspec.Struct, frozen=True):
    """who waits for what, for which share of its time or of its number, in [0, 1]."""

    who: str
    what: str
    share: float


class Behind(msgspec.Struct, frozen=True):
    """A replica's version, and how many steps it is behind the learner's newest; None: that cannot be told."""

    name: str
    version: str
    steps: int | None


def who_waits(rows: Sequence[Row], status: Row) -> list[Wait]:
    """In the order of the stream: replicas, rows, learner, replicas again. rows: the newest."""
    found = (_for_admission(rows), _for_scores(status), _for_rows(rows), _for_weights(status))
    return [one for one in found if one is not None]


def behind(status: Row) -> list[Behind]:
    """Of each replica, in the order of the status."""
    newest = _version((status.get("metrics") or {}).get("version"))
    found = []
    for replica in status.get("replicas") or []:
        serves = _version(replica.get("version"))
        steps = None if newest is None or serves is None else max(0, newest[1] - serves[1])
        found.append(Behind(str(replica.get("name", "")), str(replica.get("version", "")), steps))
    return found


def queue_rows(status: Row) -> dict[str, int]:
    """Rows on their way, by state; empty before the queue is open."""
    queue = status.get("queue") or {}
    return {state: int(queue[f"rows_{state}"]) for state in QUEUE_STATES if f"rows_{state}" in queue}


def dropped_groups(status: Row) -> dict[str, int]:
    """Groups that are not trained, by reason, most first."""
    dropped = (status.get("queue") or {}).get("groups_dropped") or {}
    return dict(sorted(dropped.items(), key=lambda one: (-one[1], one[0])))


def _for_rows(rows: Sequence[Row]) -> Wait | None:
    timed = [row for row in rows[-WINDOW:] if row.get("time/step") and row.get("time/wait") is not None]
    whole = sum(row["time/step"] for row in timed)
    return Wait("learner", "rows", _share(sum(row["time/wait"] for row in timed), whole)) if timed else None


def _for_admission(rows: Sequence[Row]) -> Wait | None:
    shares = [row["rollout/idle_share"] for row in rows[-WINDOW:] if row.get("rollout/idle_share") is not None]
    return Wait("replicas", "admission", _share(sum(shares), len(shares))) if shares else None


def _for_scores(status: Row) -> Wait | None:
    counts = queue_rows(status)
    unscored = (status.get("queue") or {}).get("rows_unscored")
    if unscored is None:
        return None
    return Wait("finished rows", "a score", _share(unscored, sum(counts.values()) - counts.get("pending", 0)))


def _for_weights(status: Row) -> Wait | None:
    replicas = status.get("replicas") or []
    if not replicas:
        return None
    waiting = sum(replica.get("state") in ("pulling", "updating") for replica in replicas)
    return Wait("replicas", "a version", _share(waiting, len(replicas)))


def _share(part: float, whole: float) -> float:
    return min(1.0, max(0.0, part / whole)) if whole > 0 else 0.0


def _version(text: Any) -> tuple[int, int] | None:
    """(incarnation, step) of `0.12`; None for what is none."""
    incarnation, dot, step = str(text).partition(".")
    return (int(incarnation), int(step)) if dot and incarnation.isdecimal() and step.isdecimal() else None
