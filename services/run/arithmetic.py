"""By which arithmetic the engines of a run have sampled: `arithmetic.json`, the newest last.

Bits are those of one way to multiply rows on one processor (`streamrl.types.Arithmetic`). A run that goes on elsewhere,
in a copied folder or on another node, may not repeat them; it says so once.
"""

from pathlib import Path
from typing import Any

import msgspec

from streamrl.services.run.folder import write_whole
from streamrl.types import Arithmetic

EVENT = "arithmetic"
FILE = "arithmetic.json"
MOST = 16
"""Kept: a run that moves more often has moved."""


class ArithmeticRecord:
    """Of one launch. Raises ResourceError where the disk takes no more."""

    def __init__(self, run_folder: Path) -> None:
        self._path = run_folder / FILE
        self._known = _read(self._path)
        self._told: set[Arithmetic] = set()

    @property
    def rungs(self) -> list[str]:
        """Of the run so far, each once."""
        return list(dict.fromkeys(one.rung for one in self._known))

    def take(self, used: Arithmetic) -> tuple[dict[str, Any] | None, str | None]:
        """What an engine uses: the event to report, None where this launch has reported it; and what a person should
        know, None where nothing is to be noticed."""
        if used in self._told:
            return None, None
        self._told.add(used)
        before = self._known[-1] if self._known else None
        if before != used:
            self._known = [*self._known, used][-MOST:]
            write_whole(self._path, msgspec.json.encode(self._known) + b"\n")
        event = {**msgspec.to_builtins(used), "text": str(used)}
        return event, _notice(used, before)


def _notice(used: Arithmetic, before: Arithmetic | None) -> str | None:
    if used.rung == "none":
        return f"results depend on what shares a batch: {used.why}"
    if before is None or (before.rung, before.processor) == (used.rung, used.processor):
        return None
    return (
        f"the arithmetic is another one: {used.rung} on {used.processor}, before it was {before.rung} on "
        f"{before.processor}; the last bits of what is sampled from now on are those of this machine"
    )


def _read(path: Path) -> list[Arithmetic]:
    try:
        return msgspec.json.decode(path.read_bytes(), type=list[Arithmetic])
    except (FileNotFoundError, msgspec.MsgspecError):
        # It tells, and decides nothing: a damaged one is as good as none.
        return []
