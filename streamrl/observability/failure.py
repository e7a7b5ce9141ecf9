"""The first cause of a failed run: written once, by whoever fails first, and found again later.

Guarantees: of all that report, exactly one `failure.json` stays, whole, and it is the first. `first_cause`
finds the earliest error even when the part that failed could not report: in `events.jsonl*`, then in the logs.
It imports no logging library, so that a command line can ask at no cost.
"""

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from streamrl.errors import DataError

FAILURE_FILE = "failure.json"
ERROR_LEVELS = ("error", "critical")


class FailureReport(msgspec.Struct, frozen=True, kw_only=True):
    """Who failed (component), doing what (phase), under which version ("" if none), why, and when (Unix ns).

    cause is the text of the error, the remote one where a part reports what another told it.
    """

    component: str
    phase: str
    version: str
    cause: str
    time_ns: int

    @classmethod
    def now(cls, component: str, phase: str, cause: str, version: str = "") -> "FailureReport":
        return cls(component=component, phase=phase, version=version, cause=cause, time_ns=time.time_ns())

    def __str__(self) -> str:
        under = f" under version {self.version}" if self.version else ""
        return f"{self.component} failed in {self.phase}{under}: {self.cause}"


def report_failure(run_folder: Path, report: FailureReport) -> bool:
    """Write the report as the run's first cause. False when another was first; that one then stays."""
    whole = run_folder / f".{FAILURE_FILE}.{os.getpid()}.{report.time_ns}"
    whole.write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n")
    try:
        # A link is exclusive like O_EXCL, and the file is whole when its name appears.
        os.link(whole, run_folder / FAILURE_FILE)
    except FileExistsError:
        return False
    finally:
        whole.unlink()
    return True


def read_failure(run_folder: Path) -> FailureReport | None:
    """The report, None when nobody failed. Raises DataError for a file that is no report."""
    path = run_folder / FAILURE_FILE
    try:
        return msgspec.json.decode(path.read_bytes(), type=FailureReport)
    except FileNotFoundError:
        return None
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise DataError(f"{path} is no failure report: {error}") from error


def clear_failure(run_folder: Path) -> None:
    """Forget an earlier failure: a resumed run starts with a clean sheet."""
    (run_folder / FAILURE_FILE).unlink(missing_ok=True)


def first_cause(run_folder: Path, since_ns: int = 0) -> FailureReport | None:
    """The report, else the earliest error record of `events.jsonl*` and `logs/*.log*` from `since_ns` (Unix)
    on.

    Lines that are no JSON objects are passed over: another program's text may stand between ours.
    """
    report = read_failure(run_folder)
    if report is not None:
        return report
    files = [*sorted(run_folder.glob("events.jsonl*")), *sorted((run_folder / "logs").glob("*.log*"))]
    records = (record for path in files for record in _errors(path, since_ns))
    earliest = min(records, key=lambda record: record["time_ns"], default=None)
    return None if earliest is None else _as_report(earliest)


def _errors(path: Path, since_ns: int) -> Iterator[dict[str, Any]]:
    if not path.exists():
        return
    with path.open("rb") as lines:
        for line in lines:
            try:
                record = msgspec.json.decode(line)
            except (msgspec.MsgspecError, UnicodeDecodeError):
                continue
            if not isinstance(record, dict) or record.get("level") not in ERROR_LEVELS:
                continue
            if type(record.get("time_ns")) is int and record["time_ns"] >= since_ns:
                yield {"component": path.name.split(".log")[0], **record}


def _as_report(record: dict[str, Any]) -> FailureReport:
    cause = str(record.get("event", ""))
    exception = str(record.get("exception", "")).strip()
    if exception:
        cause = f"{cause}: {exception.splitlines()[-1]}"
    return FailureReport(
        component=str(record["component"]),
        phase=str(record.get("phase", "unknown")),
        version=str(record.get("version", "")),
        cause=cause,
        time_ns=record["time_ns"],
    )
