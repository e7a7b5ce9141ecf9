"""A server process of our own: started, watched, and ended with all that it started.

Guarantees: it ends when `stop` returns, and also when this process dies in whatever way (`keeper`); what it prints goes
to this process's log, under the server's name, and its first error and the last lines are kept for the error that
tells of its end.
"""

import asyncio
import json
import logging
import os
import re
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from streamrl.errors import ComponentError, ConfigError, ProcessDiedError

GRACE_S = 3.0
"""From the polite signal to the final one. There is nothing to save: what runs is generated again."""
_END_S = 15.0
"""For all processes to be gone after the final one, on a busy machine."""
_SETTLE_S = 2.0
"""A broken connection is seen before the end of the process that broke it."""
_LAST_LINES = 30
_ERROR = re.compile(r"\b\w*(?:Error|Exception): .+")
_HARMLESS = re.compile(r"\b(?:DEBUG|INFO|WARNING)\b|Warning: ")


@dataclass(frozen=True, slots=True)
class ServerCommand:
    """argv: the program with its arguments. env: what it is told beside what it inherits."""

    argv: Sequence[str]
    env: Mapping[str, str]


class ServerProcess:
    """Starts at once. folders: removed at the end, by the keeper if this process is gone."""

    def __init__(self, name: str, command: ServerCommand, folders: Sequence[Path], grace_s: float = GRACE_S) -> None:
        """Raises ConfigError when there is no such program."""
        if not os.access(command.argv[0], os.X_OK):
            raise ConfigError(f"{name}: no program {command.argv[0]}; `make engines` makes the environments of engines")
        self._name = name
        self._grace_s = grace_s
        self._first_error = ""
        self._last: deque[str] = deque(maxlen=_LAST_LINES)
        lifeline, self._lifeline = os.pipe()
        order = {
            "argv": list(command.argv),
            "env": dict(command.env),
            "lifeline_fd": lifeline,
            "grace_s": grace_s,
            "folders": [str(folder) for folder in folders],
        }
        try:
            self._keeper = subprocess.Popen(
                [sys.executable, "-P", "-m", "streamrl.engines.server.process.keeper", json.dumps(order)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                pass_fds=[lifeline],
                start_new_session=True,
            )
        finally:
            os.close(lifeline)
        assert self._keeper.stdout is not None
        self._reader = threading.Thread(target=self._read, args=[self._keeper.stdout], name=f"{name} log", daemon=True)
        self._reader.start()

    @property
    def session(self) -> int:
        """The number of the session that keeper and server are in."""
        return self._keeper.pid

    async def ended(self) -> None:
        """Raise ProcessDiedError when it ends."""
        loop = asyncio.get_running_loop()
        over = asyncio.Event()
        ends = os.pidfd_open(self._keeper.pid)
        loop.add_reader(ends, over.set)
        try:
            await over.wait()
        finally:
            loop.remove_reader(ends)
            os.close(ends)
        raise ProcessDiedError("the server is gone")

    def story(self) -> str:
        """How it ended, or that it lives, the first error that it printed, and its last lines."""
        try:
            code = self._keeper.wait(_SETTLE_S)
        except subprocess.TimeoutExpired:
            return f"its process lives; {self._exit_text()}"
        self._reader.join(_SETTLE_S)
        return f"its process ended with {_describe_exit(code)}; {self._exit_text()}"

    def stop(self) -> None:
        """End it and all that it started; nothing happens when that is done. Raises ComponentError if one survives."""
        if self._lifeline >= 0:
            os.close(self._lifeline)
            self._lifeline = -1
        try:
            self._keeper.wait(self._grace_s + _END_S)
        except subprocess.TimeoutExpired as error:
            self._keeper.kill()
            raise ComponentError(f"{self._name}: its processes, in session {self.session}, cannot be ended") from error
        self._reader.join(_END_S)

    def _read(self, lines: IO[bytes]) -> None:
        log = logging.getLogger(self._name)
        with lines:
            for line in lines:
                if text := line.decode(errors="replace").rstrip():
                    self._last.append(text)
                    self._first_error = self._first_error or error_in(text)
                    log.info("%s", text)

    def _exit_text(self) -> str:
        lines = list(self._last)
        if not lines:
            return "it printed nothing"
        # Of a server of many processes the last one to end says only that another one did.
        first = f"its first error: {self._first_error}; " if self._first_error else ""
        return f"{first}its last lines:\n  " + "\n  ".join(lines)


def error_in(line: str) -> str:
    """The error that a line of a server's log names, from its class on; "" for none, or where it only warns of one."""
    found = _ERROR.search(line)
    return found[0] if found and not _HARMLESS.search(line) else ""


def _describe_exit(code: int) -> str:
    """An exit code as the keeper gives it: over 128 it is a signal's number."""
    number = -code if code < 0 else code - 128
    try:
        return f"signal {signal.Signals(number).name}"
    except ValueError:
        return f"exit code {code}"
