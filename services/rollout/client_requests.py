"""Requests of clients at a replica, which its engine answers beside the stream.

They are outside admission and the books: the queue knows nothing of them, no seed of the training is touched, and what
they sample is told to the gateway that asked alone. A run may have several gateways, each with a name of its own. A
gateway asks for news with a call that waits; one is answered each `TELL_S`, with all that came meanwhile. A gateway
that asks no more for `SILENCE_S` is gone, and its requests are aborted; so they are when its successor, of its name and
a later session, asks. One that only stood still hears of each that it was given up, when it asks again. One event loop
uses this; it knows neither Ray nor HTTP.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from streamrl.errors import FencedError
from streamrl.gateway.token_updates import TokenUpdate, final_update, given_up, update_of
from streamrl.services.rollout.engine_thread import EngineThread
from streamrl.services.rollout.rows import finite
from streamrl.types import FinishReason, GenerationRequest, GenerationResult, PartialTokens

PREFIX = "guest/"
"""Of the ids of their requests: no rollout's and no evaluation's begins so."""
GATEWAY = "gateway"
"""The name of the gateway that every run with clients has."""
TELL_S = 0.05
"""From one message to the next, at least: one costs about the same with a token as with many."""
WAIT_S = 1.0
"""Seconds after which a question for news is answered with none."""
SILENCE_S = 5.0
"""Seconds without a question after which a gateway is gone."""
MOST_GATEWAYS = 1024
"""That are remembered; beyond them the one that asked first is forgotten if it is gone."""


@dataclass(slots=True, eq=False)
class _Caller:
    """One gateway. session: the number of the newest of its name. routed: of those that run, whose experts it is told.
    given_up: those that run of which it is told nothing but that. untold: what it has not heard."""

    name: str
    session: int = -1
    running: set[str] = field(default_factory=set)
    routed: set[str] = field(default_factory=set)
    given_up: set[str] = field(default_factory=set)
    untold: list[TokenUpdate] = field(default_factory=list)
    some: asyncio.Event = field(default_factory=asyncio.Event)
    silence: asyncio.TimerHandle | None = None
    next_message: float = 0.0

    def still(self) -> None:
        if self.silence is not None:
            self.silence.cancel()
            self.silence = None


class ClientRequests:
    """The client requests of one replica. session: the number of a gateway, higher for each of its name that is
    started. gateway: its name; the requests of two gateways have different ids.

    Example:
        client_requests = ClientRequests("rollout-0", thread)
        client_requests.order(session, requests, aborted=[])
        news = await client_requests.updates(session)
        rest = client_requests.take(results)             # of an engine step: those of others come back
    """

    def __init__(self, name: str, thread: EngineThread) -> None:
        self._name = name
        self._thread = thread
        self._callers: dict[str, _Caller] = {}
        self._running: dict[str, _Caller] = {}

    def __len__(self) -> int:
        return len(self._running)

    def order(
        self, session: int, requests: Sequence[GenerationRequest], aborted: Sequence[str], gateway: str = GATEWAY
    ) -> None:
        """Submit some requests, and abort others, of which no more news come."""
        caller = self._greet(session, gateway)
        # In the order in which the engine is told: the reports of its thread are of what it has.
        gone = [request_id for request_id in aborted if request_id in caller.running]
        self._leave(caller, gone)
        if requests:
            ids = [request.request_id for request in requests]
            caller.running.update(ids)
            caller.routed.update(request.request_id for request in requests if request.tells_routes)
            self._running.update(dict.fromkeys(ids, caller))
            self._thread.watch(add=ids)
            self._thread.submit(requests)

    async def updates(self, session: int, gateway: str = GATEWAY) -> list[TokenUpdate]:
        """What came since the last question; waits for some, `WAIT_S` at most."""
        caller = self._greet(session, gateway)
        caller.still()
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(WAIT_S):
                await caller.some.wait()
                await asyncio.sleep(caller.next_message - loop.time())
        except TimeoutError:
            pass
        finally:
            self._listen(caller)
        caller.next_message = loop.time() + TELL_S
        if session < caller.session:
            return []
        news, caller.untold = caller.untold, []
        caller.some.clear()
        return news

    def take(self, results: Sequence[GenerationResult]) -> list[GenerationResult]:
        """Keep what answers client requests; the rest comes back."""
        others = []
        for result in results:
            if not result.request_id.startswith(PREFIX):
                others.append(result)
            elif (caller := self._running.pop(result.request_id, None)) is not None:
                caller.running.discard(result.request_id)
                self._thread.watch(drop=[result.request_id])
                _deliver(caller, self._end_of(caller, result))
                caller.routed.discard(result.request_id)
        return others

    def _end_of(self, caller: _Caller, result: GenerationResult) -> TokenUpdate:
        if result.request_id not in caller.given_up:
            return final_update(finite(result, self._name), routes=result.request_id in caller.routed)
        caller.given_up.remove(result.request_id)
        return given_up(result.request_id)

    def take_pieces(self, pieces: Sequence[PartialTokens]) -> list[PartialTokens]:
        """The same of what running requests sampled."""
        others = []
        for piece in pieces:
            if not piece.request_id.startswith(PREFIX):
                others.append(piece)
            elif (caller := self._running.get(piece.request_id)) and piece.request_id not in caller.given_up:
                self._take_piece(caller, piece)
        return others

    def _take_piece(self, caller: _Caller, piece: PartialTokens) -> None:
        if np.isfinite(piece.logprobs).all():
            _deliver(caller, update_of(piece))
            return
        # As of rollouts, such a number leaves the replica nowhere; no token behind it is worth sampling.
        end = TokenUpdate(piece.request_id, 0, [], [], [], FinishReason.ERROR.value, "a log-prob is not finite")
        _deliver(caller, end)
        self._leave(caller, [piece.request_id])

    def close(self) -> None:
        """Nobody is told anything more."""
        for caller in self._callers.values():
            caller.still()

    def _greet(self, session: int, gateway: str) -> _Caller:
        """The gateway of a later session follows one that is dead: nobody wants what that one asked for."""
        caller = self._callers.get(gateway) or self._new(gateway)
        if session < caller.session:
            raise FencedError(f"{self._name}: {gateway} {session} asks, but {gateway} {caller.session} has replaced it")
        if session > caller.session:
            self._leave(caller, list(caller.running))
            caller.session = session
            caller.untold.clear()
            self._listen(caller)
        return caller

    def _new(self, gateway: str) -> _Caller:
        first = next(iter(self._callers.values()), None)
        if len(self._callers) >= MOST_GATEWAYS and first is not None and first.silence is None and not first.running:
            del self._callers[first.name]
        caller = self._callers[gateway] = _Caller(gateway)
        return caller

    def _listen(self, caller: _Caller) -> None:
        caller.still()
        caller.silence = asyncio.get_running_loop().call_later(SILENCE_S, self._silent, caller)

    def _silent(self, caller: _Caller) -> None:
        """What it has not heard is let go, whole answers too: it may never ask again. What runs is told as given up
        when the engine has ended it, for the gateway may send it again at once, under the same id."""
        caller.silence = None
        ended = {news.request_id: None for news in caller.untold if news.request_id not in caller.running}
        caller.untold = [given_up(request_id) for request_id in ended]
        if runs := caller.running - caller.given_up:
            caller.given_up |= runs
            self._thread.watch(drop=runs)
            self._thread.abort(list(runs))

    def _leave(self, caller: _Caller, ids: Sequence[str]) -> None:
        if ids:
            caller.running.difference_update(ids)
            caller.given_up.difference_update(ids)
            caller.routed.difference_update(ids)
            for request_id in ids:
                self._running.pop(request_id, None)
            self._thread.watch(drop=ids)
            self._thread.abort(ids)


def _deliver(caller: _Caller, news: TokenUpdate) -> None:
    caller.untold.append(news)
    caller.some.set()
