"""Requests of clients at a replica, which its engine answers beside the stream.

They are outside admission and the books: the queue knows nothing of them, no seed of the training is touched, and what
they sample is told to the gateway alone. The gateway asks for news with a call that waits; one is answered each
`TELL_S`, with all that came meanwhile. A gateway that asks no more for `SILENCE_S` is gone, and its requests are
aborted; so they are when its successor, of a later session, asks. One event loop uses this; it knows neither Ray nor
HTTP.
"""

import asyncio
from collections.abc import Sequence

import numpy as np

from streamrl.errors import FencedError
from streamrl.gateway.token_updates import TokenUpdate, final_update, update_of
from streamrl.services.rollout.engine_thread import EngineThread
from streamrl.services.rollout.rows import finite
from streamrl.types import FinishReason, GenerationRequest, GenerationResult, PartialTokens

PREFIX = "guest/"
"""Of the ids of their requests: no rollout's and no evaluation's begins so."""
TELL_S = 0.05
"""From one message to the next, at least: one costs about the same with a token as with many."""
WAIT_S = 1.0
"""Seconds after which a question for news is answered with none."""
SILENCE_S = 5.0
"""Seconds without a question after which a gateway is gone."""


class ClientRequests:
    """The client requests of one replica. session: the number of a gateway, higher for each that is started.

    Example:
        client_requests = ClientRequests("rollout-0", thread)
        client_requests.order(session, requests, aborted=[])
        news = await client_requests.updates(session)
        rest = client_requests.take(results)             # of an engine step: those of others come back
    """

    def __init__(self, name: str, thread: EngineThread) -> None:
        self._name = name
        self._thread = thread
        self._session = -1
        self._running: set[str] = set()
        self._untold: list[TokenUpdate] = []
        self._some = asyncio.Event()
        self._silence: asyncio.TimerHandle | None = None
        self._next_message = 0.0

    def __len__(self) -> int:
        return len(self._running)

    def order(self, session: int, requests: Sequence[GenerationRequest], aborted: Sequence[str]) -> None:
        """Submit some requests, and abort others, of which no more news come."""
        self._greet(session)
        # In the order in which the engine is told: the reports of its thread are of what it has.
        gone = [request_id for request_id in aborted if request_id in self._running]
        self._leave(gone)
        if requests:
            ids = [request.request_id for request in requests]
            self._running.update(ids)
            self._thread.watch(add=ids)
            self._thread.submit(requests)

    async def updates(self, session: int) -> list[TokenUpdate]:
        """What came since the last question; waits for some, `WAIT_S` at most."""
        self._greet(session)
        self._still()
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(WAIT_S):
                await self._some.wait()
                await asyncio.sleep(self._next_message - loop.time())
        except TimeoutError:
            pass
        finally:
            self._listen()
        self._next_message = loop.time() + TELL_S
        if session < self._session:
            return []
        news, self._untold = self._untold, []
        self._some.clear()
        return news

    def take(self, results: Sequence[GenerationResult]) -> list[GenerationResult]:
        """Keep what answers client requests; the rest comes back."""
        others = []
        for result in results:
            if not result.request_id.startswith(PREFIX):
                others.append(result)
            elif result.request_id in self._running:
                self._running.discard(result.request_id)
                self._thread.watch(drop=[result.request_id])
                self._deliver(final_update(finite(result, self._name)))
        return others

    def take_pieces(self, pieces: Sequence[PartialTokens]) -> list[PartialTokens]:
        """The same of what running requests sampled."""
        others = []
        for piece in pieces:
            if not piece.request_id.startswith(PREFIX):
                others.append(piece)
            elif piece.request_id in self._running:
                self._take_piece(piece)
        return others

    def _take_piece(self, piece: PartialTokens) -> None:
        if np.isfinite(piece.logprobs).all():
            self._deliver(update_of(piece))
            return
        # As of rollouts, such a number leaves the replica nowhere; no token behind it is worth sampling.
        self._deliver(
            TokenUpdate(piece.request_id, 0, [], [], [], FinishReason.ERROR.value, "a log-prob is not finite")
        )
        self._leave([piece.request_id])

    def close(self) -> None:
        """Nobody is told anything more."""
        self._still()

    def _deliver(self, news: TokenUpdate) -> None:
        self._untold.append(news)
        self._some.set()

    def _greet(self, session: int) -> None:
        """The gateway of a later session follows one that is dead: nobody wants what that one asked for."""
        if session < self._session:
            raise FencedError(f"{self._name}: gateway {session} asks, but gateway {self._session} has replaced it")
        if session > self._session:
            self._leave(list(self._running))
            self._session = session
            self._untold.clear()
            self._listen()

    def _listen(self) -> None:
        self._still()
        self._silence = asyncio.get_running_loop().call_later(SILENCE_S, self._silent)

    def _still(self) -> None:
        if self._silence is not None:
            self._silence.cancel()
            self._silence = None

    def _silent(self) -> None:
        self._leave(list(self._running))
        self._untold.clear()

    def _leave(self, ids: Sequence[str]) -> None:
        if ids:
            self._running.difference_update(ids)
            self._thread.watch(drop=ids)
            self._thread.abort(ids)
