"""The runs that lie in the same folder as this one, by name: for a page that lays two runs beside each other.

Guarantees: a name is looked up among those that are there, and never made part of a path; of a run its metrics alone
are read. At most `OPEN` of them are kept open, the ones that were asked for last. Whoever uses it makes one call at a
time.
"""

import stat
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from streamrl.errors import RunFolderError
from streamrl.gateway.page.history import History
from streamrl.gateway.refusal import Refusal
from streamrl.services.inspect.metrics_tail import MetricsTail
from streamrl.services.run.folder import RunFolder

MOST: Final = 200
"""Runs that are told of, those with the newest metrics."""
METRICS: Final = "metrics.jsonl"
OPEN: Final = 4
"""Some megabytes each, of a run of 10,000 steps."""


class OtherRuns:
    """own: the folder of the run that the page is of.

    Example:
        others = OtherRuns(run.path)
        others.names()
        others.history("baseline").reduced(points=2000)
        others.close()
    """

    def __init__(self, own: Path) -> None:
        self._own = own.resolve()
        self._tails: dict[str, MetricsTail] = {}
        """The one that was asked for last is the last."""

    def names(self) -> list[dict[str, Any]]:
        """`name` and `state` of each run that has metrics, the newest first."""
        written = self._written()
        newest = sorted(written, key=lambda path: -written[path])
        told = ({"name": path.name, "state": _state(path)} for path in newest[:MOST])
        return [one for one in told if one["state"]]

    def history(self, name: str) -> History:
        """The figures of a run by now. Raises Refusal where there is none of this name."""
        path = next((path for path in self._written() if path.name == name), None)
        if path is None:
            what = f"no run {name[:80]!a} with metrics lies beside this one; /api/runs names those that do"
            raise Refusal(404, "not_found", what)
        tail = self._tails.pop(name, None) or MetricsTail(path / METRICS, newest=1)
        self._tails[name] = tail
        while len(self._tails) > OPEN:
            self._tails.pop(next(iter(self._tails))).close()
        return tail.read()

    def close(self) -> None:
        for tail in self._tails.values():
            tail.close()
        self._tails.clear()

    def _written(self) -> dict[Path, int]:
        """The run folders, with when the metrics of each were written last. A name that is not UTF-8 cannot be told."""
        written = {}
        for path in self._own.parent.iterdir():
            with suppress(OSError):  # it is of another user, or goes away at this moment
                metrics = (path / METRICS).stat()
                regular = stat.S_ISREG(metrics.st_mode) and (path / "run.json").is_file()
                if regular and path != self._own and path.name.isprintable():
                    written[path] = metrics.st_mtime_ns
        return written


def _state(path: Path) -> str:
    """Nothing for a folder that is of no run."""
    try:
        return RunFolder.open(path).state().value
    except (OSError, RunFolderError):
        return ""
