"""The sandbox as its callers see it: `run` a program, and read how it ended.

Guarantees that a program runs on a level that was tried out on this machine before, or not at all; that it ends within
its time; and that nothing of it is left when `run` returns or is cancelled.
"""

import asyncio
import os
import shutil
import socket
import subprocess
import threading
import weakref
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Final, TypeAlias

import msgspec

from streamrl.config.schema.sandbox import SandboxConfig
from streamrl.errors import ComponentError, ConfigError
from streamrl.sandbox.bubblewrap import PRLIMIT
from streamrl.sandbox.interpreter import Interpreter, read_interpreter
from streamrl.sandbox.program import Finished, Limits, Program, checked, limits_of
from streamrl.sandbox.self_test import why_not
from streamrl.sandbox.system_calls import filter_program
from streamrl.sandbox.wire import BUBBLEWRAP, NAMESPACES, REMOTE, JailerSettings, Order, Report
from streamrl.system.child_process import start_child
from streamrl.system.frames import pack, receive_body, receive_body_async

if TYPE_CHECKING:
    from streamrl.sandbox.remote import RemoteSandbox

_PROGRAM: Final = "streamrl.sandbox.jailer"
_LOCAL: Final = (BUBBLEWRAP, NAMESPACES)
_MARGIN_S: Final = 30.0
"""From the end of a program's time to its report; then its supervisor is taken for lost."""
_LONGER_S: Final = 1.0
_STOP_S: Final = 10.0


class Sandbox:
    """Runs programs on one level. It can be used from any event loop; calls beside each other do not wait.

    Example:
        sandbox = Sandbox(config.sandbox)
        sandbox.start()
        finished = await sandbox.run(Program(source="print(6 * 7)"))
        sandbox.close()
    """

    def __init__(self, config: SandboxConfig) -> None:
        self.limits = limits_of(config)
        self._config = config
        self._jailer = _Jailer()

    def start(self) -> str:
        """Find the level, try it out, and give its name. Raises ConfigError where this machine has none that holds."""
        interpreter = read_interpreter(self._config.python)
        refused = []
        for level in _LOCAL if self._config.level == "auto" else (self._config.level,):
            reason = self._try(level, interpreter)
            if not reason:
                return level
            refused.append(f"{level}: {reason}")
        raise ConfigError(
            f"no sandbox on this machine, and programs run nowhere else: {'; '.join(refused)}. Install bubblewrap, "
            "or let this user make user namespaces (sysctl user.max_user_namespaces > 0 and "
            "kernel.apparmor_restrict_unprivileged_userns=0; in a container CAP_SYS_ADMIN, or a seccomp profile with "
            "unshare and mount)"
        )

    def _try(self, level: str, interpreter: Interpreter) -> str:
        """Why this level does not hold here; "" where it does, and is the one from here on."""
        bubblewrap = shutil.which("bwrap") or ""
        if level == BUBBLEWRAP and not bubblewrap:
            return "no bwrap on PATH"
        if level == BUBBLEWRAP and not os.access(PRLIMIT, os.X_OK):
            return f"no {PRLIMIT}, with which it limits processes"
        self._jailer.set(level=level, interpreter=interpreter, bubblewrap=bubblewrap, system_calls=filter_program())
        reason = why_not(self._run_blocking)
        if reason:
            self._jailer.stop()
        return reason

    async def run(self, program: Program, limits: Limits | None = None) -> Finished:
        """limits: other ones than the configuration's. Raises DataError for a program that cannot be one, and
        ComponentError where the sandbox itself fails."""
        return await self._run(_order(program, limits or self.limits))

    async def run_pair(self, first: Program, second: Program, limits: Limits | None = None) -> Finished:
        """Two programs, each in a sandbox of its own, with a socket between them (`inside.two_sides.PEER`): how the
        first ended. The second is ended then. Raises as `run` does."""
        given = limits or self.limits
        one_end, other_end = socket.socketpair()
        with one_end, other_end:
            # The second has a moment more: whose time is over is known by the end of the first.
            longer = msgspec.structs.replace(given, time_s=given.time_s + _LONGER_S)
            beside = asyncio.create_task(self._run(_order(second, longer), other_end), name="second program")
            leading = asyncio.create_task(self._run(_order(first, given), one_end), name="first program")
            try:
                return await leading
            finally:
                for task in (leading, beside):
                    task.cancel()
                await asyncio.gather(leading, beside, return_exceptions=True)

    async def _run(self, order: Order, peer: socket.socket | None = None) -> Finished:
        with self._jailer.channel(peer) as channel:
            if peer is not None:
                peer.close()
            channel.setblocking(False)
            loop = asyncio.get_running_loop()
            try:
                async with asyncio.timeout(order.limits.time_s + _MARGIN_S):
                    await loop.sock_sendall(channel, pack(order))
                    report = msgspec.msgpack.decode(await receive_body_async(channel), type=Report)
            except (OSError, EOFError, TimeoutError) as error:
                raise ComponentError(f"sandbox: the process that runs a program is gone: {error}") from error
        return _finished(report)

    def _run_blocking(self, program: Program, limits: Limits) -> Finished:
        with self._jailer.channel() as channel:
            channel.settimeout(limits.time_s + _MARGIN_S)
            try:
                channel.sendall(pack(_order(program, limits)))
                body = receive_body(channel)
            except OSError as error:
                raise ComponentError(f"sandbox: the process that runs a program is gone: {error}") from error
        if body is None:
            raise ComponentError("sandbox: the process that runs a program is gone")
        return _finished(msgspec.msgpack.decode(body, type=Report))

    def close(self) -> None:
        """End what runs. Another `run` begins anew."""
        self._jailer.stop()


def _order(program: Program, limits: Limits) -> Order:
    checked(program)
    return Order(program, limits)


def _finished(report: Report) -> Finished:
    if report.error:
        raise ComponentError(f"sandbox: {report.error}")
    return Finished(
        ending=report.ending,
        exit_code=report.exit_code,
        stdout=report.stdout,
        stderr=report.stderr,
        wall_s=report.wall_s,
        cpu_s=report.cpu_s,
    )


class _Jailer:
    """The process that forks supervisors; started when it is needed, and again when it is gone."""

    def __init__(self) -> None:
        self._given: dict[str, object] = {}
        self._channel: socket.socket | None = None
        self._end_it: weakref.finalize[..., _Jailer] | None = None
        self._lock = threading.Lock()

    def set(self, **given: object) -> None:
        """given: fields of `JailerSettings`, from the next start on."""
        self.stop()
        self._given = given

    def channel(self, peer: socket.socket | None = None) -> socket.socket:
        """To a new supervisor, whose program gets `peer`. Raises ComponentError."""
        ours, theirs = socket.socketpair()
        sent = [theirs.fileno(), *([peer.fileno()] if peer is not None else [])]
        with ExitStack() as at_failure, theirs, self._lock:
            at_failure.push(ours)
            for _ in range(2):
                channel = self._started()
                with suppress(OSError):
                    socket.send_fds(channel, [b"1"], sent)
                    at_failure.pop_all()
                    return ours
                self._end()
            raise ComponentError("sandbox: its process ends as soon as it begins")

    def stop(self) -> None:
        with self._lock:
            self._end()

    def _started(self) -> socket.socket:
        if self._channel is None:
            if not self._given:
                raise ComponentError("sandbox: run before start")
            given = self._given
            process, self._channel = start_child(
                _PROGRAM,
                "the sandbox",
                lambda number: msgspec.convert(
                    {"channel": number, "parent": os.getpid(), "memory_bytes": 0, **given}, JailerSettings
                ),
            )
            self._channel.setblocking(True)
            # Also where nobody closes it: a tool lives as long as its process.
            self._end_it = weakref.finalize(self, _end, process, self._channel)
        return self._channel

    def _end(self) -> None:
        self._channel = None
        if self._end_it is not None:
            self._end_it()


def _end(process: "subprocess.Popen[bytes]", channel: socket.socket) -> None:
    channel.close()
    process.kill()
    process.wait(_STOP_S)


AnySandbox: TypeAlias = "Sandbox | RemoteSandbox"


def make_sandbox(config: SandboxConfig) -> AnySandbox:
    """The one that `[sandbox]` asks for, not started."""
    if config.level != REMOTE:
        return Sandbox(config)
    # Here and not above: most have none, and an HTTP client takes long to import.
    from streamrl.sandbox.remote import RemoteSandbox

    return RemoteSandbox(config)


def describe(level: str, limits: Limits) -> Sequence[str]:
    """What the level gives, line by line."""
    if level == REMOTE:
        asked = f"{limits.time_s:g} s and {limits.memory_bytes // 2**20} MiB are asked for"
        return (f"sandbox: a server, with what it gives; {asked}",)
    made_by = "bubblewrap" if level == BUBBLEWRAP else "namespaces, made by streamrl"
    return (
        f"sandbox: {made_by}; system calls by a filter",
        "no network, no files of this machine but Python's own (read-only), an empty environment",
        f"{limits.time_s:g} s, {limits.memory_bytes // 2**20} MiB, {limits.processes} processes, "
        f"{limits.output_bytes // 2**10} KiB of output, {limits.disk_bytes // 2**20} MiB of files",
    )
