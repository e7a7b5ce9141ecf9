"""All trackers of a run: what is told once goes to each of them, under the names that were asked for.

It is a `ScalarSink` of `MetricsWriter`. It waits in `close` alone: as long as it was told, for all at once.
"""

import time
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import structs

from streamrl.observability.trackers.base import Cell, Ending, numbers_of
from streamrl.observability.trackers.names import NamedFigures
from streamrl.observability.trackers.tracker_process import TrackerProcess
from streamrl.observability.trackers.wire import Finish, Forget, Line, Table, plain


class TrackerHub:
    """See the module. figures: what is told of a line beside its own keys.

    Example:
        hub = TrackerHub([TrackerProcess("wandb", run, start_s=120, answer_s=30)], NamedFigures("none"))
        hub.write({"step": 1, "reward/mean": 0.5})
        hub.finish(Ending(state="finished"))
        hub.close(30)
    """

    def __init__(self, trackers: Sequence[TrackerProcess], figures: NamedFigures) -> None:
        self._trackers = trackers
        self._figures = figures

    def write(self, record: Mapping[str, Any]) -> None:
        own = numbers_of(record)
        numbers = {**own, **self._figures.of(own)}
        del numbers["step"]  # a tracker has it as the place on its axis
        for tracker in self._trackers:
            tracker.send(Line(record["step"], numbers))

    def truncate_after(self, step: int) -> None:
        """The run goes on from `step`: those after it come again."""
        for tracker in self._trackers:
            tracker.send(Forget(step))

    def table(self, step: int, name: str, columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> None:
        for tracker in self._trackers:
            tracker.send(Table(step, name, list(columns), [list(row) for row in rows]))

    def finish(self, ending: Ending) -> None:
        """The last that they are told of this launch."""
        ending = structs.replace(ending, summary=plain(ending.summary))
        for tracker in self._trackers:
            tracker.send(Finish(ending))

    def close(self, limit_s: float = 0.0) -> None:
        """Let them take what waits, for at most so long all together; then they are ended."""
        ends = time.monotonic() + limit_s
        for tracker in self._trackers:
            tracker.take_no_more()
        for tracker in self._trackers:
            tracker.close(max(0.0, ends - time.monotonic()), limit_s)

    def take_news(self) -> list[str]:
        """Sentences for the user, each once."""
        return [text for tracker in self._trackers for text in tracker.take_news()]

    def status(self) -> dict[str, Any]:
        """By name; see `TrackerProcess.status`."""
        return {tracker.name: tracker.status() for tracker in self._trackers}
