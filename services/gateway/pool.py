"""The replicas as the gateway sees them: who may be asked, what was asked of whom, and what came of it.

Each replica has one channel of two loops. `_listen` asks it for news, one call at a time (waits: the replica; unblocked
by: its engine, or a second). `_send` tells it what is to be begun and aborted, all that has gathered in one call
(waits: requests). A channel ends when its replica dies or leaves; another replica goes on behind what had come of what
it still owes. So one does, or the same, with what a replica gave up while this process stood still. A client sees of
that who sampled which token, and nothing else.

Guarantees: only a replica that has acknowledged a version is asked; every request that was begun ends in news, in a
Refusal, or in `leave`; versions never go back within a completion, so it waits for a replica that serves the newest of
its own, or begins anew where nothing of it was shown. Knows nothing of HTTP.
"""

import asyncio
import itertools
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

import msgspec
import ray
from ray.actor import ActorHandle

from streamrl.gateway.received import ReceivedTokens
from streamrl.gateway.refusal import Refusal
from streamrl.gateway.routing import Routes
from streamrl.gateway.token_updates import GIVEN_UP, TokenUpdate
from streamrl.services.actors.deaths import cause_of
from streamrl.services.rollout.client_requests import GATEWAY, PREFIX
from streamrl.types import GenerationRequest, Version

CONVERSATIONS: Final = 4096
"""Of which it is known who answered last."""


class Replaced(msgspec.Struct, frozen=True):
    """In the place of news: all that came of the request before is void, it was begun anew elsewhere."""

    request_id: str


Word = TokenUpdate | Replaced | Refusal


@dataclass(slots=True, eq=False)
class Begun:
    """One request that somebody waits for. shown: some of it has reached the client, so it cannot be begun anew.
    heard: what came of it."""

    request: GenerationRequest
    updates: "asyncio.Queue[Word]"
    channel: str = ""
    owed: int = 0
    shown: bool = False
    heard: ReceivedTokens = field(default_factory=ReceivedTokens)


@dataclass(slots=True, eq=False)
class _Channel:
    """To one replica. begin, abort: what it is to be told."""

    name: str
    handle: ActorHandle
    begin: list[GenerationRequest] = field(default_factory=list)
    abort: list[str] = field(default_factory=list)
    some: asyncio.Event = field(default_factory=asyncio.Event)
    version: tuple[int, int] | None = None


class Pool:
    """See the module. session: the gateway's number. patience_s: how long a request whose replica died waits for
    another. tell: takes what belongs into a log. name: of the gateway, another one for each of a run.

    Example:
        pool.serve({"rollout-0": handle})
        asked = pool.begin(requests)            # Refusal: there is no replica
        word = await asked[0].updates.get()
        pool.leave(asked)
    """

    def __init__(self, session: int, patience_s: float, tell: Callable[[str], None], name: str = GATEWAY) -> None:
        self._name = name
        self._tell = tell
        self._session = session
        self._patience_s = patience_s
        self._routes = Routes()
        self._channels: dict[str, _Channel] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._asked: dict[str, Begun] = {}
        self._answered: dict[str, str] = {}
        """By conversation, the replica that was asked last, the newest conversation last."""
        self._homeless: dict[str, asyncio.TimerHandle] = {}
        self._numbers = itertools.count()
        self._some_serve = asyncio.Event()

    async def until_ready(self) -> None:
        """Wait for a replica that may be asked."""
        await self._some_serve.wait()

    @property
    def ready(self) -> bool:
        """Whether there is a replica that may be asked."""
        return len(self._routes) > 0

    @property
    def serving(self) -> int:
        """Replicas that may be asked."""
        return len(self._routes)

    @property
    def versions(self) -> list[tuple[int, int]]:
        """Those that the replicas serve."""
        return [one.version for one in self._channels.values() if one.version is not None]

    @property
    def running(self) -> int:
        """Completions under way."""
        return len(self._asked)

    def prefix(self) -> str:
        """What the ids of one client's requests begin with; another one each time."""
        return f"{PREFIX}{self._name}/{self._session}/{next(self._numbers)}"

    def serve(self, replicas: Mapping[str, ActorHandle]) -> None:
        """These replicas serve now, and no others. A replica that was replaced has another handle."""
        for name, channel in list(self._channels.items()):
            if replicas.get(name) != channel.handle:
                self._tasks[name].cancel()
                self._closed(channel)
        for name, handle in replicas.items():
            if name not in self._channels:
                channel = self._channels[name] = _Channel(name, handle)
                task = asyncio.create_task(self._talk(channel), name=f"client requests of {name}")
                task.add_done_callback(partial(self._ended, channel))
                self._tasks[name] = task

    def begin(self, requests: Sequence[GenerationRequest]) -> list[Begun]:
        """Have requests answered, all of them by one replica, which computes equal prompts once; those of one
        conversation by the replica that has its earlier turns in the cache, unless it is busier by more than that is
        worth. Raises Refusal when no replica serves."""
        conversation = requests[0].conversation
        before = self._answered.pop(conversation, None)
        name = self._routes.choose(rather=before, worth=len(requests[0].prompt_ids))
        if name is None:
            raise Refusal(503, "no_replica", "no replica serves at the moment; try again soon")
        if conversation:
            self._answered[conversation] = name
            if len(self._answered) > CONVERSATIONS:
                del self._answered[next(iter(self._answered))]
        updates: asyncio.Queue[Word] = asyncio.Queue()
        asked = [Begun(request, updates) for request in requests]
        for one in asked:
            self._asked[one.request.request_id] = one
            self._give(one, name)
        return asked

    def leave(self, asked: Sequence[Begun]) -> None:
        """Nobody waits for these any more; those that have not ended are aborted."""
        for one in asked:
            if self._asked.pop(one.request.request_id, None) is not None:
                self._settle(one, aborted=True)

    async def abort_groups(self, name: str, numbers: list[int]) -> None:
        """Have a replica generate these groups no further, if it is still there."""
        channel = self._channels.get(name)
        if channel is not None:
            with suppress(ray.exceptions.RayError):  # what it had goes with it
                await channel.handle.abort_groups.remote(numbers)

    async def close(self) -> None:
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    # ---- inside

    def _give(self, one: Begun, name: str) -> None:
        one.channel, one.owed = name, one.request.sampling.max_new_tokens - len(one.heard)
        self._routes.owe(name, one.owed)
        channel = self._channels[name]
        channel.begin.append(replace(one.request, so_far=one.heard.tokens(one.request.request_id)))
        channel.some.set()

    def _settle(self, one: Begun, aborted: bool = False) -> None:
        """Nothing more comes of it."""
        timer = self._homeless.pop(one.request.request_id, None)
        if timer is not None:
            timer.cancel()
        channel = self._channels.get(one.channel)
        if channel is not None:
            self._routes.paid(one.channel, one.owed)
            if aborted:
                channel.abort.append(one.request.request_id)
                channel.some.set()

    async def _talk(self, channel: _Channel) -> None:
        """Keep a channel as long as its replica lives."""
        try:
            await channel.handle.open_client_requests.remote()
            self._opened(channel)
            async with asyncio.TaskGroup() as both:
                both.create_task(self._listen(channel))
                both.create_task(self._send(channel))
        except* ray.exceptions.RayError as errors:
            self._tell(f"{channel.name} answers no client requests any more: {cause_of(errors.exceptions[0])}")

    def _ended(self, channel: _Channel, task: asyncio.Task[None]) -> None:
        """A channel's task ended, whatever ended it: those who wait on it must not wait for ever."""
        if task.cancelled():
            return
        if (error := task.exception()) is not None:
            self._tell(f"the channel to {channel.name} failed, a bug; another replica goes on: {error!r}")
        self._closed(channel)

    async def _listen(self, channel: _Channel) -> None:
        while True:
            version, news = await channel.handle.client_updates.remote(self._session, self._name)
            channel.version = Version(*version)
            self._house()
            for one in news:
                self._on_update(channel.name, one)
            if given_up := sum(one.finish_reason == GIVEN_UP for one in news):
                self._tell(f"{channel.name} was not asked for too long and gave up {given_up} requests; they go on")

    async def _send(self, channel: _Channel) -> None:
        while True:
            await channel.some.wait()
            channel.some.clear()
            (begin, channel.begin), (abort, channel.abort) = (channel.begin, []), (channel.abort, [])
            await channel.handle.order_client_requests.remote(self._session, begin, abort, self._name)

    def _on_update(self, name: str, news: TokenUpdate) -> None:
        asked = self._asked.get(news.request_id)
        if asked is None or asked.channel != name:
            return
        if news.finish_reason == GIVEN_UP:
            self._routes.paid(name, asked.owed)
            self._go_on(asked)
            return
        if news.finish_reason:
            del self._asked[news.request_id]
            self._settle(asked)
        else:
            count = asked.heard.take(news)
            self._routes.paid(name, count)
            asked.owed -= count
        asked.updates.put_nowait(news)

    def _opened(self, channel: _Channel) -> None:
        self._routes.opened(channel.name)
        self._some_serve.set()
        self._house()

    def _house(self) -> None:
        """Have whoever can now do so go on with what waits for a replica."""
        for request_id, timer in list(self._homeless.items()):
            if self._moves(self._asked[request_id]):
                timer.cancel()
                del self._homeless[request_id]

    def _closed(self, channel: _Channel) -> None:
        """A replica is gone: another goes on with what it owed, or will."""
        if self._channels.get(channel.name) is not channel:
            return
        del self._channels[channel.name]
        self._routes.closed(channel.name)
        if not self.ready:
            self._some_serve.clear()
        for one in [one for one in self._asked.values() if one.channel == channel.name]:
            self._go_on(one)

    def _go_on(self, one: Begun) -> None:
        """Have another replica go on with it, or the same, as soon as one can."""
        if not self._moves(one):
            self._wait(one)

    def _moves(self, one: Begun) -> bool:
        """Whether there is a replica to go on with it, which then does."""
        name = self._routes.choose(lambda name: self._may_go_on(name, one.heard.newest))
        if name is None and not one.shown and self.ready:
            one.heard = ReceivedTokens()
            one.updates.put_nowait(Replaced(one.request.request_id))
            name = self._routes.choose()
        if name is None:
            return False
        self._give(one, name)
        return True

    def _may_go_on(self, name: str, newest: Version | None) -> bool:
        """Whether a replica serves no older version than the newest of a completion."""
        serves = self._channels[name].version
        return newest is None or (serves is not None and Version(*serves) >= newest)

    def _wait(self, one: Begun) -> None:
        one.channel = ""
        late = Refusal(503, "no_replica", "the replica that was asked died, and no other one serves; try again soon")
        if one.shown:
            late = Refusal(502, "replica_died", "the replica that answered died, and no other one goes on; ask again")
        loop = asyncio.get_running_loop()
        self._homeless[one.request.request_id] = loop.call_later(self._patience_s, self._end, one, late)

    def _end(self, one: Begun, refusal: Refusal) -> None:
        self._homeless.pop(one.request.request_id, None)
        if self._asked.pop(one.request.request_id, None) is not None:
            one.updates.put_nowait(refusal)
