"""TensorBoard: event files in `tensorboard` in the run folder. Torch is not needed.

After a resume it is told to forget the later steps, which come again.
"""

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from streamrl.observability.trackers.base import Cell, Ending, TrackedRun


class TensorboardTracker:
    """See the module."""

    rewinds: ClassVar[bool] = True

    def __init__(self, run: TrackedRun) -> None:
        from tensorboard.compat.proto import event_pb2, summary_pb2
        from tensorboard.plugins.text.summary import text_pb
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        folder = Path(run.folder) / "tensorboard"
        folder.mkdir(parents=True, exist_ok=True)
        self._events: Any = event_pb2
        self._summaries: Any = summary_pb2
        self._text_of = text_pb
        self._last = 0
        self._writer = EventFileWriter(str(folder))
        self.last_step = -1
        self.where = f"tensorboard --logdir {folder}"
        self._text(0, "config", _indented(run.config))

    def log(self, step: int, numbers: Mapping[str, float]) -> None:
        self._last = step
        values = [self._summaries.Summary.Value(tag=key, simple_value=value) for key, value in numbers.items()]
        self._add(step, summary=self._summaries.Summary(value=values))
        self._writer.flush()

    def forget_after(self, step: int) -> None:
        """TensorBoard drops what it has of later steps when it reads a session start."""
        log = self._events.SessionLog
        self._add(step + 1, session_log=log(status=log.START))

    def table(self, step: int, name: str, columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> None:
        lines = [columns, ["---"] * len(columns), *rows]
        self._text(step, name, "\n".join(f"| {' | '.join(map(_cell, line))} |" for line in lines))

    def finish(self, ending: Ending) -> None:
        if ending.summary:
            self._text(self._last, "summary", _indented(ending.summary))
        self._writer.close()

    def _text(self, step: int, tag: str, text: str) -> None:
        self._add(step, summary=self._text_of(tag, text))

    def _add(self, step: int, **what: Any) -> None:
        self._writer.add_event(self._events.Event(wall_time=time.time(), step=step, **what))


def _indented(values: Mapping[str, Any]) -> str:
    """As code in Markdown."""
    return "\n".join(f"    {line}" for line in json.dumps(values, indent=1).splitlines())


def _cell(value: Cell) -> str:
    return str(value).replace("|", "\\|").replace("\n", "<br>")
