"""What a tracker is told of a run, and the methods that it has.

Guarantees: a tracker lives in a child process (`child`), so its methods may take their time, raise or end the process.
It finds its run again by `TrackedRun.run_id`: a run that resumes goes on under the same id.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Protocol

from msgspec import Struct

Cell = str | float | int | None


class TrackedRun(Struct, frozen=True, kw_only=True):
    """Which run it is. run_id: 12 hex digits, the same after a resume. folder: of the run. config: nested, as in
    `config.toml`. started_ns: wall clock of this launch. incarnation: number of this launch, from 0."""

    run_id: str
    name: str
    project: str
    folder: str
    config: dict[str, Any] = {}
    started_ns: int = 0
    incarnation: int = 0

    @property
    def own_folder(self) -> Path:
        """Where trackers keep what they keep beside the run: their working folder."""
        return Path(self.folder) / "trackers"


class Ending(Struct, frozen=True, kw_only=True):
    """How a launch ended. state: "finished", "stopped" or "failed". summary: of a run that finished. files: to keep
    with the run, of those that are there. export: folder of the exported model, "" for none or one that is large."""

    state: str
    summary: dict[str, Any] = {}
    files: list[str] = []
    export: str = ""


class Tracker(Protocol):
    """One package. `rewinds`: it can forget steps; else it is not told a step twice."""

    rewinds: ClassVar[bool]
    where: str
    """Where a person looks at the run: an address, a folder, or a command."""
    last_step: int
    """The newest step that it has of launches before, as far as it can know; -1 for none."""

    def __init__(self, run: TrackedRun) -> None:
        """Open the run, or go on with it. May raise anything."""

    def log(self, step: int, numbers: Mapping[str, float]) -> None: ...

    def forget_after(self, step: int) -> None: ...

    def table(self, step: int, name: str, columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> None: ...

    def finish(self, ending: Ending) -> None: ...


def numbers_of(values: Mapping[str, Any]) -> dict[str, float]:
    """The numbers among the values, booleans as 0 and 1."""
    return {key: float(value) for key, value in values.items() if isinstance(value, int | float)}


def flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested tables as one, with dotted keys.

    Example:
        >>> flat({"learner": {"steps": 3}, "seed": 0})
        {'learner.steps': 3, 'seed': 0}
    """
    found: dict[str, Any] = {}
    for key, value in tree.items():
        found |= flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {prefix + key: value}
    return found
