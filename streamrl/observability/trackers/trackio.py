"""trackio. It keeps its database where `trackio show` looks, or at `TRACKIO_SPACE_ID` or `TRACKIO_SERVER_URL`.

It knows a run by its name, so the run's id is a part of that.
"""

from collections.abc import Mapping, Sequence
from typing import ClassVar

from streamrl.observability.trackers.base import Cell, Ending, TrackedRun, numbers_of


class TrackioTracker:
    """See the module."""

    rewinds: ClassVar[bool] = False

    def __init__(self, run: TrackedRun) -> None:
        import trackio

        self._trackio = trackio
        name = f"{run.name}-{run.run_id}"
        self._run = trackio.init(project=run.project, name=name, config=run.config, resume="allow", embed=False)
        self._last = 0
        self.last_step = self._run._next_step - 1  # nothing public says it; the extra's range is narrow
        self.where = f"trackio show --project {run.project}"

    def log(self, step: int, numbers: Mapping[str, float]) -> None:
        self._last = step
        self._run.log(dict(numbers), step=step)

    def forget_after(self, step: int) -> None:
        raise NotImplementedError("a run of trackio keeps its steps")

    def table(self, step: int, name: str, columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> None:
        import pandas

        frame = pandas.DataFrame([list(row) for row in rows], columns=list(columns))
        self._run.log({name: self._trackio.Table(dataframe=frame)}, step=step)

    def finish(self, ending: Ending) -> None:
        if ending.summary:
            self._run.log(
                {f"summary/{key}": value for key, value in numbers_of(ending.summary).items()}, step=self._last
            )
        for path in [*ending.files, *([ending.export] if ending.export else [])]:
            self._run.log_artifact(path)
        self._trackio.finish()
