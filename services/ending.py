"""How a launch ended, told once: the summary, the way to go on, or the first cause of a failure.

Guarantees: a failure is told with its first cause and where to read on, never with a traceback, and carries
the exit code of its class. Reads files only.
"""

from typing import Any

from services.run_folder import RunFolder
from streamrl import errors, failure
from streamrl.errors import ComponentError, StreamRLError

EXIT_INTERRUPTED = 130
_LAST_LINES = 8


def failure_of(run: RunFolder, code: int, end: dict[str, Any] | None) -> StreamRLError:
    """The error that a failed launch ends in. `end` is its last event, None if the owner died without one."""
    run = RunFolder.open(run.path)
    cause = first_cause(run)
    if end is None or end.get("error") is None:
        died = f"ended by signal {code - 128}" if code > 128 else f"ended with exit code {code}"
        parts = [cause, f"the owner process of run {run.name} {died}", _last_lines(run)]
        return ComponentError("\n".join(part for part in parts if part))
    message = end["error"]["message"]
    parts = [cause if cause and cause not in message else "", message, f"logs: {run.logs_path}"]
    return error_of({**end["error"], "message": "\n".join(part for part in parts if part)})


def error_of(described: dict[str, Any]) -> StreamRLError:
    """The exception that `control.described` described."""
    kind = getattr(errors, described["type"], ComponentError)
    return kind(described["message"]) if issubclass(kind, StreamRLError) else ComponentError(described["message"])


def first_cause(run: RunFolder) -> str:
    """Who failed first in the newest launch, as a sentence; empty when nobody said so."""
    launch = run.record.launch
    report = failure.first_cause(run.path, 0 if launch is None else launch.started_ns)
    return "" if report is None else str(report)


def _last_lines(run: RunFolder) -> str:
    log = run.logs_path / "owner.log"
    if not log.exists():
        return ""
    lines = log.read_text(errors="replace").splitlines()[-_LAST_LINES:]
    return "\n".join([f"its last words ({log}):", *(f"  {line}" for line in lines)])
