"""The requests that a contract has sent to its server: each is read by a task of its own, and may be sent again.

Guarantees: while the gate is closed nothing is sent, and what was asked for meanwhile is sent when it opens; a request
is never with the server under two names at once that anybody listens to; none of its pieces is lost or told twice. It
knows no routes: `ask` does, and it is called anew for every time that a request is sent.
"""

import asyncio
import itertools
import secrets
from collections.abc import AsyncIterator, Callable, Iterable, Sequence

from streamrl.engines.server.contract import Piece
from streamrl.types import GenerationRequest


class Sent:
    """A request that was sent under the name `rid`. heard: whether a piece of it came."""

    def __init__(self, request: GenerationRequest) -> None:
        self.request = request
        self.rid = ""
        self.heard = False
        self.news: asyncio.Queue[Piece | BaseException | None] = asyncio.Queue()
        self.reading: asyncio.Task[None]


class Sendings:
    """For one contract, in its event loop.

    Example:
        sendings = Sendings(ask)                    # ask(sent): the pieces of a request, to their end
        async for piece in sendings.pieces(request): ...
        sendings.close_gate()                       # an update begins
        await sendings.take_back_unacknowledged()
        sendings.open_gate()                        # they are sent anew
    """

    def __init__(self, ask: Callable[[Sent], AsyncIterator[Piece]]) -> None:
        self._ask = ask
        self._secret = secrets.token_hex(8)
        self._numbers = itertools.count()
        self._sent: dict[str, Sent] = {}
        self._gate = asyncio.Event()
        self._gate.set()

    async def pieces(self, request: GenerationRequest) -> AsyncIterator[Piece]:
        """Send it, and give what the server says of it. Raises what `ask` raises."""
        sent = self._sent[request.request_id] = Sent(request)
        self._send(sent)
        try:
            while (news := await sent.news.get()) is not None:
                if isinstance(news, BaseException):
                    raise news
                yield news
        finally:
            if self._sent.get(request.request_id) is sent:
                del self._sent[request.request_id]
            await _cancelled([sent])

    def drop(self, request_ids: Sequence[str]) -> list[str]:
        """End here those of which nothing came yet, and give the names of the others, which the server must end.

        An abort that comes before its request has reached the server's scheduler is lost. Without a piece it may be
        such a one: its connection is closed, which always works."""
        known = [self._sent[one] for one in request_ids if one in self._sent]
        with_server = [sent.rid for sent in known if sent.heard]
        for sent in known:
            if not sent.heard:
                sent.heard = True  # it is not to be sent again
                sent.news.put_nowait(Piece.aborted())
                sent.news.put_nowait(None)
        return with_server

    def close_gate(self) -> None:
        """Nothing is sent from now on."""
        self._gate.clear()

    def open_gate(self) -> None:
        self._gate.set()

    async def take_back_unacknowledged(self) -> None:
        """Have those of which nothing came yet sent again when the gate opens. The server may begin them only after an
        update, as all of the new version, and would find the prefixes of the version under which they were sent."""
        unheard = [one for one in self._sent.values() if not one.heard]
        await _cancelled(unheard)
        for one in unheard:
            # Meanwhile it may have ended, or nobody wants it any more.
            if one.reading.cancelled() and self._sent.get(one.request.request_id) is one and not one.heard:
                self._send(one)

    def _send(self, sent: Sent) -> None:
        # A name that the server never had, and that is not the beginning of another: an abort may reach all that begin
        # with the one given, and a stream that ended late may end whatever has its name then.
        sent.rid = f"{self._secret}:{next(self._numbers)}:{sent.request.request_id}"
        sent.reading = asyncio.create_task(self._read(sent))
        sent.reading.add_done_callback(lambda task: _over(sent, task))

    async def _read(self, sent: Sent) -> None:
        await self._gate.wait()
        async for piece in self._ask(sent):
            sent.heard = True
            sent.news.put_nowait(piece)


def _over(sent: Sent, reading: "asyncio.Task[None]") -> None:
    """Nothing comes any more; unless it was taken back, and is to be sent again."""
    if not reading.cancelled():
        sent.news.put_nowait(reading.exception())


async def _cancelled(sendings: Iterable[Sent]) -> None:
    tasks = [sent.reading for sent in sendings]
    for task in tasks:
        if not task.cancelling():  # a second time would break off the closing of its connection
            task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
