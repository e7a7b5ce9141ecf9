"""When a run stands still, and what it waits for. Pure: what the parts say of themselves in, one line out.

    parts  --what they say, every few seconds-->  StallWatch  --once a stall-->  wait_line

Guarantees: a stall is told once, and again only after something moved. The clock stands still while the run is not
meant to move. A part that does not answer has not moved. What counts as movement is any change in what a part says
under `marks`; whether it is the right movement is not known here.
"""

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any

import msgspec

from streamrl.clock import Clock

Status = Mapping[str, Any]
"""What a part says of itself."""
WAITS_FOR_ROWS = "wait"
"""What a learner rank does that has no batch."""


class Parts(msgspec.Struct, frozen=True, kw_only=True):
    """What the parts say at one moment; None for one that does not answer.

    queue: its books, with `learner_waits`. learner: of each rank `step`, `doing`, `entered`. replicas: by name.
    weights: the newest version, "" before the first. evaluation: the version that is being scored, or "".
    """

    queue: Status | None
    reward: Status | None
    learner: Sequence[Status | None]
    replicas: Mapping[str, Status | None]
    weights: str | None
    evaluation: str = ""

    def marks(self) -> dict[str, object]:
        """Of each part that answers something that changes when it gets on."""
        known: dict[str, object] = {"weights": self.weights, "evaluation": self.evaluation}
        known["queue"] = None if self.queue is None else {k: v for k, v in self.queue.items() if k not in _NO_MARKS}
        known["reward"] = _some(self.reward, "scored", "answered", "workers", "children_lost")
        for rank, status in enumerate(self.learner):
            known[f"learner-{rank}"] = _some(status, "step", "doing", "entered")
        for name, status in self.replicas.items():
            known[name] = _some(status, "generated_tokens", "finished_requests", "version", "state", "spare_steps")
        return {part: mark for part, mark in known.items() if mark is not None}

    def paused(self) -> str:
        """What a part waits for on its disk, in words; "" when none does."""
        told = (self.queue, self.reward, *self.learner, *self.replicas.values())
        return next((status["paused"] for status in told if status is not None and status.get("paused")), "")

    def waits_for_clients(self, task_weight: float) -> bool:
        """Whether all that there is to do has yet to be submitted. task_weight: of the run's own data; 0 where it
        trains on what clients submit alone."""
        queue = self.queue
        if task_weight > 0 or queue is None or not queue["learner_waits"]:
            return False
        return not (queue["prompts_waiting"] or queue["groups_running"] or queue["rows_complete"])


class Change(Enum):
    """What a look has found."""

    NONE = "none"
    STALLED = "stalled"
    MOVES_AGAIN = "moves again"


class StallWatch:
    """See the module.

    Example:
        watch = StallWatch(clock, stall_s=300.0)
        if watch.observe(parts.marks(), meant_to_move=True) is Change.STALLED:
            print(wait_line(parts, watch.still_s))
    """

    def __init__(self, clock: Clock, stall_s: float) -> None:
        self._clock = clock
        self._stall_s = stall_s
        self._marks: dict[str, object] = {}
        self._moved = clock.now()
        self._stalled = False
        self._stood_s = 0.0

    @property
    def stalled(self) -> bool:
        return self._stalled

    @property
    def still_s(self) -> float:
        """Seconds without a movement; after a stall that has ended, how long that was."""
        return self._clock.now() - self._moved if self._stalled else self._stood_s

    def observe(self, marks: Mapping[str, object], *, meant_to_move: bool) -> Change:
        """marks: of the parts that answer."""
        now = self._clock.now()
        moved = any(part not in self._marks or self._marks[part] != mark for part, mark in marks.items())
        self._marks.update(marks)
        if moved or not meant_to_move:
            self._stood_s, self._moved = now - self._moved, now
            was, self._stalled = self._stalled, False
            return Change.MOVES_AGAIN if was else Change.NONE
        if self._stalled or now - self._moved < self._stall_s:
            return Change.NONE
        self._stalled = True
        return Change.STALLED


def wait_line(parts: Parts, still_s: float) -> str:
    """One line on a run that stands still: for whom it waits, and from what that is seen."""
    seen = [_learner(parts.learner), _queue(parts.queue), _reward(parts.reward), _replicas(parts.replicas)]
    if parts.weights is None:
        seen.append("the weight store does not answer")
    if parts.evaluation:
        seen.append(f"version {parts.evaluation} is being evaluated")
    return f"no progress for {still_s:.0f} s, waiting for {waits_for(parts)}: {'; '.join(filter(None, seen))}"


def waits_for(parts: Parts) -> str:
    """Whom the others wait for: followed from the learner back to where the rows come from."""
    if parts.queue is None:
        return "the queue"
    if not parts.queue["learner_waits"]:
        trains = any(status is None or status["doing"] != "ended" for status in parts.learner)
        return "the evaluation" if parts.evaluation and not trains else "the learner"
    if parts.queue["rows_complete"]:
        return "reward"
    if parts.weights is None:
        return "the weight store"
    if not parts.replicas:
        return "a replica"
    if parts.queue["groups_running"]:
        return "the replicas"
    return "a group that may be issued"


def _learner(ranks: Sequence[Status | None]) -> str:
    """In the words of the first rank, then of those that do something else."""
    said = [f"learner-{rank} does not answer" if one is None else _rank(one) for rank, one in enumerate(ranks)]
    others = [
        text if ranks[rank] is None else f"learner-{rank}: {text}" for rank, text in enumerate(said) if text != said[0]
    ]
    # While rank 0 waits for rows the others wait for its plan.
    waits = bool(ranks) and ranks[0] is not None and ranks[0]["doing"] == WAITS_FOR_ROWS
    return "; ".join(said[:1] + ([] if waits else others))


def _rank(status: Status) -> str:
    if status["doing"] == WAITS_FOR_ROWS:
        return "the learner waits for rows"
    return f"the learner is at step {status['step']}, {status['doing']}"


def _queue(counts: Status | None) -> str:
    if counts is None:
        return "the queue does not answer"
    running = f", {counts['groups_running']} groups running" if counts["groups_running"] else ""
    return f"queue has {counts['groups_ready']} groups ready, {counts['rows_complete']} rows unscored{running}"


def _reward(status: Status | None) -> str:
    if status is None:
        return "the reward stage does not answer"
    busy = f"reward stage has {status['busy']} of {status['workers']} workers busy"
    return f"{busy}, the oldest sample for {status['oldest_s']:.0f} s" if status["busy"] else busy


def _replicas(replicas: Mapping[str, Status | None]) -> str:
    silent = [f"{name} does not answer" for name, status in replicas.items() if status is None]
    told = [status for status in replicas.values() if status is not None]
    idle = sum(not (status["running"] or status["waiting"]) for status in told)
    share = [f"replicas idle {idle / len(told):.0%}"] if told else []
    return "; ".join(silent + share) or "no replica serves"


def _some(status: Status | None, *keys: str) -> tuple[object, ...] | None:
    return None if status is None else tuple(status.get(key) for key in keys)


_NO_MARKS = ("paused", "over_budget")
"""Of what the queue says: these come and go with the disk."""
