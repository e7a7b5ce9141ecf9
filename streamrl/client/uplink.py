"""The one connection over which a client submits to a stream: it is made again whenever it breaks, and what was not
answered is submitted again under its keys, so that nothing is lost and nothing generated twice.

`_talk` holds one connection: `_lines` gives it what is to be submitted, `_hear` takes what is answered. Nothing is
connected while there is nothing to submit.
"""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import msgspec

from streamrl.client.address import Where
from streamrl.client.prompts import line_of
from streamrl.client.results import Result
from streamrl.errors import (
    ComponentError,
    DroppedError,
    RequestError,
    ResourceError,
    RunFolderError,
    StreamRLError,
)
from streamrl.tasks.base import SubmittedPrompt

FIRST_BREAK_S, LONGEST_BREAK_S = 0.1, 5.0
"""Between two attempts to connect, doubled each time."""
REFUSALS = (400, 401, 403, 404, 405, 409, 410, 413)
"""Statuses that another attempt does not change."""


class Uplink:
    """See the module. patience_s: without an answer to an attempt to connect, before everything that waits fails."""

    def __init__(self, http: aiohttp.ClientSession, where: Where, stream: str, patience_s: float) -> None:
        self._http = http
        self._where = where
        self._stream = stream
        self._patience_s = patience_s
        self._open: dict[str, tuple[SubmittedPrompt, asyncio.Future[Result]]] = {}
        self._fresh: asyncio.Queue[SubmittedPrompt] = asyncio.Queue()
        self._wanted = asyncio.Event()
        self._heard_at = time.monotonic()
        self._running = asyncio.create_task(self._run(), name=f"uplink of {stream}")

    def submit(self, prompt: SubmittedPrompt) -> "asyncio.Future[Result]":
        """What becomes of it: a Result, RequestError, DroppedError, or ComponentError when the run does not answer. A
        key that is open already is the same prompt."""
        if prompt.key in self._open:
            return self._open[prompt.key][1]
        future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self._open[prompt.key] = prompt, future
        self._fresh.put_nowait(prompt)
        self._wanted.set()
        return future

    async def close(self) -> None:
        """Submit no more; what was accepted goes on in the run."""
        self._running.cancel()
        await asyncio.gather(self._running, return_exceptions=True)
        self._fail(ComponentError("the client was closed; what was accepted goes on in the run"))

    async def _run(self) -> None:
        pause = FIRST_BREAK_S
        while True:
            await self._wanted.wait()
            self._heard_at = time.monotonic()
            while self._open:
                heard = self._heard_at
                try:
                    await self._talk()
                except (RequestError, RunFolderError) as error:
                    self._fail(error)
                except (aiohttp.ClientError, ConnectionError, ComponentError, TimeoutError) as error:
                    self._give_up_late(error)
                pause = FIRST_BREAK_S if self._heard_at > heard else min(2 * pause, LONGEST_BREAK_S)
                if self._open:
                    await asyncio.sleep(pause)
            self._wanted.clear()

    def _give_up_late(self, error: BaseException) -> None:
        silent = time.monotonic() - self._heard_at
        if silent > self._patience_s:
            told = f"{self._where}: the run does not answer since {silent:.0f} s: {error}"
            self._fail(ComponentError(told))

    async def _talk(self) -> None:
        """One connection, until it breaks or nothing is open. Raises what ended it."""
        address = self._where.find()
        headers = {"authorization": f"Bearer {address.token}", "content-type": "application/x-ndjson"}
        again = [prompt for prompt, _ in self._open.values()]
        self._fresh = asyncio.Queue()
        done = asyncio.Event()
        asking = self._http.post(
            f"{address.url}/api/prompts",
            params={"stream": self._stream},
            data=self._lines(again, self._fresh, done),
            headers=headers,
        )
        try:
            async with asking as response:
                if response.status != 200:
                    raise refusal_of(response.status, await response.read())
                while self._open and (line := await response.content.readline()):
                    self._hear(json.loads(line))
        finally:
            done.set()

    async def _lines(
        self, again: list[SubmittedPrompt], fresh: "asyncio.Queue[SubmittedPrompt]", done: asyncio.Event
    ) -> AsyncIterator[bytes]:
        """What is to be submitted on one connection, until it is done with."""
        if again:
            yield b"".join(map(line_of, again))
        while (some := await _next(fresh, done)) is not None:
            yield b"".join(map(line_of, some))

    def _hear(self, told: dict[str, Any]) -> None:
        """Raises ComponentError when the run cannot go on answering for now, RequestError when it never will."""
        if told["type"] != "error":
            self._heard_at = time.monotonic()
        match told["type"]:
            case "finished":
                self._settle(told["key"], msgspec.convert(told, Result))
            case "dropped":
                self._settle(told["key"], DroppedError(told["key"], told["reason"]))
            case "error" if told.get("key") is not None:
                self._settle(told["key"], error_of(told["error"], f"prompt {told['key']!r}: "))
            case "error" if told.get("line") is None and told["error"]["code"] == "line_too_long":
                raise error_of(told["error"])
            case "error":
                raise ComponentError(told["error"]["message"])
            case _:
                pass

    def _settle(self, key: str, outcome: Result | StreamRLError) -> None:
        _, future = self._open.pop(key, (None, None))
        if future is None or future.done():
            return
        if isinstance(outcome, Result):
            future.set_result(outcome)
        else:
            future.set_exception(outcome)

    def _fail(self, error: StreamRLError) -> None:
        for key in list(self._open):
            self._settle(key, error)


async def _next(fresh: "asyncio.Queue[SubmittedPrompt]", done: asyncio.Event) -> list[SubmittedPrompt] | None:
    """All that there is, once there is some; None when it is done."""
    getting, ending = asyncio.ensure_future(fresh.get()), asyncio.ensure_future(done.wait())
    try:
        await asyncio.wait({getting, ending}, return_when=asyncio.FIRST_COMPLETED)
        if not getting.done():
            return None
        some = [getting.result()]
    finally:
        getting.cancel()
        ending.cancel()
        await asyncio.gather(getting, ending, return_exceptions=True)
    while not fresh.empty():
        some.append(fresh.get_nowait())
    return some


def refusal_of(status: int, body: bytes) -> StreamRLError:
    """What an answer that is no success means: RequestError where asking again changes nothing, ResourceError where the
    run's machine has too little for it."""
    try:
        fault = json.loads(body)["error"]
    except (ValueError, KeyError, TypeError):
        fault = {"message": body[:200].decode(errors="replace") or "no words", "code": f"http_{status}"}
    if fault["code"] == "not_enough_resources":
        return ResourceError(f"{fault['message']} ({fault['code']})")
    return error_of(fault) if status in REFUSALS else ComponentError(f"{fault['message']} ({fault['code']})")


def error_of(fault: dict[str, Any], what: str = "") -> RequestError:
    return RequestError(f"{what}{fault['message']}", str(fault["code"]))
