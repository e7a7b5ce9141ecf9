"""JSON to an HTTP endpoint and back: bounded in how much at once, tried again where that may help."""

import asyncio
import json
from types import TracebackType
from typing import Any

import aiohttp
import stamina

RETRIED = (408, 409, 425, 429)
"""Status codes below 500 after which another try may succeed."""
MOST_BYTES = 2**24
MOST_WAIT_S = 60.0


class EndpointError(RuntimeError):
    """What an endpoint did not do. Its text names the address, the status and what was said."""

    def __init__(self, what: str, *, retry_after_s: float | None = None, final: bool = True) -> None:
        super().__init__(what)
        self.retry_after_s = retry_after_s
        self.final = final


class Endpoint:
    """Posts to one address. Use as an asynchronous context manager.

    concurrency: requests at once. retries: further tries after a connection that failed, a 429 or a server's error,
    with growing waits or what `Retry-After` says. timeout_s: of one try.

    Example:
        async with Endpoint(url, {}, concurrency=8, retries=3, timeout_s=30.0) as endpoint:
            answer = await endpoint.post({"prompt": "..."})     # EndpointError
    """

    def __init__(self, url: str, headers: dict[str, str], *, concurrency: int, retries: int, timeout_s: float) -> None:
        self._url = url
        self._headers = headers
        self._slots = asyncio.Semaphore(concurrency)
        self._retries = retries
        self._timeout = aiohttp.ClientTimeout(total=timeout_s)

    async def __aenter__(self) -> "Endpoint":
        self._session = aiohttp.ClientSession(headers=self._headers, timeout=self._timeout, trust_env=True)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._session.close()

    async def post(self, body: dict[str, Any]) -> Any:
        """What it answers, as JSON. Raises EndpointError once no further try may help."""
        async for attempt in stamina.retry_context(on=_backoff, attempts=self._retries + 1, timeout=None):
            with attempt:
                async with self._slots:
                    return await self._once(body)
        raise AssertionError("the last attempt returns or raises")

    async def _once(self, body: dict[str, Any]) -> Any:
        try:
            async with self._session.post(self._url, json=body) as answer:
                data = await _bounded(answer)
                if answer.status >= 400:
                    said = data[:200].decode(errors="replace")
                    final = answer.status < 500 and answer.status not in RETRIED
                    wait = _seconds(answer.headers.get("Retry-After"))
                    raise EndpointError(f"{self._url}: {answer.status}: {said}", retry_after_s=wait, final=final)
                return json.loads(data)
        except (aiohttp.ClientError, TimeoutError, ConnectionError) as error:
            what = f"{self._url}: {type(error).__name__}: {error}"
            raise EndpointError(what, final=False) from error
        except ValueError as error:
            raise EndpointError(f"{self._url}: the answer is not JSON: {error}") from error


async def _bounded(answer: aiohttp.ClientResponse) -> bytes:
    data = bytearray()
    async for chunk in answer.content.iter_any():
        data += chunk
        if len(data) > MOST_BYTES:
            raise EndpointError(f"{answer.url}: the answer is longer than {MOST_BYTES} bytes")
    return bytes(data)


def _backoff(error: Exception) -> bool | float:
    if not isinstance(error, EndpointError) or error.final:
        return False
    return True if error.retry_after_s is None else min(error.retry_after_s, MOST_WAIT_S)


def _seconds(text: str | None) -> float | None:
    try:
        return max(0.0, float(text)) if text is not None else None
    except ValueError:
        return None  # a date: the usual waits are right enough
