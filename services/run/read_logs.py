"""Reads the component logs of a run and makes lines for people of them.

A log is JSON objects, one a line (see `streamrl.observability.logs`); what is none, such as what Ray or a crash wrote,
is shown as it is. Knows nothing of who writes.
"""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from streamrl.errors import RunFolderError

# How often a followed log is looked at again; a file on any file system tells nobody that it grew.
FOLLOW_S = 0.3
_OWN_KEYS = frozenset({"timestamp", "time", "level", "event", "component"})
_CHUNK = 1 << 16


def log_files(folder: Path, component: str | None) -> list[Path]:
    """The logs of one component (`rollout` also finds `rollout-0.log`), or all. Raises RunFolderError: no
    such.
    """
    there = sorted(folder.glob("*.log"))
    if component is None:
        return there
    found = [path for path in there if path.stem == component or path.stem.startswith(f"{component}-")]
    if not found:
        names = ", ".join(path.stem for path in there) or "none yet"
        raise RunFolderError(f"no log of {component!r} in {folder}; there are: {names}")
    return found


def last_lines(path: Path, count: int) -> list[str]:
    """The last `count` lines of a file, read from its end."""
    with path.open("rb") as file:
        at = file.seek(0, os.SEEK_END)
        tail = b""
        while at > 0 and tail.count(b"\n") <= count:
            step = min(_CHUNK, at)
            at = file.seek(at - step)
            tail = file.read(step) + tail
    return tail.decode(errors="replace").splitlines()[-count:]


class Tail:
    """Whole new lines of one growing file, from its present end on."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._at = path.stat().st_size
        self._rest = b""

    def new_lines(self) -> Iterator[str]:
        """What was written since the last call; a line without its end waits. A replaced file starts anew."""
        if self._path.stat().st_size < self._at:
            self._at, self._rest = 0, b""
        with self._path.open("rb") as file:
            file.seek(self._at)
            content = file.read()
        self._at += len(content)
        *whole, self._rest = (self._rest + content).split(b"\n")
        for line in whole:
            yield line.decode(errors="replace")


def readable(line: str) -> str:
    """A line for people: time, level, event, then `key=value`; what is no JSON object stays as it is."""
    try:
        record: Any = json.loads(line)
    except ValueError:
        return line
    if not isinstance(record, dict):
        return line
    time = str(record.get("timestamp", record.get("time", "")))
    facts = " ".join(f"{key}={value}" for key, value in record.items() if key not in _OWN_KEYS)
    head = f"{time} {record.get('level', '')!s:<8}{record.get('event', '')}"
    return f"{head}  {facts}".rstrip()
