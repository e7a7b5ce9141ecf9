"""What happens in a run, for any number of readers: the owner's events, and about once a second how the run stands.

    owner's control socket --events--+
                                     +--> what each reader has not taken --> server-sent events
    picture of the run, each second -+

It asks nobody anything while nobody reads. A reader that comes late first gets what still matters; one that is slow
loses what is past (`streamrl.gateway.page.backlog`); one to whom nothing is told hears that the connection lives.
"""

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from pathlib import Path
from typing import Any

import ray

from streamrl.errors import StreamRLError
from streamrl.gateway.openai.answers import event
from streamrl.gateway.page.backlog import Backlog
from streamrl.services.run.control.server import finite

EVERY_S = 1.0
"""Seconds between two pictures."""
KEEP_ALIVE_S = 10.0
"""Seconds after which a reader hears something: well within what proxies wait, and what a page calls connected."""
MOST = 512
"""Events that one reader may be behind."""
PASSING = frozenset({"step", "warmup", "checkpoint", "replicas", "status"})
"""Kinds of which a reader that comes late gets the newest alone."""
LINE_BYTES = 2**24
"""Of one event of the owner's: one of a thousand replicas has 400 kB."""
KEEP_ALIVE = b": keep-alive\n\n"


class _Reader:
    def __init__(self) -> None:
        # A curve wants each step; how the run stands is said anew each second.
        self.backlog = Backlog(MOST, frozenset({"replicas", "status"}))
        self.some = asyncio.Event()


class RunFeed:
    """See the module. control: the owner's socket; None where there is none. picture: how the run stands now; it may
    raise StreamRLError or RayError, which is told in its place. keep_alive_s, every_s: see the constants."""

    def __init__(
        self,
        control: Path | None,
        picture: Callable[[], Awaitable[dict[str, Any]]],
        *,
        every_s: float = EVERY_S,
        keep_alive_s: float = KEEP_ALIVE_S,
    ) -> None:
        self._control = control
        self._picture = picture
        self._every_s = every_s
        self._keep_alive_s = keep_alive_s
        self._readers: set[_Reader] = set()
        self._story = Backlog(MOST, PASSING)
        self._following: asyncio.Task[None] | None = None
        self._closed = False

    @property
    def readers(self) -> int:
        return len(self._readers)

    async def read(self) -> AsyncGenerator[bytes, None]:
        """Server-sent events, several at a time, until the run's owner ends or `close`."""
        reader = self._join()
        try:
            yield b"".join(self._story.all()) or KEEP_ALIVE
            while True:
                events = reader.backlog.take()
                if events:
                    yield b"".join(events)
                elif self._closed:
                    return
                elif not await self._waited(reader):
                    yield KEEP_ALIVE
        finally:
            self._leave(reader)

    def tell(self, told: dict[str, Any]) -> None:
        """An event, with its `kind`, to all who read."""
        line = event(finite(told))
        self._story.add(told["kind"], line)
        for reader in self._readers:
            reader.backlog.add(told["kind"], line)
            reader.some.set()

    async def close(self) -> None:
        """End every reader, after what it has not taken."""
        self._end_readers()
        if self._following is not None:
            self._following.cancel()
            await asyncio.gather(self._following, return_exceptions=True)

    async def _waited(self, reader: _Reader) -> bool:
        """Wait until there is something for a reader; False when it has waited long."""
        try:
            async with asyncio.timeout(self._keep_alive_s):
                await reader.some.wait()
        except TimeoutError:
            return False
        reader.some.clear()
        return True

    def _join(self) -> _Reader:
        reader = _Reader()
        self._readers.add(reader)
        if self._following is None and not self._closed:
            self._story = Backlog(MOST, PASSING)
            self._following = asyncio.create_task(self._follow(), name="feed")
        return reader

    def _leave(self, reader: _Reader) -> None:
        self._readers.discard(reader)
        if not self._readers and self._following is not None:
            self._following.cancel()
            self._following = None

    async def _follow(self) -> None:
        async with asyncio.TaskGroup() as both:
            both.create_task(self._events())
            both.create_task(self._pictures())

    async def _pictures(self) -> None:
        while True:
            try:
                self.tell({"kind": "status", **await self._picture()})
            except (StreamRLError, ray.exceptions.RayError) as error:
                self.tell({"kind": "status", "error": f"the run does not say how it stands: {error}"})
            await asyncio.sleep(self._every_s)

    async def _events(self) -> None:
        """The owner's, to its end, with which all readers end."""
        if self._control is None:
            return
        try:
            reader, writer = await asyncio.open_unix_connection(self._control, limit=LINE_BYTES)
        except (FileNotFoundError, ConnectionRefusedError) as error:
            self.tell({"kind": "notice", "text": f"the run's owner does not answer: {error.strerror}"})
            return
        try:
            writer.write(b'{"op": "events"}\n')
            while line := await reader.readline():
                self.tell(json.loads(line)["event"])
        except ConnectionError:
            pass  # it was killed, which is an end too
        finally:
            writer.close()
        self._end_readers()

    def _end_readers(self) -> None:
        self._closed = True
        for reader in self._readers:
            reader.some.set()
