"""The owner's side of the control socket: `status`, `events`, `eval`, `scale` and `sizes`, one JSON object a line.

Guarantees: a slow or dead client holds nobody up (its backlog is bounded, the oldest step events go first),
and a late subscriber first gets what it missed that still matters. Who may connect is the socket's file
mode. A socket that somebody removes, as cleaners of /tmp do after some days, is there again within seconds.

    -> {"op": "status"}          <- {"result": {...}}  or  {"error": {"type", "message", "exit_code"}}
    -> {"op": "scale", "args": {"rollout": 4}}
    -> {"op": "events"}          <- {"event": {...}}, {"event": {...}}, ... end of file
"""

import asyncio
import json
import math
import socket
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from streamrl.errors import ComponentError, StreamRLError
from streamrl.services.run.control.listener import LOOK_S, listen_at

Event = dict[str, Any]
Handler = Callable[..., Awaitable[dict[str, Any]]]
# Steps come and go; a client that is this many events behind loses the oldest.
BACKLOG = 4096


class EventHub:
    """Hands each published event to every subscriber, and the story so far to a new one.

    The story is every event but steps, and the newest step.
    """

    def __init__(self) -> None:
        self._story: deque[Event] = deque(maxlen=BACKLOG)
        self._last_step: Event | None = None
        self._subscribers: set[asyncio.Queue[Event | None]] = set()
        self._closed = False

    def publish(self, event: Event) -> Event:
        """Stamp (`time_ns`), keep and hand out one event. Returns it as published."""
        stamped = finite({"time_ns": time.time_ns(), **event})
        if stamped["kind"] == "step":
            self._last_step = stamped
        else:
            self._story.append(stamped)
        for subscriber in self._subscribers:
            _put(subscriber, stamped)
        return stamped

    def close(self) -> None:
        """End every subscription, after what is in it."""
        self._closed = True
        for subscriber in self._subscribers:
            _put(subscriber, None)

    async def subscribe(self) -> AsyncIterator[Event]:
        """The story so far, then each event as it comes, until the hub closes."""
        queue: asyncio.Queue[Event | None] = asyncio.Queue(BACKLOG)
        for past in self._so_far():
            _put(queue, past)
        if self._closed:
            _put(queue, None)
        self._subscribers.add(queue)
        try:
            while (event := await queue.get()) is not None:
                yield event
        finally:
            self._subscribers.discard(queue)

    def _so_far(self) -> list[Event]:
        step = [] if self._last_step is None else [self._last_step]
        return sorted([*self._story, *step], key=lambda event: event["time_ns"])


def _put(queue: "asyncio.Queue[Event | None]", event: Event | None) -> None:
    if queue.full():
        queue.get_nowait()
    queue.put_nowait(event)


class ControlServer:
    """Serves the control socket of one owner until closed.

    handlers: what to await for each operation but `events`, given its arguments by name; a StreamRLError that one
    raises goes to the client.
    """

    def __init__(self, listener: socket.socket, hub: EventHub, handlers: Mapping[str, Handler]) -> None:
        self._listener = listener
        self._path = Path(listener.getsockname())
        self._hub = hub
        self._handlers = handlers
        self._connections: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> "ControlServer":
        self._server = await asyncio.start_unix_server(self._serve, sock=self._listener)
        self._looking = asyncio.create_task(self._keep_reachable(), name="control socket")
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stop listening; let streams that end (the hub is closed) drain for a moment, then cut the rest."""
        assert self._server is not None
        self._looking.cancel()
        await asyncio.gather(self._looking, return_exceptions=True)
        self._server.close()
        if self._connections:
            await asyncio.wait(self._connections, timeout=1.0)
        for connection in list(self._connections):
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _keep_reachable(self) -> None:
        """It looks on a clock: nobody is told when a file goes."""
        while True:
            await asyncio.sleep(LOOK_S)
            with suppress(OSError):  # no room, or a folder of somebody else's: it is tried again
                await self.restore()

    async def restore(self) -> None:
        """Listen anew if the socket's file is gone. Raises OSError where that cannot be."""
        if self._path.exists():
            return
        self._path.parent.mkdir(mode=0o700, exist_ok=True)
        fresh = await asyncio.start_unix_server(self._serve, sock=listen_at(self._path))
        assert self._server is not None
        self._server.close()
        self._server = fresh

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            while line := await reader.readline():
                await self._answer(line, writer)
        except (ConnectionError, ValueError, asyncio.CancelledError):
            # The client went away or sends no lines, or the owner ends: nobody is left to tell.
            return
        finally:
            self._connections.discard(task)
            writer.close()

    async def _answer(self, line: bytes, writer: asyncio.StreamWriter) -> None:
        op, arguments = _parse_request(line)
        if op == "events":
            async for event in self._hub.subscribe():
                await _write(writer, {"event": event})
            writer.close()
            return
        try:
            await _write(writer, {"result": finite(await self._handler(op)(**arguments))})
        except StreamRLError as error:
            await _write(writer, {"error": described(error)})

    def _handler(self, op: str) -> Handler:
        if op not in self._handlers:
            there = ", ".join(sorted([*self._handlers, "events"]))
            raise ComponentError(f"the owner knows no operation {op!r}; it knows {there}")
        return self._handlers[op]


def described(error: StreamRLError) -> dict[str, Any]:
    """An error as plain data: class name, message, exit code. Ray's wrapper class is looked through."""
    kind = next(cls for cls in type(error).__mro__ if cls.__module__ == StreamRLError.__module__)
    return {"type": kind.__name__, "message": str(error), "exit_code": error.exit_code}


def finite(value: Any) -> Any:
    """Plain data with NaN and infinities as None, since JSON has no words for them."""
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _parse_request(line: bytes) -> tuple[str, dict[str, Any]]:
    """(operation, its arguments) of a request; of what is none, itself and nothing."""
    try:
        request = json.loads(line)
    except ValueError:
        return line.decode(errors="replace").strip(), {}
    if not isinstance(request, dict):
        return str(request), {}
    arguments = request.get("args")
    return str(request.get("op")), arguments if isinstance(arguments, dict) else {}


async def _write(writer: asyncio.StreamWriter, message: dict[str, Any]) -> None:
    writer.write(json.dumps(message).encode() + b"\n")
    await writer.drain()
