"""One child process of environments, as the pool sees it: start, call, kill.

Guarantees that every call comes to an answer or an EnvironmentFault, within its time and a moment; that a child which
is gone is reaped, with every program that it started in its session; and that a call which hangs takes no other episode
with it, as long as it can be stopped without the child.
"""

import asyncio
import itertools
import os
import socket
import subprocess
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import msgspec

from streamrl.config.schema.sandbox import SandboxConfig
from streamrl.environments.outcomes import EnvironmentFault, Fault
from streamrl.environments.processes.wire import (
    NOT_STOPPED,
    OUT_OF_MEMORY,
    Answer,
    Call,
    Cancel,
    ChildSettings,
    Method,
    Ready,
)
from streamrl.errors import ComponentError, ConfigError, DataError
from streamrl.system.child_process import ending, start_child
from streamrl.system.frames import pack, receive_body_async
from streamrl.system.processes import end_session

PROGRAM = "streamrl.environments.processes.child"
START_TIMEOUT_S = 60.0
"""Of Python, and of the import of the user's module."""
GIVE_UP_S = 2.0
"""From the order to give a call up to its answer; then the child is killed."""
REAP_TIMEOUT_S = 10.0
BLOCKED = (
    ", and could not be stopped: a coroutine that works or waits without `await` blocks its process, and all "
    "episodes in it; make it a plain method, which has a thread of its own"
)


class WorkerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What the children of a pool have in common: see `ChildSettings`."""

    name: str
    options: dict[str, Any] = {}
    tools: tuple[str, ...] = ()
    sandbox: SandboxConfig = SandboxConfig()
    memory_bytes: int
    import_paths: Sequence[str] = ()
    stacks: str = ""


class Worker:
    """A place for one child. It is empty until `start`, and after a loss.

    `life` counts its children: an episode lives in one of them."""

    def __init__(self, settings: WorkerSettings) -> None:
        self._settings = settings
        self.life = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: socket.socket | None = None
        self._reader: asyncio.Task[None] | None = None
        self._numbers = itertools.count()
        self._pending: dict[int, asyncio.Future[Answer]] = {}
        self._starting = asyncio.Lock()
        self._sending = asyncio.Lock()

    @property
    def pid(self) -> int | None:
        """The child's process id; None while there is none that could answer."""
        return None if self._process is None or self._channel is None else self._process.pid

    async def start(self) -> None:
        """Have a child that can play. Raises ConfigError for an environment that cannot be had, and ComponentError for
        a child that does not come up."""
        async with self._starting:
            if self.pid is not None:
                return
            await self.stop()
            self.life += 1  # first: what an episode of an earlier child asks from here on is lost
            channel = self._spawn()
            ready = await self._ready(channel)
            if ready.error:
                await self.stop()
                raise ConfigError(ready.error)
            self._reader = asyncio.create_task(self._read(channel), name="answers of an environment's child")

    async def call(self, episode: int, method: Method, given: dict[str, Any], timeout_s: float) -> Answer:
        """Raises EnvironmentFault for a call that fails, hangs, or loses its child."""
        number = next(self._numbers)
        answered = self._pending[number] = asyncio.get_running_loop().create_future()
        try:
            await self._send(Call(number, episode, method, given))
            done, _ = await asyncio.wait({answered}, timeout=timeout_s)
            if not done:
                stopped = await self._give_up(number, answered)
                what = f"{self._settings.name}.{method} gave no answer in {timeout_s:g} s"
                raise EnvironmentFault(Fault.TIMEOUT, what if stopped else f"{what}{BLOCKED}")
            said: Answer = answered.result()
        finally:
            self._pending.pop(number, None)
        if said.fault == Fault.DIED:
            await self._until_gone()
        if said.fault:
            raise EnvironmentFault(Fault(said.fault), said.text)
        return said

    async def _until_gone(self) -> None:
        """The child ends with the answer that it gave last: an episode that came to it meanwhile would be lost."""
        if (reader := self._reader) is None:
            return
        done, _ = await asyncio.wait({reader}, timeout=REAP_TIMEOUT_S)
        if not done:
            await self.stop()

    def kill(self) -> None:
        """Send SIGKILL to the child and to all that it started. The child is reaped by `stop`."""
        if self._process is not None and self._process.returncode is None:
            # Its number is its own until it is reaped, so this can hit no stranger.
            end_session(self._process.pid)

    async def stop(self) -> str:
        """Kill and reap the child, if any, and say how it ended. Calls that wait for it are lost."""
        self.kill()
        # All at once: who asks from here on finds no child.
        reader, self._reader = self._reader, None
        channel, self._channel = self._channel, None
        process, self._process = self._process, None
        pending, self._pending = self._pending, {}
        if reader is not None and reader is not asyncio.current_task():
            reader.cancel()
            with suppress(asyncio.CancelledError):
                await reader
        if channel is not None:
            channel.close()
        if process is None:
            return "was not running"
        try:
            code = await asyncio.to_thread(process.wait, REAP_TIMEOUT_S)
        except subprocess.TimeoutExpired as error:
            what = f"process {process.pid} is alive {REAP_TIMEOUT_S:.0f} s after SIGKILL"
            raise ComponentError(f"environment {self._settings.name!r}: {what}") from error
        self._lose(pending.values(), code)
        return ending(code)

    def _lose(self, pending: "Iterable[asyncio.Future[Answer]]", code: int) -> None:
        """These calls are answered no more. One that waited alone is to blame, of several nobody knows which; but where
        the process ended itself it was over a call that has its answer already."""
        waiting = [one for one in pending if not one.done()]
        unclear = Fault.DIED if len(waiting) == 1 else Fault.UNCLEAR
        kind = Fault.LOST if code in (OUT_OF_MEMORY, NOT_STOPPED) else unclear
        for answered in waiting:
            answered.set_exception(EnvironmentFault(kind, f"{self._settings.name}: its process {ending(code)}"))

    async def _give_up(self, number: int, answered: "asyncio.Future[Answer]") -> bool:
        """Whether the child could stop it; else the child is ended."""
        with suppress(EnvironmentFault):
            await self._send(Cancel(number))
        done, _ = await asyncio.wait({answered}, timeout=GIVE_UP_S)
        if not done:
            answered.cancel()  # the others are lost by it, and not by themselves
            await self.stop()
        elif not answered.cancelled():
            answered.exception()
        return bool(done)

    async def _send(self, message: Call | Cancel) -> None:
        channel = self._channel
        if channel is None:
            raise EnvironmentFault(Fault.LOST, f"{self._settings.name}: its process is gone")
        try:
            async with self._sending:
                await asyncio.get_running_loop().sock_sendall(channel, pack(message))
        except OSError as error:
            raise EnvironmentFault(Fault.LOST, f"{self._settings.name}: its process is gone") from error

    async def _read(self, channel: socket.socket) -> None:
        """Give answers to those who wait, until the child is gone."""
        decoder = msgspec.msgpack.Decoder(Answer)
        try:
            while True:
                said = decoder.decode(await receive_body_async(channel))
                answered = self._pending.get(said.number)
                if answered is not None and not answered.done():
                    answered.set_result(said)
        except (EOFError, OSError, DataError, msgspec.DecodeError):
            await self.stop()

    async def _ready(self, channel: socket.socket) -> Ready:
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                return msgspec.msgpack.decode(await receive_body_async(channel), type=Ready)
        except (EOFError, OSError, TimeoutError, DataError, msgspec.DecodeError) as error:
            how = await self.stop()
            what = f"its process {how} before it was ready; it has {self._settings.memory_bytes} bytes of address space"
            text = f"environment {self._settings.name!r} did not start: {what} (environment.memory_bytes)"
            raise ComponentError(text) from error

    def _spawn(self) -> socket.socket:
        settings = partial(
            ChildSettings,
            parent=os.getpid(),
            name=self._settings.name,
            options=self._settings.options,
            tools=list(self._settings.tools),
            sandbox=self._settings.sandbox,
            memory_bytes=self._settings.memory_bytes,
            import_paths=list(self._settings.import_paths),
            stacks=self._settings.stacks,
        )
        # Each thread's arena would take 64 MB of the address space.
        self._process, self._channel = start_child(
            PROGRAM,
            f"environment {self._settings.name!r}",
            lambda channel: settings(channel=channel),
            MALLOC_ARENA_MAX="2",
        )
        return self._channel
