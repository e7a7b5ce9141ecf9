"""Where the run's own gateway answers what its ingresses pass on.

Guarantees: what an ingress passes on is answered as if its client had come here, all of it by this process, so that a
session, a response that is named later, and a stream of prompts are each in one place. An answer waits for its client:
no more of it is sent while `WINDOW` bytes are on the way. Of an ingress that asks for no news for `SILENCE_S` all
requests end; should it ask again, the number of its visit tells it so. It knows neither Ray nor sockets, and refuses
nobody: the ingress has done that.
"""

import asyncio
import itertools
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import structlog

from streamrl.gateway.page.prometheus import GatewayCounts
from streamrl.services.gateway.ingress.messages import (
    Begin,
    Counted,
    End,
    Ended,
    News,
    Order,
    Received,
    Sent,
    Taken,
    Wants,
)

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
App = Callable[[Scope, Callable[[], Awaitable[Message]], Callable[[Message], Awaitable[None]]], Awaitable[None]]

WINDOW: Final = 2**20
WAIT_S = 1.0
"""Seconds after which a question for news is answered with none."""
TELL_S = 0.02
"""From one message to the next, at least."""
SILENCE_S = 5.0
"""Seconds without a question after which an ingress is gone."""


@dataclass(slots=True, eq=False)
class _Ingress:
    name: str
    visit: int
    news: list[News] = field(default_factory=list)
    some: asyncio.Event = field(default_factory=asyncio.Event)
    calls: "dict[int, _Call]" = field(default_factory=dict)
    silence: asyncio.TimerHandle | None = None
    next_message: float = 0.0

    def tell(self, news: News) -> None:
        self.news.append(news)
        self.some.set()


class _Call:
    """One request: what ASGI calls `receive` and `send`."""

    def __init__(self, ingress: _Ingress, begin: Begin) -> None:
        self.number = begin.number
        self._ingress = ingress
        self._body = begin.body
        self._wanted = False
        self._said: asyncio.Queue[Message] = asyncio.Queue()
        self._unread = 0
        self._room = asyncio.Event()
        self.task: asyncio.Task[None] | None = None

    async def receive(self) -> Message:
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        if not self._wanted and self._said.empty():
            # One that was given up before has asked already.
            self._wanted = True
            self._ingress.tell(Wants(self.number))
        message = await self._said.get()
        if message["type"] == "http.disconnect":
            self._said.put_nowait(message)  # whoever asks again is told again
        return message

    async def send(self, message: Message) -> None:
        num_bytes = len(message.get("body", b""))
        # Compared without this message: a piece may be longer than the window, and what is taken is told in quarters.
        while self._unread >= WINDOW:
            self._room.clear()
            await self._room.wait()
        self._unread += num_bytes
        self._ingress.tell(Sent(self.number, dict(message)))

    def received(self, message: Message) -> None:
        self._wanted = False
        self._said.put_nowait(message)

    def taken(self, num_bytes: int) -> None:
        self._unread -= num_bytes
        self._room.set()

    def end(self) -> None:
        if self.task is not None:
            self.task.cancel()


class RelayDesk:
    """See the module. app: the gateway's, without its guard. counts: of all gateways of the run.

    Example:
        visit = desk.take("ingress-a", [Begin(0, scope, body)])
        visit, news = await desk.news("ingress-a")
    """

    def __init__(self, app: App, counts: GatewayCounts) -> None:
        self._app = app
        self._counts = counts
        self._visits = itertools.count()
        self._ingresses: dict[str, _Ingress] = {}

    @property
    def running(self) -> int:
        """Requests under way that were passed on."""
        return sum(len(one.calls) for one in self._ingresses.values())

    def take(self, name: str, orders: Sequence[Order]) -> int:
        """What an ingress has to say, in order. The number of its visit: requests of a lower one were given up."""
        ingress = self._known(name)
        for order in orders:
            if isinstance(order, Counted):
                self._count(order)
            elif isinstance(order, Begin):
                self._begin(ingress, order)
            elif (call := ingress.calls.get(order.number)) is not None:
                _tell(call, order)
        return ingress.visit

    async def news(self, name: str) -> tuple[int, list[News]]:
        """The number of its visit, and what came for an ingress since it asked last; waits for some, `WAIT_S` at
        most."""
        ingress = self._known(name)
        _still(ingress)
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(WAIT_S):
                await ingress.some.wait()
                await asyncio.sleep(ingress.next_message - loop.time())
        except TimeoutError:
            pass
        finally:
            self._listen(ingress)
        ingress.next_message = loop.time() + TELL_S
        news, ingress.news = ingress.news, []
        ingress.some.clear()
        return ingress.visit, news

    async def close(self) -> None:
        """End all requests that were passed on."""
        tasks = [call.task for one in self._ingresses.values() for call in one.calls.values() if call.task is not None]
        for ingress in list(self._ingresses.values()):
            self._gone(ingress)
        await asyncio.gather(*tasks, return_exceptions=True)

    def _known(self, name: str) -> _Ingress:
        if name not in self._ingresses:
            self._ingresses[name] = _Ingress(name, next(self._visits))
            self._listen(self._ingresses[name])
        return self._ingresses[name]

    def _begin(self, ingress: _Ingress, begin: Begin) -> None:
        call = ingress.calls[begin.number] = _Call(ingress, begin)
        work = self._app(begin.scope, call.receive, call.send)
        call.task = asyncio.ensure_future(work)
        call.task.add_done_callback(partial(self._ended, ingress, call))

    def _ended(self, ingress: _Ingress, call: _Call, task: "asyncio.Task[None]") -> None:
        ingress.calls.pop(call.number, None)
        failed = task.cancelled() or task.exception() is not None
        if not task.cancelled() and (error := task.exception()) is not None:
            structlog.get_logger().warning("an answer that was passed on failed", error=repr(error))
        ingress.tell(Ended(call.number, failed))

    def _count(self, counted: Counted) -> None:
        if counted.route:
            self._counts.answered(counted.route, counted.count)
        else:
            self._counts.sampled(counted.count)

    def _listen(self, ingress: _Ingress) -> None:
        _still(ingress)
        ingress.silence = asyncio.get_running_loop().call_later(SILENCE_S, self._gone, ingress)

    def _gone(self, ingress: _Ingress) -> None:
        _still(ingress)
        self._ingresses.pop(ingress.name, None)
        for call in list(ingress.calls.values()):
            call.end()


def _tell(call: _Call, order: Received | Taken | End) -> None:
    match order:
        case Received(message=message):
            call.received(message)
        case Taken(num_bytes=num_bytes):
            call.taken(num_bytes)
        case End():
            call.end()


def _still(ingress: _Ingress) -> None:
    if ingress.silence is not None:
        ingress.silence.cancel()
        ingress.silence = None
