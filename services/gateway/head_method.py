"""A client that wants the head of an answer alone (`HEAD`), as load balancers do. ASGI.

Guarantees: its answer has the status and the headers that GET has, and no body; an answer that would go on is over with
its head, as if the client had gone away.
"""

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


class HeadOnly:
    """The two calls of one request, as the application of its GET has them."""

    def __init__(self, receive: Receive, send: Send) -> None:
        self._receive = receive
        self._send = send
        self._told = asyncio.Event()

    async def send(self, message: Message) -> None:
        """The head goes on; with the first of the body the answer ends."""
        if self._told.is_set():
            return
        ends = message["type"] == "http.response.body"
        await self._send({"type": "http.response.body", "body": b""} if ends else message)
        if ends:  # and no sooner: whoever hears of it may break off what is being sent
            self._told.set()

    async def receive(self) -> Message:
        """What the client says, until its answer has ended."""
        said, told = asyncio.ensure_future(self._receive()), asyncio.ensure_future(self._told.wait())
        try:
            await asyncio.wait({said, told}, return_when=asyncio.FIRST_COMPLETED)
            return {"type": "http.disconnect"} if told.done() else said.result()
        finally:
            said.cancel()
            told.cancel()
            await asyncio.gather(said, told, return_exceptions=True)
