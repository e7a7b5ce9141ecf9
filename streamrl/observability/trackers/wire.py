"""What the run and the child process of a tracker say to each other: frames of msgpack (`streamrl.system.frames`).

Each message of the run has a number; the child answers each with the same number, in order.
"""

from typing import Any

import msgspec

from streamrl.observability.trackers.base import Cell, Ending, TrackedRun
from streamrl.system.child_process import ChildOrder


class ChildSettings(ChildOrder, frozen=True, kw_only=True):
    """The command line of a child: which tracker, and of which run."""

    tracker: str
    run: TrackedRun


class Ready(msgspec.Struct, frozen=True):
    """The first word of a child. error: why there is no tracker; "" where there is one. where: to look at the run."""

    error: str = ""
    where: str = ""


class Line(msgspec.Struct, frozen=True, tag=True):
    """The numbers of a step."""

    step: int
    numbers: dict[str, float]
    number: int = 0


class Forget(msgspec.Struct, frozen=True, tag=True):
    """The run goes on from `step`: those after it come again."""

    step: int
    number: int = 0


class Table(msgspec.Struct, frozen=True, tag=True):
    """Rows to look at, as sampled rollouts."""

    step: int
    name: str
    columns: list[str]
    rows: list[list[Cell]]
    number: int = 0


class Finish(msgspec.Struct, frozen=True, tag=True):
    """The last message."""

    ending: Ending
    number: int = 0


class Taken(msgspec.Struct, frozen=True):
    """The answer to the message of that number. error: what the package raised, "" for nothing."""

    number: int
    error: str = ""


Message = Line | Forget | Table | Finish


def plain(values: dict[str, Any]) -> dict[str, Any]:
    """A configuration or a summary as JSON has it: what comes out of any encoder of the trackers."""
    return msgspec.json.decode(msgspec.json.encode(values))  # type: ignore[no-any-return]
