"""A run's numbers on disk: `metrics.jsonl`, one JSON object a step with slash keys, and `summary.json`.

Guarantees: every line is whole JSON without NaN or Infinity; such a number is written as null and counted
under `metrics/nonfinite`. The file stays below its bound: beyond it every second line of the older half is left out,
and the line before it says for how many steps it stands. A line is handed to the operating system before `write`
returns, or, where the disk is full, with the next one. A torn last line, from a killed process, is cut when the file is
opened again. It does not know what the keys mean.
"""

import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

import msgspec

from streamrl.errors import ComponentError, DataError
from streamrl.observability.plural import how_many
from streamrl.system.append_file import AppendFile
from streamrl.system.disk import NO_ROOM

STANDS_FOR = "metrics/stands_for"
"""Key under which a line says that it stands for so many steps, the others having been left out."""

NONFINITE = "metrics/nonfinite"
"""Key under which a line counts the numbers that it could not write."""

Value = float | int | str | bool | None


class SupportsItem(Protocol):
    """A numpy or torch scalar."""

    def item(self) -> Any: ...


class ScalarSink(Protocol):
    """Where lines go besides the file. `TrackerHub` is one."""

    def write(self, record: Mapping[str, Value]) -> None: ...
    def truncate_after(self, step: int) -> None: ...
    def close(self) -> None: ...


class MetricsWriter:
    """Appends to `metrics.jsonl`, and tells a sink where one is given, which it closes.

    Example:
        with MetricsWriter(run / "metrics.jsonl") as metrics:
            metrics.truncate_after(checkpoint_step)     # after a resume
            metrics.write({"step": 7, "reward/mean": 0.5})
    """

    def __init__(self, path: Path, sink: ScalarSink | None = None, max_bytes: int | None = None) -> None:
        """max_bytes: of the file; None for no bound. Raises DataError for a damaged file."""
        self._path = path
        self._nonfinite = 0
        self._max_bytes = max_bytes
        self.num_thinned = 0
        """Lines left out since this writer was made."""
        self._sink = sink
        path.parent.mkdir(parents=True, exist_ok=True)
        _cut_torn_line(path)
        path.touch()
        self._file = AppendFile(path)

    @property
    def nonfinite(self) -> int:
        """Numbers written as null since this writer was made."""
        return self._nonfinite

    def write(self, record: Mapping[str, Value | SupportsItem]) -> None:
        """Append one object; it must have an integer `step`. Numpy and torch scalars are taken as numbers.

        Raises DataError for a record without a step or with a value that is no scalar.
        """
        plain = {key: _plain(key, value) for key, value in record.items()}
        if type(plain.get("step")) is not int:
            raise DataError(f"metrics: a line needs an integer 'step', got {plain.get('step')!r}")
        bad = [key for key, value in plain.items() if isinstance(value, float) and not math.isfinite(value)]
        if bad:
            plain.update(dict.fromkeys(bad))
            plain[NONFINITE] = len(bad)
            self._nonfinite += len(bad)
        self._file.append(msgspec.json.encode(plain) + b"\n")
        if self._max_bytes is not None and self._path.stat().st_size > self._max_bytes:
            self._thin()
        if self._sink is not None:
            self._sink.write(plain)

    def truncate_after(self, step: int, tell: Callable[[str], None] | None = None) -> None:
        """Drop the lines of later steps: a resume from `step` makes them again. All or nothing on a crash. tell: as of
        `read_metrics`; lines that cannot be read go, too."""
        self._replace([line for line in read_metrics(self._path, tell) if line["step"] <= step])
        if self._sink is not None:
            self._sink.truncate_after(step)

    def _thin(self) -> None:
        """Leave out every second line of the older half, but none with a score: these are few, and curves need them."""
        lines = read_metrics(self._path)
        older, newer = lines[: len(lines) // 2], lines[len(lines) // 2 :]
        kept: list[dict[str, Any]] = []
        for line in older:
            if kept and "eval/score" not in line and kept[-1].get(STANDS_FOR, 1) <= line.get(STANDS_FOR, 1):
                kept[-1][STANDS_FOR] = kept[-1].get(STANDS_FOR, 1) + line.get(STANDS_FOR, 1)
            else:
                kept.append(line)
        try:
            self._replace(kept + newer)
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise ComponentError(f"rewriting {self._path} failed: {error.strerror}") from error
            return  # a full disk: the next line tries again
        self.num_thinned += len(older) - len(kept)

    def _replace(self, lines: list[dict[str, Any]]) -> None:
        fresh = self._path.with_name(self._path.name + ".tmp")
        with fresh.open("wb") as file:
            file.write(b"".join(msgspec.json.encode(line) + b"\n" for line in lines))
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(self._path)

    def close(self) -> None:
        if self._sink is not None:
            self._sink.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def read_metrics(path: Path, tell: Callable[[str], None] | None = None) -> list[dict[str, Any]]:
    """All lines of a `metrics.jsonl`, in file order; none when there is no file. A torn last line is left out.

    So is a line before it that is no object with an integer step: no figure is worth a run, and other programs write
    to such files too. tell: is given one sentence with their number and the first of them.
    """
    if not path.exists():
        return []
    lines = path.read_bytes().split(b"\n")
    rows, skipped = [], []
    # What follows the last newline is empty, or torn off by a kill, or being written at this moment.
    for number, line in enumerate(lines[:-1], start=1):
        try:
            rows.append(metrics_row(path, number, line))
        except DataError as error:
            skipped.append(error)
    if skipped and tell is not None:
        tell(skipped_lines(len(skipped), str(skipped[0])))
    return rows


def skipped_lines(number: int, first: str) -> str:
    """What is told of lines that are left out. first: what is wrong with the first of them."""
    are = "is" if number == 1 else "are"
    return f"{how_many(number, 'line', 'lines')} of metrics {are} skipped, the first: {first}"


def metrics_row(path: Path, number: int, line: bytes) -> dict[str, Any]:
    """One line of a `metrics.jsonl`. Raises DataError with its number when it is none."""
    try:
        record = msgspec.json.decode(line, type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise DataError(f"{path}:{number} is no metrics line: {error}") from error
    if type(record.get("step")) is not int:
        raise DataError(f"{path}:{number} has no integer 'step'")
    return record


class Summary(msgspec.Struct, kw_only=True):
    """`summary.json`: what a run came to. Scores are shares in [0, 1], times are seconds, paths are text.

    staleness_* counts steps over trained rows. discards counts rollouts made and not trained, itemised by
    reason in `discards_by_reason`. learner_wait_share is the share of the learner's wall clock spent waiting
    for data. durability: what the run's queue promised, in words. rows_fetched, bytes_fetched: of other nodes, by this
    launch; rows_lost: with nodes that went away, and generated again. tokens_continued: that a replica had sampled when
    it ended, and that another went on from, in this launch. prompts_quarantined: of the task, started no more.
    rows_too_long, rows_unusable: of the data's files, left out of training and evaluation. eval_parts: what the last
    evaluation told beside the score, by name. evaluations: what `streamrl eval` measured, the newest of each name.
    """

    eval_before: float | None
    eval_after: float | None
    wall_s: float
    steps: int
    rollouts_per_s: float
    seed: int
    export: str | None = None
    curve: str | None = None
    staleness_mean: float = 0.0
    staleness_max: int = 0
    versions_published: int = 0
    two_version_rollouts: int = 0
    discards: int = 0
    discards_by_reason: dict[str, int] = msgspec.field(default_factory=dict)
    learner_wait_share: float = 0.0
    durability: str = ""
    tokens_continued: int = 0
    rows_fetched: int = 0
    bytes_fetched: int = 0
    rows_lost: int = 0
    prompts_quarantined: int = 0
    rows_too_long: int = 0
    rows_unusable: int = 0
    eval_parts: dict[str, float] = msgspec.field(default_factory=dict)
    evaluations: dict[str, dict[str, Any]] = msgspec.field(default_factory=dict)


def write_summary(path: Path, summary: Summary) -> None:
    """Replace the summary atomically."""
    fresh = path.with_name(path.name + ".tmp")
    fresh.write_bytes(msgspec.json.format(msgspec.json.encode(summary), indent=2) + b"\n")
    fresh.replace(path)


def read_summary(path: Path) -> Summary | None:
    """The summary, None when the run has none yet. Raises DataError for a damaged one."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Summary)
    except FileNotFoundError:
        return None
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise DataError(f"{path} is no summary: {error}") from error


def _plain(key: str, value: Value | SupportsItem) -> Value:
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return float(value)  # numpy's float64 is a float that msgspec does not know
    item = getattr(value, "item", None)
    if item is None:
        raise DataError(f"metrics: {key!r} is {type(value).__name__}; write a number, a text or None")
    return _plain(key, item())


def _cut_torn_line(path: Path) -> None:
    if not path.exists():
        return
    content = path.read_bytes()
    whole = content.rfind(b"\n") + 1
    if whole < len(content):
        os.truncate(path, whole)
