"""One tracker as the run sees it: hand over, never wait, look how it is.

    run --send--> bounded queue --a thread of its own--> child process: the package

Guarantees: `send` returns at once, whatever the package does. One that does not answer within its deadline, dies, or
fails `MOST_FAILURES` times in a row is dropped: its process and all that it started are ended, and that is told once.
What waits is bounded; of a slow tracker the oldest lines are left out, which is told once, too. The thread starts the
child and lives as long, because the kernel ties "die with the parent" to the thread that started it.
"""

import os
import socket
import subprocess
import threading
from collections import deque
from contextlib import suppress
from typing import Any, Literal

import msgspec

from streamrl.errors import ComponentError, DataError
from streamrl.observability.trackers.base import TrackedRun
from streamrl.observability.trackers.requirements import variables_for
from streamrl.observability.trackers.wire import ChildSettings, Finish, Line, Message, Ready, Taken
from streamrl.system.child_process import ending, start_child
from streamrl.system.frames import HEADER, pack, receive_exactly
from streamrl.system.processes import end_session

PROGRAM = "streamrl.observability.trackers.child"
MOST_WAITING = 1000
"""Messages."""
MOST_FAILURES = 10
"""In a row, until a tracker is dropped."""
_LONGEST_ANSWER = 2**16
"""Bytes. A package that writes to our channel must not have us allocate what it says."""
_ALL_MEMORY = 2**62
"""The address space is not bounded: programs in Go map much. `child` bounds what is written to."""
_REAP_S = 5.0

State = Literal["starting", "running", "finished", "dropped"]


class _LostError(ComponentError):
    """The child did not answer, or said what it may not."""


class TrackerProcess:
    """See the module. start_s: for its first word; answer_s: for each answer after it."""

    def __init__(
        self, name: str, run: TrackedRun, *, start_s: float, answer_s: float, most_waiting: int = MOST_WAITING
    ) -> None:
        self.name = name
        self._run = run
        self._start_s, self._answer_s, self._most_waiting = start_s, answer_s, most_waiting
        self._waiting: deque[Message] = deque()
        self._changed = threading.Condition()
        self._closing = False
        self._given_up = ""
        self._state: State = "starting"
        self._where = ""
        self._taken = self._failed = self._failed_in_a_row = self._left_out = 0
        self._reason = ""
        self._news: deque[str] = deque()
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: socket.socket | None = None
        self._thread = threading.Thread(target=self._live, name=f"tracker {name}", daemon=True)
        self._thread.start()

    @property
    def pid(self) -> int | None:
        """The child's process id; None before it is started and after it is gone."""
        process = self._process
        return None if process is None else process.pid

    def send(self, message: Message) -> None:
        """Hand a message over. What comes after the last one, or to a tracker that was dropped, goes nowhere."""
        with self._changed:
            if self._closing or self._state in ("finished", "dropped"):
                return
            self._waiting.append(message)
            if len(self._waiting) > self._most_waiting:
                self._leave_out()
            self._changed.notify()

    def take_no_more(self) -> None:
        """It ends when it has taken what waits."""
        with self._changed:
            self._closing = True
            self._changed.notify()

    def close(self, limit_s: float, told_s: float | None = None) -> None:
        """Wait at most so long until it has taken what waits, then end it. told_s: the limit in the message, where
        others were waited for before."""
        self.take_no_more()
        self._thread.join(limit_s)
        if self._thread.is_alive():
            self._give_up(f"it did not finish within {limit_s if told_s is None else told_s:g} s")
            self._thread.join(_REAP_S)

    def take_news(self) -> list[str]:
        """Sentences for the user that were not taken yet."""
        news = []
        while self._news:
            news.append(self._news.popleft())
        return news

    def status(self) -> dict[str, Any]:
        """For `streamrl status`: how it is, and how much it took, failed to take, or never got."""
        told = {"state": self._state, "where": self._where, "taken": self._taken}
        counts = {"failed": self._failed, "left_out": self._left_out, "reason": self._reason}
        return {**told, **{name: value for name, value in counts.items() if value}}

    # ---- in the thread

    def _live(self) -> None:
        try:
            self._start()
            while (message := self._next()) is not None:
                self._ask(message)
            self._state = "finished"
        except (ComponentError, ValueError, OverflowError) as lost:  # the latter two of what no message can hold
            self._drop(self._given_up or str(lost))
        finally:
            self._end()

    def _start(self) -> None:
        self._process, self._channel = start_child(
            PROGRAM,
            f"tracker {self.name}",
            lambda number: ChildSettings(
                channel=number, parent=os.getpid(), memory_bytes=_ALL_MEMORY, tracker=self.name, run=self._run
            ),
            **variables_for(self.name, os.environ),
        )
        with self._changed:  # who gave it up before could not wake the thread
            if self._given_up:
                raise _LostError(self._given_up)
        ready = self._answer(Ready, self._start_s, "did not start")
        if ready.error:
            raise _LostError(f"it did not start: {ready.error}")
        self._where = ready.where
        self._state = "running"

    def _next(self) -> Message | None:
        """Wait for a message; None after the last one."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._closing)
            return self._waiting.popleft() if self._waiting else None

    def _ask(self, message: Message) -> None:
        number = self._taken + self._failed
        channel = self._channel
        assert channel is not None
        is_last = isinstance(message, Finish)
        channel.settimeout(self._answer_s)
        try:
            channel.sendall(pack(msgspec.structs.replace(message, number=number)))
        except TimeoutError:
            raise _LostError(f"it took nothing for {self._answer_s:g} s") from None
        except OSError:
            raise _LostError(f"its process {self._how_it_ended()}") from None
        # How long the last one may take is said by who closes.
        taken = self._answer(Taken, None if is_last else self._answer_s, "gave no answer")
        if taken.number != number:
            raise _LostError(f"it answered message {taken.number} in place of {number}")
        self._count(taken.error)

    def _count(self, error: str) -> None:
        if not error:
            self._taken += 1
            self._failed_in_a_row = 0
            return
        self._failed += 1
        self._failed_in_a_row += 1
        self._reason = error
        if self._failed == 1:
            self._news.append(f"tracker {self.name} could not take what it was told, and is told on: {error}")
        if self._failed_in_a_row >= MOST_FAILURES:
            raise _LostError(f"it failed {MOST_FAILURES} times in a row, the last time with {error}")

    def _answer(self, kind: Any, limit_s: float | None, what: str) -> Any:
        channel = self._channel
        assert channel is not None
        channel.settimeout(limit_s)
        try:
            header = receive_exactly(channel, HEADER.size)
            if header is None:
                raise _LostError(f"its process {self._how_it_ended()}")
            (length,) = HEADER.unpack(header)
            body = receive_exactly(channel, min(length, _LONGEST_ANSWER))
            if body is None:
                raise _LostError(f"its process {self._how_it_ended()}")
            return msgspec.msgpack.decode(body, type=kind)
        except TimeoutError:
            raise _LostError(f"it {what} within {limit_s:g} s") from None
        except (OSError, DataError, msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise _LostError(f"what it said is no answer: {error}") from error

    def _drop(self, reason: str) -> None:
        with self._changed:
            self._state = "dropped"
            self._reason = reason
            self._waiting.clear()
        self._news.append(f"tracker {self.name} is dropped: {reason}; the run goes on without it")

    def _how_it_ended(self) -> str:
        """Of a process that closed its channel. It is reaped, and what it started is ended."""
        process, self._process = self._process, None
        if process is None:
            return "is gone"
        end_session(process.pid)  # a process that ends already keeps its own exit code
        try:
            return ending(process.wait(_REAP_S))
        except subprocess.TimeoutExpired:
            return f"{process.pid} is alive {_REAP_S:g} s after SIGKILL"

    def _end(self) -> None:
        self._how_it_ended()
        if self._channel is not None:
            self._channel.close()

    # ---- in the run's threads, too

    def _leave_out(self) -> None:
        """The oldest line; what is not one stays."""
        place = next((place for place, one in enumerate(self._waiting) if isinstance(one, Line)), None)
        if place is None:
            return
        del self._waiting[place]
        self._left_out += 1
        if self._left_out == 1:
            what = f"more than {self._most_waiting} lines wait for it; the oldest are left out"
            self._news.append(f"tracker {self.name} is slow: {what}")

    def _give_up(self, reason: str) -> None:
        """Wake the thread, which drops it for that reason."""
        with self._changed:
            self._given_up = reason
            channel = self._channel
        if channel is not None:
            with suppress(OSError):
                channel.shutdown(socket.SHUT_RDWR)
