"""How a launch ended, told once: the summary, the way to go on, or the first cause of a failure.

Guarantees: a failure is told with its first cause and where to read on, never with a traceback, and carries
the exit code of its class. Reads files only.
"""

from typing import Any

from streamrl import errors
from streamrl.errors import ComponentError, ConfigError, StreamRLError
from streamrl.observability import failure
from streamrl.services.run.folder import RunFolder
from streamrl.services.run.read_logs import last_lines

EXIT_INTERRUPTED = 130
EXIT_TERMINATED = 143
_LAST_LINES = 8


def failure_of(run: RunFolder, code: int, end: dict[str, Any] | None) -> StreamRLError:
    """The error that a failed launch ends in. `end` is its last event, None if the owner died without one."""
    run = RunFolder.open(run.path)
    cause = first_cause(run)
    if end is None or end.get("error") is None:
        died = f"ended by signal {code - 128}" if code > 128 else f"ended with exit code {code}"
        parts = [cause, f"the owner process of run {run.name} {died}", _last_lines(run)]
        return ComponentError("\n".join(part for part in parts if part))
    kind = error_of(end["error"])
    parts = [*_once(cause, str(kind), by_user=not isinstance(kind, ComponentError))]
    if kind.exit_code != ConfigError.exit_code:
        parts.append(f"logs: {run.logs_path}")
    return type(kind)("\n".join(parts))


def _once(cause: str, message: str, *, by_user: bool) -> list[str]:
    """The first cause and the error that the launch ended with, without saying one thing twice.

    by_user: what the user can put right is told as it is, without the part that found it.
    """
    if not cause or cause in message or (by_user and message in cause):
        return [message]
    return [cause] if message in cause else [cause, message]


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
    return "\n".join([f"its last words ({log}):", *(f"  {line}" for line in last_lines(log, _LAST_LINES))])
