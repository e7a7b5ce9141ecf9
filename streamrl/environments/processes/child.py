"""The program of a child process of environments: makes one for each episode, and calls its methods beside each other.

Started by `worker` as `python -P -m streamrl.environments.processes.child SETTINGS`. Guarantees that it dies with its
parent, and that one answer comes for each call as long as it lives. A call that is given up and cannot be stopped, as
it is a plain function in a thread, ends the whole process; so does one that ran out of memory.
"""

import asyncio
import inspect
import os
import socket
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import msgspec

from streamrl.environments.base import Done
from streamrl.environments.build import environment_factory
from streamrl.environments.outcomes import EnvironmentFault, Fault, addressed, verdict_of
from streamrl.environments.processes.raised import raised_by
from streamrl.environments.processes.wire import NOT_STOPPED, OUT_OF_MEMORY, Answer, Call, Cancel, ChildSettings, Ready
from streamrl.environments.schemas import tool_schemas
from streamrl.errors import ConfigError
from streamrl.rewards.base import writable
from streamrl.system.child_process import begin_child
from streamrl.system.frames import pack, receive_body_async

LINGER_S = 1.0
"""From a call that was given up to the end of what it had sent to a thread."""
MOST_THREADS, STACK_BYTES = 64, 2**21
"""Of the threads in which plain functions run: their stacks are a part of the address space."""


def main(argv: list[str]) -> int:
    settings = msgspec.json.decode(argv[1], type=ChildSettings)
    channel = begin_child(settings, "environment-child")
    try:
        make = environment_factory(settings.name, settings.options, settings.tools, settings.sandbox)
    except ConfigError as error:
        channel.sendall(pack(Ready(str(error))))
        return error.exit_code
    channel.sendall(pack(Ready()))
    channel.setblocking(False)
    asyncio.run(Episodes(settings.name, make, channel).serve())
    # Threads of the user's may still run, and nobody waits for them.
    os._exit(0)


class CountedThreads(ThreadPoolExecutor):
    """Knows what it has not ended."""

    def __init__(self, most: int) -> None:
        super().__init__(most)
        self.running: set[Future[Any]] = set()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> "Future[Any]":
        future = super().submit(fn, *args, **kwargs)
        self.running.add(future)
        future.add_done_callback(self.running.discard)
        return future


def _end_if_stuck(threads: "set[Future[Any]]") -> None:
    """threads: those that ran when a call was given up. One that runs still may be that call's, and would be lost for
    ever: with enough of them no call would find a thread."""
    if any(not one.done() for one in threads):
        os._exit(NOT_STOPPED)


def _failed(call: Call, kind: Fault, text: str) -> bytes:
    return pack(Answer(call.number, fault=kind.value, text=writable(text)))


def _is_given_up() -> bool:
    """Whether this task was cancelled by us: user code may raise CancelledError by itself."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _plainly(method: Callable[..., Any], *given: Any) -> Any:
    """Call it in a thread. A StopIteration passes no future: whoever waits for it would wait for ever."""
    try:
        return method(*given)
    except StopIteration as error:
        text = "StopIteration: next() found nothing more"
        raise RuntimeError(text).with_traceback(error.__traceback__) from error


class Episodes:
    """The episodes of one child. name: of the environment, for messages."""

    def __init__(self, name: str, make: Callable[[], Any], channel: socket.socket) -> None:
        self._name = name
        self._make = make
        self._channel = channel
        self._environments: dict[int, Any] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._in_threads: set[int] = set()
        """Numbers of the calls that run in a thread."""
        threading.stack_size(STACK_BYTES)
        self._threads = CountedThreads(MOST_THREADS)
        self._sending = asyncio.Lock()

    async def serve(self) -> None:
        """Until the parent closes the channel."""
        # Also what a coroutine of the user's sends to a thread: a tool, for example.
        asyncio.get_running_loop().set_default_executor(self._threads)
        decoder = msgspec.msgpack.Decoder(Call | Cancel)
        while (body := await self._receive()) is not None:
            message = decoder.decode(body)
            if isinstance(message, Cancel):
                self._cancel(message.number)
            else:
                self._tasks[message.number] = asyncio.create_task(self._run(message))

    def _cancel(self, number: int) -> None:
        if number in self._in_threads:
            os._exit(NOT_STOPPED)
        if number in self._tasks:
            self._tasks[number].cancel()
            asyncio.get_running_loop().call_later(LINGER_S, _end_if_stuck, set(self._threads.running))

    async def _run(self, call: Call) -> None:
        what = f"{self._name}.{call.method}"
        try:
            frame = pack(await self._answer(call))
        except EnvironmentFault as fault:
            frame = _failed(call, fault.kind, fault.text)
        except MemoryError:
            await self._send(_failed(call, Fault.DIED, f"{self._name}: out of memory"))
            os._exit(OUT_OF_MEMORY)
        except BaseException as error:  # noqa: BLE001 - an environment may raise anything, and each call is answered
            if isinstance(error, asyncio.CancelledError) and _is_given_up():
                frame = _failed(call, Fault.TIMEOUT, f"{what} was given up")
            else:
                frame = _failed(call, Fault.RAISED, raised_by(error, what))
        finally:
            self._tasks.pop(call.number, None)
            self._in_threads.discard(call.number)
        await self._send(frame)

    async def _answer(self, call: Call) -> Answer:
        what = f"{self._name}.{call.method}"
        if call.method == "close":
            await self._close(call)
            return Answer(call.number)
        if call.method == "reset":
            return await self._reset(call, what)
        environment = self._environments[call.episode]
        if call.method == "step":
            value = await self._called(call, environment.step, call.given)
        elif callable(truncated := getattr(environment, "truncated", None)):
            value = await self._called(call, truncated)
        else:
            value = Done()
        if isinstance(value, Done):
            return Answer(call.number, verdict=verdict_of(value, what))
        if call.method == "truncated":
            raise EnvironmentFault(Fault.GARBAGE, f"{what} gave {type(value).__name__}, not Done")
        agent, messages = addressed(value, what)
        return Answer(call.number, messages, agent=agent)

    async def _reset(self, call: Call, what: str) -> Answer:
        environment = await self._called(call, self._make)
        if any(environment is other for other in self._environments.values()):
            raise EnvironmentFault(Fault.GARBAGE, f"{self._name} gave one object to two episodes; each needs its own")
        self._environments[call.episode] = environment
        value = await self._called(call, environment.reset, call.given)
        try:
            tools = tool_schemas(getattr(environment, "tools", None))
        except ConfigError as error:
            raise EnvironmentFault(Fault.GARBAGE, f"{self._name}: {error}") from error
        agent, messages = ("", None) if value is None else addressed(value, what)
        return Answer(call.number, messages, tools, agent=agent)

    async def _close(self, call: Call) -> None:
        environment = self._environments.pop(call.episode, None)
        if callable(close := getattr(environment, "close", None)):
            await self._called(call, close)

    async def _called(self, call: Call, method: Callable[..., Any], *given: Any) -> Any:
        """What it returns, awaited where it is a coroutine. Otherwise it runs in a thread, as it may block."""
        if inspect.iscoroutinefunction(method):
            return await method(*given)
        self._in_threads.add(call.number)
        value = await asyncio.get_running_loop().run_in_executor(self._threads, _plainly, method, *given)
        self._in_threads.discard(call.number)
        return await value if inspect.isawaitable(value) else value

    async def _send(self, frame: bytes) -> None:
        async with self._sending:
            await asyncio.get_running_loop().sock_sendall(self._channel, frame)

    async def _receive(self) -> bytes | None:
        """None when the parent closed the channel."""
        try:
            return await receive_body_async(self._channel)
        except EOFError:
            return None


if __name__ == "__main__":
    sys.exit(main(sys.argv))
