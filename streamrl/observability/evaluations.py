"""What evaluations beside the run's own came to: `evaluations.jsonl`, one JSON object for each.

Guarantees: a line is appended whole, by one write, so that two programs may add to the file at once; a torn or foreign
line is passed over. The newest of each name is what is shown and what the summary has. It does not know who evaluates.
"""

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec

HELD_OUT = "held-out"
"""The name of evaluations of the run's own held-out prompts."""


class EvaluationRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One evaluation. name: of the task, or `held-out@K`. version, step: that answered. last_version: the version that
    answered at its end, where the run had gone on meanwhile. scores: by the name of the metric. source: what scored.
    limit: items of the task that were asked, where not all were. errors: standard errors, by the name of the metric."""

    time_ns: int
    name: str
    step: int
    version: str
    scores: dict[str, float]
    source: str
    last_version: str = ""
    samples: int = 1
    temperature: float | None = None
    limit: float | None = None
    errors: dict[str, float] = msgspec.field(default_factory=dict)


def append_evaluations(path: Path, records: Iterable[EvaluationRecord]) -> None:
    """Add them to the file. Raises OSError."""
    lines = b"".join(msgspec.json.encode(record) + b"\n" for record in records)
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(fd, lines)
        os.fsync(fd)
    finally:
        os.close(fd)


def read_evaluations(path: Path) -> list[EvaluationRecord]:
    """All of the file, in its order; none when there is no file."""
    try:
        lines = path.read_bytes().split(b"\n")
    except FileNotFoundError:
        return []
    found = []
    for line in lines:
        try:
            found.append(msgspec.json.decode(line, type=EvaluationRecord))
        except msgspec.MsgspecError:
            continue
    return found


def newest_evaluations(records: Sequence[EvaluationRecord]) -> dict[str, dict[str, Any]]:
    """The newest of each name, as plain data: its scores, and what answered."""
    newest = {record.name: record for record in records}
    return {name: shown(record) for name, record in sorted(newest.items())}


def shown(record: EvaluationRecord) -> dict[str, Any]:
    """One evaluation for whoever looks: its scores first."""
    more = msgspec.to_builtins(record)
    for name in ("time_ns", "name", "scores", "errors"):
        more.pop(name, None)
    return {**record.scores, **more}
