"""Clients of a server that streams: many at once, as many as it takes, or so many a second whatever it takes."""

import asyncio
import time
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any

import aiohttp

ENDS = (b"data: [DONE]\n\n",)
"""One of them is in the last event of a whole answer."""
LIMIT_S = 120.0
"""Seconds after which an answer counts as an error."""


@dataclass
class Answers:
    """seconds: of each whole answer, from its request to its last byte. first: to the first bytes of its body. errors:
    what became of the others."""

    seconds: list[float] = field(default_factory=list)
    first: list[float] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)


class Load:
    """One request that is made again and again, over connections that stay. ends: one of them is in the last event of a
    whole answer.

    Example:
        async with Load(url, headers, body) as load:
            answers = await load.at_once(1000)
    """

    def __init__(self, url: str, headers: dict[str, str], body: dict[str, Any], ends: tuple[bytes, ...] = ENDS) -> None:
        self._url = url
        self._headers = headers
        self._body = body
        self._ends = ends

    async def __aenter__(self) -> "Load":
        limit = aiohttp.ClientTimeout(total=LIMIT_S)
        self._http = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=limit)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.close()

    async def pieces(self) -> list[bytes]:
        """The events of one answer, as they came."""
        async with self._http.post(self._url, json=self._body, headers=self._headers) as response:
            response.raise_for_status()
            return [piece async for piece in response.content.iter_any()]

    async def at_once(self, count: int) -> Answers:
        answers = Answers()
        await asyncio.gather(*(self._one(answers) for _ in range(count)))
        return answers

    async def rate(self, clients: int, seconds: float) -> float:
        """Answers a second that so many clients get, each with a next request when it has its answer."""
        answers, ends = Answers(), time.monotonic() + seconds

        async def client() -> None:
            while time.monotonic() < ends:
                await self._one(answers)

        started = time.monotonic()
        await asyncio.gather(*(client() for _ in range(clients)))
        return len(answers.seconds) / (time.monotonic() - started)

    async def at_rate(self, rate: float, seconds: float) -> Answers:
        """So many requests a second, evenly, however long the answers take."""
        return await self.while_going(rate, asyncio.sleep(seconds))

    async def while_going(self, rate: float, work: Coroutine[Any, Any, None]) -> Answers:
        """The same for as long as something else goes on."""
        answers, loop, going = Answers(), asyncio.get_running_loop(), asyncio.ensure_future(work)
        begins, asked = loop.time(), []
        while not going.done():
            await asyncio.sleep(begins + len(asked) / rate - loop.time())
            asked.append(asyncio.create_task(self._one(answers)))
        await asyncio.gather(going, *asked)
        return answers

    async def _one(self, answers: Answers) -> None:
        started, first, body = time.monotonic(), 0.0, b""
        try:
            async with self._http.post(self._url, json=self._body, headers=self._headers) as response:
                async for piece in response.content.iter_any():
                    first = first or time.monotonic()
                    body += piece
        except (aiohttp.ClientError, TimeoutError) as error:
            answers.errors.append(repr(error))
            return
        last = body[body.rfind(b"data: ") :]
        if response.status == 200 and any(end in last for end in self._ends):
            answers.seconds.append(time.monotonic() - started)
            answers.first.append(first - started)
        else:
            answers.errors.append(f"{response.status} {body[-200:]!r}")
