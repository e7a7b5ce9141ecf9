"""The client's side of the control socket: one JSON object a line, asked by the command line.

Guarantees: every answer is bounded by a time-out; an error of the run comes back as the exception it was,
with its exit code. Synchronous and light, since commands are short.
"""

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from streamrl.errors import ComponentError, DeadlineError, RunFolderError
from streamrl.services.run.ending import error_of
from streamrl.services.run.folder import RunFolder
from streamrl.system.poll import readable

_CLOSED: Final = "the run's owner closed the connection; `streamrl status` says how it ended"


class OwnerGoneError(ComponentError):
    """The owner of a run does not answer, since it has ended or ends now."""


class ControlClient:
    """One connection. `ask` for an answer, or `events` for a stream of them."""

    def __init__(self, path: Path, timeout_s: float = 10.0) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.settimeout(timeout_s)
        self._timeout_s = timeout_s
        self._pending = b""
        try:
            self._socket.connect(str(path))
        except (FileNotFoundError, ConnectionRefusedError) as error:
            self._socket.close()
            raise OwnerGoneError(f"the run's owner does not answer at {path}: {error.strerror}") from error

    @classmethod
    def of(cls, run: RunFolder, timeout_s: float = 10.0) -> "ControlClient":
        """Connect to a live run. Raises RunFolderError when nobody owns it now."""
        if run.owner() is None or run.record.launch is None:
            raise RunFolderError(f"run {run.name} is not up; `streamrl up {run.config_path}` starts or resumes it")
        return cls(Path(run.record.launch.control), timeout_s)

    def __enter__(self) -> "ControlClient":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._socket.close()

    def ask(self, op: str, **arguments: Any) -> dict[str, Any]:
        """Send one request and wait for its answer. Raises what the run raised, DeadlineError, or OwnerGoneError."""
        self.send(op, **arguments)
        try:
            while (line := self._line()) is None:
                self._receive()
        except TimeoutError as error:
            raise DeadlineError(f"the run did not answer `{op}` within {self._timeout_s:g} s") from error
        return _result(json.loads(line))

    def send(self, op: str, **arguments: Any) -> None:
        """Send a request and do not wait for its answer."""
        request = {"op": op, "args": arguments} if arguments else {"op": op}
        try:
            self._socket.sendall(json.dumps(request).encode() + b"\n")
        except (BrokenPipeError, ConnectionResetError) as error:
            raise OwnerGoneError(_CLOSED) from error

    def events(self, tick_s: float = 0.25) -> Iterator[dict[str, Any] | None]:
        """Subscribe: yields each event, and None after `tick_s` seconds without one. Ends with the owner."""
        self.send("events")
        while True:
            while (line := self._line()) is not None:
                yield json.loads(line)["event"]
            if not readable([self._socket.fileno()], tick_s):
                yield None
                continue
            try:
                self._receive()
            except ComponentError:
                return

    def _line(self) -> bytes | None:
        line, newline, rest = self._pending.partition(b"\n")
        if not newline:
            return None
        self._pending = rest
        return line

    def _receive(self) -> None:
        try:
            received = self._socket.recv(1 << 16)
        except ConnectionResetError:
            received = b""
        if not received:
            raise OwnerGoneError(_CLOSED)
        self._pending += received


def _result(answer: dict[str, Any]) -> dict[str, Any]:
    if "error" in answer:
        raise error_of(answer["error"])
    return answer["result"]
