"""Metrics as TensorBoard event files, for who installed the extra.

Guarantees: every numeric key of a line appears as a scalar at the line's step. Importing this module raises
ConfigError, with the command that helps, when tensorboard is not installed. Torch is not needed.
"""

import time
from collections.abc import Mapping
from pathlib import Path

from streamrl.errors import ConfigError

try:
    from tensorboard.compat.proto.event_pb2 import Event, SessionLog
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.event_file_writer import EventFileWriter
except ImportError as error:
    raise ConfigError(
        "observe.tensorboard = true needs the package tensorboard: run `pip install tensorboard` in this "
        "environment, or set it to false"
    ) from error


class TensorBoardSink:
    """Writes event files into a folder; close it, its writer has a thread."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._writer = EventFileWriter(str(folder))

    def write(self, record: Mapping[str, float | int | str | bool | None]) -> None:
        step = record["step"]
        values = [
            Summary.Value(tag=key, simple_value=float(value))
            for key, value in record.items()
            if isinstance(value, (int, float)) and key != "step"
        ]
        self._writer.add_event(Event(wall_time=time.time(), step=step, summary=Summary(value=values)))

    def truncate_after(self, step: int) -> None:
        """TensorBoard drops what it has of later steps when it reads a session start."""
        self._writer.add_event(
            Event(wall_time=time.time(), step=step + 1, session_log=SessionLog(status=SessionLog.START))
        )

    def close(self) -> None:
        self._writer.close()
