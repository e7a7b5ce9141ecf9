"""The gateway behind a proxy that passes a request on with its own prefix in the path. An ASGI middleware.

Guarantees: with the prefix and without it a request reaches the same route, so that probes of the container need none;
a path that merely begins with the same letters is left as it is.
"""

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


class PathPrefix:
    """Takes a prefix off the paths of requests. prefix: begins with a slash and ends with none."""

    def __init__(self, app: App, prefix: str) -> None:
        self._app = app
        self._prefix = prefix

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path", "")
        if path == self._prefix:
            await self._to_page(send)
            return
        if path.startswith(f"{self._prefix}/"):
            raw = scope["raw_path"].removeprefix(self._prefix.encode())
            scope = {**scope, "path": path.removeprefix(self._prefix), "raw_path": raw}
        await self._app(scope, receive, send)

    async def _to_page(self, send: Send) -> None:
        """The page names its files beside itself: without the slash they would be sought beside the prefix."""
        place = f"{self._prefix.rpartition('/')[2]}/".encode()
        headers = [(b"location", place), (b"content-length", b"0")]
        await send({"type": "http.response.start", "status": 307, "headers": headers})
        await send({"type": "http.response.body", "body": b""})
