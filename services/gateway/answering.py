"""One request of a client from its first token to its last: in one answer, or in server-sent events.

Guarantees that whatever was begun for a client ends with the answer, however that ends: whole, refused, past its
deadline, or because the client went away.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from streamrl.gateway.openai.answers import Form, Head
from streamrl.gateway.openai.choice import Choice, Delta, joined, pieces
from streamrl.gateway.openai.requests import ParsedRequest
from streamrl.gateway.refusal import Refusal, json_bytes
from streamrl.gateway.sessions.capture import Capture
from streamrl.models.tokenizer import TextTokenizer
from streamrl.services.gateway.guard import Receive, Scope, Send
from streamrl.services.gateway.pool import Begun, Pool, Replaced, Word
from streamrl.services.gateway.scoring import own_logprobs

EVENT_TOKENS = 1024
"""Of one event at most: clients bound the length of its line. Those that others are told in the place of count too."""
Step = list[tuple[Choice, Delta]]


class ClientGone(Exception):
    """The client went away: nobody is left to answer. Never leaves the application."""


class Answering:
    """Answers what was asked. limit_s: seconds that one answer may take."""

    def __init__(
        self, pool: Pool, tokenizer: TextTokenizer, context: int, limit_s: float, count: Callable[[int], None]
    ) -> None:
        """context: tokens of prompt and completion together. count: takes the number of tokens of each answer."""
        self._pool = pool
        self._context = context
        self._tokenizer = tokenizer
        self._limit_s = limit_s
        self._count = count

    async def whole(
        self, asked: ParsedRequest, form: Form, head: Head, capture: Capture | None = None
    ) -> dict[str, Any]:
        """The answer in one piece. capture: of the session that keeps it. Raises Refusal."""
        deltas: dict[int, list[Delta]] = {}
        ended: dict[int, Choice] = {}
        async with aclosing(self._steps(asked, capture)) as steps:
            async for step in steps:
                for choice, delta in step:
                    if delta.start == 0:
                        deltas[choice.index] = []  # it may have begun anew
                    deltas[choice.index].append(delta)
                    ended[choice.index] = choice
        choices = [(index, joined(deltas[index])) for index in sorted(ended)]
        return form.whole(head, choices, asked, sum(choice.num_tokens for choice in ended.values()))

    async def events(
        self, asked: ParsedRequest, form: Form, head: Head, capture: Capture | None = None
    ) -> AsyncGenerator[bytes, None]:
        """The answer in events, each with what came together. The first one comes with the first token, so that a
        Refusal before it can still be a status."""
        begun, total = False, 0
        async with aclosing(self._steps(asked, capture)) as steps:
            try:
                async for step in steps:
                    yield b"".join(form.step(head, choice.index, delta, asked) for choice, delta in step)
                    begun, total = True, total + sum(len(delta.token_ids) for _, delta in step)
            except Refusal as refusal:
                if not begun:
                    raise
                yield form.broken(refusal)
                return
        yield form.closing(head, asked, total)

    def _steps(self, asked: ParsedRequest, capture: Capture | None) -> AsyncGenerator[Step, None]:
        """What came together, as deltas by choice, up to the end of the last choice."""
        return self._made(asked) if capture is None else self._captured(asked, capture)

    async def _captured(self, asked: ParsedRequest, capture: Capture) -> AsyncGenerator[Step, None]:
        capture.begin()
        try:
            async with aclosing(self._made(asked)) as steps:
                async for step in steps:
                    for choice, delta in step:
                        capture.take(choice.index, delta)
                    if capture.wants_scores:
                        # Before the client hears of the end: its next call goes on from here.
                        await self._score(capture)
                    yield step
            capture.whole()
        finally:
            capture.end()

    async def _score(self, capture: Capture) -> None:
        try:
            async with asyncio.timeout(self._limit_s):
                scores = await own_logprobs(self._pool, capture.to_score(), self._context)
        except TimeoutError as error:
            raise self._too_long() from error
        for index, logprobs in scores.items():
            capture.score(index, logprobs)

    def _too_long(self) -> Refusal:
        what = f"the answer took longer than {self._limit_s:g} s (deadlines.rollout_s); ask for fewer tokens"
        return Refusal(504, "deadline_exceeded", what)

    async def _made(self, asked: ParsedRequest) -> AsyncGenerator[Step, None]:
        requests = asked.requests(self._pool.prefix())
        choices = {
            request.request_id: Choice(index, self._tokenizer, asked.stops, asked.extras.completes, asked.written)
            for index, request in enumerate(requests)
        }
        deadline = asyncio.get_running_loop().time() + self._limit_s
        begun = {one.request.request_id: one for one in self._pool.begin(requests)}
        try:
            while not all(choice.ended for choice in choices.values()):
                words = await self._next_updates(next(iter(begun.values())), deadline)
                step = self._taken(words, choices, begun, asked)
                if step:
                    yield step
        finally:
            self._count(sum(choice.num_tokens for choice in choices.values()))
            self._pool.leave(list(begun.values()))

    async def _next_updates(self, one: Begun, deadline: float) -> list[Word]:
        try:
            async with asyncio.timeout_at(deadline):
                words = [await one.updates.get()]
        except TimeoutError as error:
            raise self._too_long() from error
        while not one.updates.empty():
            words.append(one.updates.get_nowait())
        return words

    def _taken(
        self, words: Sequence[Word], choices: dict[str, Choice], begun: dict[str, Begun], asked: ParsedRequest
    ) -> Step:
        """The deltas of some words, those of one choice joined as long as they are not too many. Raises Refusal."""
        most = EVENT_TOKENS // (1 + asked.extras.top)
        deltas: dict[str, list[Delta]] = {}
        for word in words:
            if isinstance(word, Refusal):
                raise word
            choice = choices[word.request_id]
            if isinstance(word, Replaced):
                choice.begin()
                deltas.pop(word.request_id, None)
                continue
            for piece in pieces(word, most):
                if not choice.ended:
                    deltas.setdefault(word.request_id, []).append(choice.take(piece))
            if choice.error:
                raise Refusal(503, "generation_failed", f"the engine could not complete it: {choice.error}")
            if choice.cut:
                self._pool.leave([begun[word.request_id]])
        for request_id in deltas:
            begun[request_id].shown = begun[request_id].shown or asked.stream
        return [
            (choices[request_id], joined(some)) for request_id, every in deltas.items() for some in _groups(every, most)
        ]


def _groups(deltas: Sequence[Delta], most: int) -> list[list[Delta]]:
    """In order, in groups of so many tokens at most."""
    groups: list[list[Delta]] = []
    tokens = 0
    for delta in deltas:
        tokens += len(delta.token_ids)
        if not groups or tokens > most:
            groups.append([])
            tokens = len(delta.token_ids)
        groups[-1].append(delta)
    return groups


class EventStream(Response):
    """An answer in server-sent events. first: it came already, and with it the certainty that there is an answer."""

    media_type = "text/event-stream"

    def __init__(self, first: bytes, rest: AsyncGenerator[bytes, None]) -> None:
        super().__init__(headers={"cache-control": "no-cache"})
        del self.headers["content-length"]
        self._first = first
        self._rest = rest

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await unless_gone(receive, self._answer(send))
        except ClientGone:
            return

    async def _answer(self, send: Send) -> None:
        async with aclosing(self._rest) as rest:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            await send({"type": "http.response.body", "body": self._first, "more_body": True})
            async for some in rest:
                await send({"type": "http.response.body", "body": some, "more_body": True})
            await send({"type": "http.response.body", "body": b""})


async def answer(
    request: Request, answering: Answering, asked: ParsedRequest, form: Form, head: Head, capture: Capture | None = None
) -> Response:
    """The answer to one request. Raises Refusal, and ClientGone when the client does not wait for it."""
    if not asked.stream:
        whole = await unless_gone(request.receive, answering.whole(asked, form, head, capture))
        return Response(json_bytes(whole), media_type="application/json")
    events = answering.events(asked, form, head, capture)
    try:
        first = await unless_gone(request.receive, anext(events))
    except BaseException:
        await events.aclose()
        raise
    return EventStream(first, events)


async def unless_gone(receive: Receive, work: Awaitable[Any]) -> Any:
    """Await `work`, and cancel it when the client goes away. Raises ClientGone then."""
    working = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_gone(receive))
    try:
        await asyncio.wait({working, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientGone
        return working.result()
    finally:
        for task in (working, gone):
            task.cancel()
        await asyncio.gather(working, gone, return_exceptions=True)


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def head_of(form: Form, number: str, model: str) -> Head:
    """number: of the request, unique in the run."""
    return Head(form.prefix + number.replace("/", "-"), int(time.time()), model)
