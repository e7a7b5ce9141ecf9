"""What stands before every route: who may, how much, how many, how long. An ASGI middleware; knows no route's business.

Guarantees, in this order: nothing of a body is read from whom the doorkeeper refuses; none is held that is longer
than the limit, and no more of them than requests are answered at once; what is nested too deep reaches no route; a
body that does not come, and an answer that is not read, end with their deadlines. Every refusal is JSON with a code.
A body that a route streams is that route's. HEAD is answered as GET, without a body.
"""

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from typing import Any

from streamrl.gateway.auth import Doorkeeper
from streamrl.gateway.dialects import refusal_body
from streamrl.gateway.nesting import check_nesting
from streamrl.gateway.refusal import Refusal, json_bytes
from streamrl.gateway.routes import STREAMED, needed_scope, route_of
from streamrl.gateway.sessions.session_body import HEADER, HEADERS
from streamrl.services.gateway.head_method import HeadOnly

_SESSION_HEADERS = frozenset(header.encode() for header in HEADERS)
Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
Count = Callable[[str, int], None]


@dataclass(frozen=True, slots=True)
class Patience:
    """Seconds that a client may take. head_s: until the head of its request is here. body_s: until its body is. send_s:
    without reading any of its answer. idle_s: without a line of a stream of prompts, while no prompt waits for its
    answer. hold_s: for which its question for a newer version is held, shorter than what proxies usually allow."""

    head_s: float = 30.0
    body_s: float = 30.0
    send_s: float = 30.0
    idle_s: float = 300.0
    hold_s: float = 25.0


PATIENCE = Patience()


class Guard:
    """See the module. count: takes (route, status) of each answer."""

    def __init__(
        self,
        app: App,
        doorkeeper: Doorkeeper,
        *,
        max_body_bytes: int,
        max_requests: int,
        count: Count,
        patience: Patience = PATIENCE,
    ) -> None:
        self._app = app
        self._doorkeeper = doorkeeper
        self._max_body_bytes = max_body_bytes
        self._max_requests = max_requests
        self._count = count
        self._patience = patience
        self._running = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        if scope["method"] == "HEAD":
            answer = HeadOnly(receive, send)
            scope, receive, send = {**scope, "method": "GET"}, answer.receive, answer.send
        route = route_of(scope["path"]) or "other"
        watched = self._watched(route, send)
        try:
            await self._guarded(scope, receive, watched)
        except Refusal as refusal:
            await refuse(refusal, scope["path"], watched)
        except TimeoutError:
            # The client reads nothing: there is nobody to tell. The connection closes with an answer that is not whole.
            return

    async def _guarded(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = _headers(scope)
        needed = needed_scope(scope["path"])
        said = headers.get("host", ""), headers.get("origin", ""), _authorization(headers)
        if (refusal := self._doorkeeper.refusal(*said, needed)) is not None:
            raise refusal
        if needed is None:
            await self._app(scope, whole_body(b"", receive), send)
            return
        if (session := self._doorkeeper.session_of(said[2])) is not None:
            scope = _of_session(scope, session)
        if self._running >= self._max_requests:
            what = f"{self._running} requests are being answered (gateway.max_requests); try again soon"
            raise Refusal(429, "too_many_requests", what)
        self._running += 1
        try:
            if scope["path"] in STREAMED:
                await self._app(scope, receive, send)
            else:
                body = await self._body(headers, receive)
                check_nesting(body)
                await self._app(scope, whole_body(body, receive), send)
        finally:
            self._running -= 1

    async def _body(self, headers: dict[str, str], receive: Receive) -> bytes:
        """All of it. Raises Refusal for one that is too long or too slow."""
        length = headers.get("content-length", "0")
        if length.isdecimal() and int(length) > self._max_body_bytes:
            raise self._too_long()
        body = bytearray()
        try:
            async with asyncio.timeout(self._patience.body_s):
                while True:
                    message = await receive()
                    body += message.get("body", b"")
                    if len(body) > self._max_body_bytes:
                        raise self._too_long()
                    if not message.get("more_body", False):
                        return bytes(body)
        except TimeoutError as error:
            raise Refusal(
                408, "body_too_slow", f"the body did not arrive within {self._patience.body_s:g} s"
            ) from error

    def _too_long(self) -> Refusal:
        return Refusal(
            413, "body_too_long", f"a body has {self._max_body_bytes} bytes at most (gateway.max_body_bytes)"
        )

    def _watched(self, route: str, send: Send) -> Send:
        async def watched(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._count(route, message["status"])
            async with asyncio.timeout(self._patience.send_s):
                await send(message)

        return watched


def _of_session(scope: Scope, session: str) -> Scope:
    """The request of a client whose token is that of one session: it is a part of that and of no other."""
    others = [(name, value) for name, value in scope["headers"] if name.lower() not in _SESSION_HEADERS]
    return {**scope, "headers": [*others, (HEADER.encode(), session.encode("latin-1"))]}


def _authorization(headers: dict[str, str]) -> str:
    """Anthropic's clients send a key under another name."""
    key = headers.get("x-api-key")
    return headers.get("authorization", "") if key is None or "authorization" in headers else f"Bearer {key}"


async def refuse(refusal: Refusal, path: str, send: Send) -> None:
    """Answer with a refusal. The connection closes: what may be left of the body is not read."""
    content = json_bytes(refusal_body(refusal, path))
    headers = {**refusal.headers(), "content-type": "application/json", "content-length": str(len(content))}
    if refusal.status in (408, 413):
        headers["connection"] = "close"
    pairs = [(name.encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": refusal.status, "headers": pairs})
    await send({"type": "http.response.body", "body": content})


def _headers(scope: Scope) -> dict[str, str]:
    """By name; two of one name become one that is nobody's."""
    found: dict[str, str] = {}
    for name, value in scope["headers"]:
        key, text = name.decode("latin-1").lower(), value.decode("latin-1")
        found[key] = f"{found[key]}, {text}" if key in found else text
    return found


def whole_body(body: bytes, receive: Receive) -> Receive:
    """Receives a body that is here already, then what the connection says: that the client went away."""
    given = False

    async def whole() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return whole
