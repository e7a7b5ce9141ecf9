"""HTTP to a server on this machine: one client, and what it says in this project's errors.

Guarantees: nothing is read from the environment (a proxy would see the tokens), only loopback addresses and Unix
sockets are spoken to, and a connection that breaks is a ProcessDiedError that names the route. It sets no time limit,
since only its caller knows how long an answer may take, and does not know what any answer means.
"""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from streamrl.config.rules.loopback import fault_of_endpoint
from streamrl.errors import ComponentError, ConfigError, ProcessDiedError

_LONGEST = 2000
"""Characters of a server's own words in an error."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back on `route`: the status and the body."""

    route: str
    status: int
    content: bytes

    @property
    def ok(self) -> bool:
        return self.status < 400

    def json(self) -> Any:
        """The body. Raises ComponentError when it is not JSON."""
        try:
            return msgspec.json.decode(self.content)
        except msgspec.DecodeError as error:
            raise ComponentError(f"{self.route} answers what is not JSON ({error}): {self.error_text()}") from error

    def refusal(self) -> ComponentError:
        """The answer as an error."""
        return ComponentError(f"{self.route} answers {self.status}: {self.error_text()}")

    def error_text(self) -> str:
        """The text of an error, in whichever of the usual places it is; else the body."""
        text = self.content.decode(errors="replace").strip()
        try:
            found = _text_of(msgspec.json.decode(self.content))
        except msgspec.DecodeError:
            found = ""
        return (found or text or "(no words)")[:_LONGEST]


def _text_of(body: object) -> str:
    """`{"error": {"message": text}}`, `{"error": text}`, `{"message": text}` or `{"detail": text}`."""
    if isinstance(body, str):
        return body
    if not isinstance(body, dict):
        return ""
    for key in ("error", "message", "detail"):
        value = body.get(key)
        if value:
            return _text_of(value) or str(value)
    return ""


class Http:
    """Requests to one server. For one event loop.

    Example:
        http = Http("http://127.0.0.1:8000")            # or Http(socket=Path("/dev/shm/.../socket"))
        answer = await http.post("/pause", params={"mode": "keep"})
        async with http.stream("/generate", {"stream": True}) as response:
            async for data in response.events(): ...
    """

    def __init__(self, endpoint: str = "http://server", socket: Path | None = None) -> None:
        """Raises ConfigError for an endpoint that is not of this machine."""
        if socket is None and (fault := fault_of_endpoint(endpoint)):
            raise ConfigError(f"rollout.server.endpoint = {endpoint!r}: {fault}")
        self._endpoint = endpoint
        self._socket = socket
        self._opened: aiohttp.ClientSession | None = None

    async def get(self, route: str) -> Answer:
        return await self._ask("GET", route, None, None)

    async def post(self, route: str, body: object = None, params: Mapping[str, str] | None = None) -> Answer:
        return await self._ask("POST", route, body, params)

    async def _ask(self, verb: str, route: str, body: object, params: Mapping[str, str] | None) -> Answer:
        what = f"{verb} {route}"
        kwargs = _payload(body)
        try:
            async with self._session.request(verb, route, params=params, allow_redirects=False, **kwargs) as response:
                return Answer(what, response.status, await response.read())
        except (aiohttp.ClientError, ConnectionError) as error:
            raise _broken(what, error) from error

    @asynccontextmanager
    async def stream(self, route: str, body: object) -> AsyncIterator["Stream"]:
        """POST, and read the answer while it comes. Leaving the block ends the request."""
        what = f"POST {route}"
        try:
            # What is left unread when the block ends closes the connection.
            async with self._session.post(route, allow_redirects=False, **_payload(body)) as response:
                yield Stream(what, response)
        except (aiohttp.ClientError, ConnectionError) as error:
            raise _broken(what, error) from error

    async def close(self) -> None:
        if self._opened is not None:
            await self._opened.close()

    @property
    def _session(self) -> aiohttp.ClientSession:
        """Made in the event loop that uses it. Each request has a connection of its own: servers close those that are
        kept, some of them behind an error and without a word, and a request that meets the closing looks like a server
        that died. One costs a tenth of a millisecond."""
        if self._opened is None:
            options: dict[str, Any] = {"limit": 0, "force_close": True}
            self._opened = aiohttp.ClientSession(
                self._endpoint,
                connector=aiohttp.TCPConnector(**options)
                if self._socket is None
                else aiohttp.UnixConnector(str(self._socket), **options),
                timeout=aiohttp.ClientTimeout(total=None, connect=None, sock_connect=None, sock_read=None),
                cookie_jar=aiohttp.DummyCookieJar(),
                trust_env=False,
            )
        return self._opened


class Stream:
    """An answer that is still coming. Its methods break off with a ProcessDiedError when the connection does."""

    def __init__(self, route: str, response: aiohttp.ClientResponse) -> None:
        self._route = route
        self._response = response

    @property
    def ok(self) -> bool:
        return self._response.status < 400

    async def whole(self) -> Answer:
        """Read it to its end, for an answer that is no stream: a refusal."""
        return Answer(self._route, self._response.status, await self._response.read())

    async def events(self) -> AsyncIterator[bytes]:
        """The data of each server-sent event, `[DONE]` left out."""
        rest = b""
        async for chunk in self._response.content.iter_any():
            *events, rest = (rest + chunk).replace(b"\r\n", b"\n").split(b"\n\n")
            for event in events:
                if event.startswith(b"data:") and (data := event[5:].strip()) != b"[DONE]":
                    yield data


def _payload(body: object) -> dict[str, Any]:
    if body is None:
        return {}
    return {"data": msgspec.json.encode(body), "headers": {"content-type": "application/json"}}


def _broken(route: str, error: Exception) -> ProcessDiedError:
    return ProcessDiedError(f"{route}: the connection broke ({type(error).__name__}: {error})")
