"""The head of a request, before there is a request that the guard could look at: how long it may be, and how slow.

The HTTP server bounds neither by itself: whoever reaches the port, without any token, could have it hold a head that
never ends, or connections that never say anything. Such a connection is answered 400 in plain text, or closed.
"""

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEAD_BYTES = 2**16
"""Of a head at most, and of what one read brings beside it."""


class BoundedHeads(HttpToolsProtocol):
    """One connection. head_s: seconds until the head of its request is whole, from its first byte, or from the
    connection's begin."""

    def __init__(self, *arguments: Any, head_s: float, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self._head_s = head_s
        self._bytes = 0
        self._whole = False
        self._late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._begin()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        began_whole = self._whole
        super().data_received(data)
        if began_whole or self._whole or self.transport.is_closing():
            return
        self._bytes += len(data)
        if self._bytes > HEAD_BYTES:
            self._end()
            self.send_400_response(f"The head of a request has {HEAD_BYTES} bytes at most.")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._begin()

    def on_headers_complete(self) -> None:
        self._whole = True
        self._end()
        super().on_headers_complete()

    def _begin(self) -> None:
        self._end()
        self._bytes, self._whole = 0, False
        self._late = self.loop.call_later(self._head_s, self.transport.abort)

    def _end(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None
