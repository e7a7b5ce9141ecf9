"""How an ingress has the run's own gateway answer a request: over one channel for all requests.

Guarantees: what is passed on is answered by one gateway, or refused; an answer that was begun and cannot be ended is
broken off, never ended as if it were whole. When the gateway dies, those who wait are told, and its successor is asked
from then on; so they are when it has given them up, since this process stood still for too long. Knows nothing of HTTP
but ASGI's messages.
"""

import asyncio
import itertools
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final

import ray
from ray.actor import ActorHandle

from streamrl.gateway.refusal import Refusal
from streamrl.services.actors.deaths import cause_of
from streamrl.services.gateway.ingress.desk import WINDOW
from streamrl.services.gateway.ingress.messages import Begin, Counted, End, Ended, News, Order, Received, Sent, Taken

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

_SCOPE: Final = ("type", "http_version", "method", "scheme", "path", "raw_path", "query_string", "headers")


class BrokenOffError(Exception):
    """The rest of an answer does not come; its client sees a connection that ends early."""


class _Call:
    """visit: in which the gateway took it; None until it has."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.visit: int | None = None
        self.news: asyncio.Queue[News | Refusal] = asyncio.Queue()
        self.started = self.whole = False
        self.owed = 0

    async def pass_on(self, message: Message, send: Send) -> int:
        """Give a piece of the answer to the client; the bytes that may be acknowledged now."""
        await send(message)
        self.started = True
        self.whole = message["type"] == "http.response.body" and not message.get("more_body", False)
        self.owed += len(message.get("body", b""))
        if self.owed < WINDOW // 4:
            return 0
        taken, self.owed = self.owed, 0
        return taken


class Relay:
    """See the module. name: of the ingress. tell: takes what belongs into a log.

    Example:
        relay.use(handle)                 # None: there is no gateway at the moment
        await relay.answer(scope, body, receive, send)
    """

    def __init__(self, name: str, tell: Callable[[str], None]) -> None:
        self._name = name
        self._tell = tell
        self._numbers = itertools.count()
        self._home: ActorHandle | None = None
        self._talking: asyncio.Task[None] | None = None
        self._calls: dict[int, _Call] = {}
        self._orders: list[Order] = []
        self._some = asyncio.Event()

    @property
    def ready(self) -> bool:
        """Whether there is a gateway to pass requests on to."""
        return self._talking is not None and not self._talking.done()

    def use(self, home: ActorHandle | None) -> None:
        """The run's own gateway from now on; requests that another one had end."""
        if home == self._home and self.ready:
            return
        self._home = home
        if self._talking is not None:
            self._talking.cancel()
            self._talking = None
        self._lost()
        if home is not None:
            self._talking = asyncio.create_task(self._talk(home), name="relay")
            self._talking.add_done_callback(self._talked)

    def count(self, route: str, count: int) -> None:
        """As in `Counted`."""
        self._order(Counted(route, count))

    async def answer(self, scope: Scope, body: bytes | None, receive: Receive, send: Send) -> None:
        """Have a request answered. body: None where it is to be read as the answer wants it. Raises Refusal where no
        answer was begun, and BrokenOffError."""
        if not self.ready:
            raise _no_gateway()
        call = _Call(next(self._numbers))
        self._calls[call.number] = call
        self._order(Begin(call.number, {**{key: scope[key] for key in _SCOPE if key in scope}, "root_path": ""}, body))
        reading: set[asyncio.Task[None]] = set()
        try:
            while not isinstance(news := await call.news.get(), Ended):
                await self._act(call, news, receive, send, reading)
            if news.failed and not call.whole:
                raise BrokenOffError("the run's gateway failed over it")
        finally:
            for task in reading:
                task.cancel()
            if self._calls.pop(call.number, None) is not None:
                self._order(End(call.number))

    async def close(self) -> None:
        self.use(None)

    async def _act(
        self, call: _Call, news: News | Refusal, receive: Receive, send: Send, reading: "set[asyncio.Task[None]]"
    ) -> None:
        if isinstance(news, Refusal):
            raise BrokenOffError(str(news)) if call.started else news
        if isinstance(news, Sent):
            if taken := await call.pass_on(news.message, send):
                self._order(Taken(call.number, taken))
            return
        task = asyncio.create_task(self._read(call.number, receive))
        reading.add(task)
        task.add_done_callback(reading.discard)

    async def _read(self, number: int, receive: Receive) -> None:
        self._order(Received(number, dict(await receive())))

    def _order(self, order: Order) -> None:
        if self.ready:
            self._orders.append(order)
            self._some.set()

    def _lost(self) -> None:
        """Nothing more comes of what was passed on."""
        self._orders.clear()
        calls, self._calls = self._calls, {}
        for call in calls.values():
            call.news.put_nowait(_no_gateway())

    async def _talk(self, home: ActorHandle) -> None:
        try:
            async with asyncio.TaskGroup() as both:
                both.create_task(self._listen(home))
                both.create_task(self._send(home))
        except* ray.exceptions.RayError as errors:
            self._tell(f"the run's gateway does not answer any more: {cause_of(errors.exceptions[0])}")

    def _talked(self, task: "asyncio.Task[None]") -> None:
        """A channel ended, whatever ended it: those who wait on it must not wait for ever."""
        if task is self._talking:
            if not task.cancelled() and (error := task.exception()) is not None:
                self._tell(f"the channel to the run's gateway failed, a bug: {error!r}")
            self._lost()

    async def _listen(self, home: ActorHandle) -> None:
        while True:
            visit, some = await home.relay_news.remote(self._name)
            self._visits(visit)
            for news in some:
                # What has ended is forgotten first: an order for it would be for nobody.
                call = self._calls.pop(news.number, None) if isinstance(news, Ended) else self._calls.get(news.number)
                if call is not None:
                    call.news.put_nowait(news)

    async def _send(self, home: ActorHandle) -> None:
        while True:
            await self._some.wait()
            self._some.clear()
            orders, self._orders = self._orders, []
            if orders:
                visit = await home.relay_orders.remote(self._name, orders)
                for order in orders:
                    if isinstance(order, Begin) and (call := self._calls.get(order.number)) is not None:
                        call.visit = visit

    def _visits(self, visit: int) -> None:
        """Nothing more comes of what was passed on in an earlier visit."""
        for call in [one for one in self._calls.values() if one.visit is not None and one.visit < visit]:
            del self._calls[call.number]
            call.news.put_nowait(_given_up())


def _no_gateway() -> Refusal:
    return Refusal(503, "run_not_ready", "the run's gateway is being started; ask again soon")


def _given_up() -> Refusal:
    return Refusal(503, "run_not_ready", "the run's gateway did not hear of this request for too long; send it again")
