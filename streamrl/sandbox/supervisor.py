"""The process that runs one program: starts it in the level's way, collects what it writes, and holds its limits.

It lives outside the sandbox, and what it reports comes from the kernel and from the program's two output pipes alone:
there is no channel by which a program could say how it ended.
"""

import fcntl
import json
import os
import selectors
import signal
import socket
import time
from contextlib import suppress
from typing import Final

import msgspec

from streamrl.sandbox import bubblewrap, namespaces
from streamrl.sandbox.inside.two_sides import PEER
from streamrl.sandbox.kernel import Kernel
from streamrl.sandbox.limits import OPEN_FILES, apply_limits
from streamrl.sandbox.memory import tree_memory
from streamrl.sandbox.program import MAIN, Ending
from streamrl.sandbox.wire import BUBBLEWRAP, JailerSettings, Order, Report
from streamrl.system.frames import pack, receive_body

WATCH_S: Final = 0.05
"""Between two looks at the memory of all processes together: no event tells of it."""
_FIRST_OF_OURS: Final = 64
_CHUNK: Final = 2**16
_MOST_STATUS: Final = 2**16


def supervise(kernel: Kernel, settings: JailerSettings, channel: socket.socket, peer: list[int]) -> None:
    """Read an order from `channel`, run it, and answer with a report. The caller closes the channel to give it up.

    peer: a descriptor that the program gets as PEER, or none."""
    body = receive_body(channel)
    if body is None:
        return
    order = msgspec.msgpack.decode(body, type=Order)
    try:
        running = _Running(order, channel, *_start(kernel, settings, order, peer))
    except OSError as error:
        channel.sendall(pack(Report(str(error))))
        return
    report = running.report()
    if settings.level == BUBBLEWRAP and not report.error:
        report = _as_bubblewrap_says(report, running.status)
    with suppress(OSError):  # nobody waits for it any more
        channel.sendall(pack(report))


def _start(kernel: Kernel, settings: JailerSettings, order: Order, peer: list[int]) -> tuple[int, int, int, int, int]:
    """The process id of the child, and our ends of its input, outputs and status. Raises OSError."""
    own_id = _id_of_its_own(kernel, settings)
    (input_read, input_write), (out_read, out_write), (error_read, error_write) = os.pipe(), os.pipe(), os.pipe()
    status_read, low = os.pipe()
    status_write = _above(low)
    child = os.fork()
    if child == 0:

        def become() -> None:
            for number, end in enumerate((input_read, out_write, error_write)):
                os.dup2(end, number)
            for end in peer:
                os.dup2(end, PEER)
            if settings.level != BUBBLEWRAP:  # nothing of ours is left to be found
                os.closerange(PEER + len(peer), status_write)
                os.closerange(status_write + 1, OPEN_FILES)

        try:
            if settings.level == BUBBLEWRAP:
                _become_bubblewrap(kernel, settings, order, own_id, status_write, become)
            os.close(input_write)
            namespaces.first_process(kernel, settings, order, own_id, become)
        except BaseException as error:  # noqa: BLE001 - nothing of this process may go on in the child
            os.write(status_write, f"error: {error}".encode())
        os._exit(1)
    for end in (input_read, out_write, error_write, status_write, *peer):
        os.close(end)
    return child, input_write, out_read, error_read, status_read


def _id_of_its_own(kernel: Kernel, settings: JailerSettings) -> int | None:
    if settings.level == BUBBLEWRAP:
        return namespaces.own_id() if os.geteuid() == 0 else None
    return namespaces.leave_machine(kernel)


def _become_bubblewrap(
    kernel: Kernel, settings: JailerSettings, order: Order, own_id: int | None, status: int, become: namespaces.Become
) -> None:
    kernel.die_with_parent(signal.SIGKILL)
    files = {name: _text_file(text) for name, text in {MAIN: order.program.source, **order.program.files}.items()}
    filter_file = _data_file(settings.system_calls)
    os.set_inheritable(status, True)
    arguments = bubblewrap.command(
        settings,
        order.program.arguments,
        order.limits,
        files={f"{namespaces.WORK}/{name}": number for name, number in files.items()},
        system_calls=filter_file,
        status=status,
    )
    namespaces.take_id(own_id)
    apply_limits(order.limits)
    namespaces.default_signals()
    become()
    os.execv(settings.bubblewrap, arguments)


def _text_file(text: str) -> int:
    return _data_file(text.encode("utf-8", "surrogatepass"))


def _data_file(data: bytes) -> int:
    """A descriptor of a file that has no name."""
    number = os.memfd_create("sandbox")
    with open(number, "wb", closefd=False) as file:
        file.write(data)
    os.lseek(number, 0, os.SEEK_SET)
    high = _above(number)
    os.set_inheritable(high, True)
    return high


def _above(number: int) -> int:
    """The same descriptor, with a number that is not one of the program's."""
    high = fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, _FIRST_OF_OURS)
    os.close(number)
    return high


def _as_bubblewrap_says(report: Report, status: bytes) -> Report:
    """bwrap tells an exit code where the program was started, and nothing where its own work failed."""
    told = [json.loads(line) for line in status.decode(errors="replace").splitlines() if line.startswith("{")]
    if report.ending is not Ending.EXITED or any("exit-code" in one for one in told):
        return report
    return Report(f"bwrap: {report.stderr.decode(errors='replace').strip()[:500] or 'it failed without a word'}")


class _Running:
    """A program that has been started."""

    def __init__(
        self, order: Order, channel: socket.socket, child: int, stdin: int, stdout: int, stderr: int, status: int
    ) -> None:
        self._limits = order.limits
        self._channel = channel
        self._child = child
        self._stdin = stdin
        self._to_write = memoryview(order.program.stdin)
        self._parts: dict[int, list[bytes]] = {stdout: [], stderr: [], status: []}
        self._outputs = (stdout, stderr)
        self._status = status
        self._written = 0
        self._ending: Ending | None = None
        self._began = time.monotonic()
        self._selector = selectors.DefaultSelector()

    @property
    def status(self) -> bytes:
        """What came through the status pipe, of which the program has no end."""
        return b"".join(self._parts[self._status])

    def report(self) -> Report:
        """Until everything of it has ended."""
        for number in (self._stdin, *self._parts):
            os.set_blocking(number, False)
        for number in self._parts:
            self._selector.register(number, selectors.EVENT_READ)
        self._selector.register(self._channel, selectors.EVENT_READ)
        self._selector.register(self._stdin, selectors.EVENT_WRITE)
        watch = self._began + WATCH_S
        while self._parts.keys() & self._selector.get_map().keys():
            now = time.monotonic()
            due = min(watch, self._began + self._limits.time_s) if self._ending is None else now + WATCH_S
            for key, _ in self._selector.select(max(due - now, 0.0)):
                self._ready(key.fd)
            now = time.monotonic()
            if self._ending is None and now >= self._began + self._limits.time_s:
                self._stop(Ending.TIME)
            elif self._ending is None and now >= watch:
                watch = now + WATCH_S
                if tree_memory(self._child) > self._limits.memory_bytes:
                    self._stop(Ending.MEMORY)
        return self._ended()

    def _ended(self) -> Report:
        _, status, used = os.wait4(self._child, 0)
        code = os.waitstatus_to_exitcode(status)
        if self.status.startswith(b"error: "):
            return Report(self.status.decode(errors="replace").removeprefix("error: "))
        stdout, stderr = (b"".join(self._parts[number])[: self._limits.output_bytes] for number in self._outputs)
        return Report(
            "",
            self._ending or Ending.EXITED,
            code if code >= 0 else 128 - code,
            stdout,
            stderr,
            time.monotonic() - self._began,
            used.ru_utime + used.ru_stime,
        )

    def _ready(self, number: int) -> None:
        if number == self._channel.fileno():
            self._selector.unregister(self._channel)
            self._stop(Ending.TIME)  # given up: nobody reads the report
        elif number == self._stdin:
            self._write()
        else:
            self._read(number)

    def _write(self) -> None:
        try:
            self._to_write = self._to_write[os.write(self._stdin, self._to_write[:_CHUNK]) :]
        except BlockingIOError:
            return
        except BrokenPipeError:
            self._to_write = self._to_write[:0]
        if not self._to_write:
            self._selector.unregister(self._stdin)
            os.close(self._stdin)

    def _read(self, number: int) -> None:
        data = os.read(number, _CHUNK)
        if not data:
            self._selector.unregister(number)
            return
        if number == self._status:
            if len(self.status) < _MOST_STATUS:
                self._parts[number].append(data)
            return
        if self._ending is Ending.OUTPUT:
            return
        self._parts[number].append(data)
        self._written += len(data)
        if self._written > self._limits.output_bytes:
            self._stop(Ending.OUTPUT)

    def _stop(self, ending: Ending) -> None:
        if self._ending is None:
            self._ending = ending
        # Not reaped yet, so its number is its own. All that it started ends with it.
        os.kill(self._child, signal.SIGKILL)
