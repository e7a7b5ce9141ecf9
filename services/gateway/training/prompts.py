"""One client's stream of prompts: lines in, lines out, both at once over one HTTP request.

`_work` takes lines, as long as fewer than `max_prompts` of the prompts are not answered, and gives them to the queue; a
`_follow` for each piece that it gave waits for their ends and reads their rows. `_write` sends what they say, and waits
for the client to take it. No lines are taken while more than `UNSENT` answers wait for that. So a slow reader slows
what it submits, be that prompts or not, and nobody else; one that takes nothing has its connection closed by the guard.

Guarantees: what was told as accepted is durable, and goes on whatever becomes of the connection: submitted again under
its key it is the same prompt, and is told of again. A stream that is whole ends with the line `end`.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

from ray.actor import ActorHandle
from starlette.responses import Response

from streamrl.buffers.index.submitted.submissions import Outcome, SubmissionState
from streamrl.gateway.prompts import answers as prompt_answers
from streamrl.gateway.prompts.lines import Lines, PromptReader, key_of
from streamrl.gateway.refusal import Refusal
from streamrl.services.gateway.answering import ClientGone
from streamrl.services.gateway.guard import Receive, Scope, Send
from streamrl.services.gateway.training.queue import CALLS_AT_ONCE, PromptEndings, answer_of_queue
from streamrl.services.gateway.training.rows import GatewayRows
from streamrl.tasks.base import SubmittedPrompt

UNSENT = 1000
"""Answers that may wait for the client to read, before more of its lines are taken. A line of two bytes that is no
prompt is answered by two hundred."""


class PromptService:
    """What the streams of all clients share. queue: the run's. abort: has a replica let go of groups. idle_s: see
    `Patience`."""

    def __init__(
        self,
        reader: PromptReader,
        rows: GatewayRows,
        queue: ActorHandle,
        abort: Callable[[str, list[int]], Awaitable[None]],
        *,
        max_prompts: int,
        max_line_bytes: int,
        idle_s: float,
    ) -> None:
        self.reader = reader
        self.rows = rows
        self.queue = queue
        self.max_prompts = max_prompts
        self.max_line_bytes = max_line_bytes
        self.idle_s = idle_s
        self.ends = PromptEndings(queue)
        self._submitting = asyncio.Semaphore(CALLS_AT_ONCE)
        self._abort = abort

    async def submit(self, stream: str, asked: Sequence[SubmittedPrompt]) -> list[int]:
        """Give prompts to the queue, which may have no room for a while; their numbers. Raises Refusal."""
        async with self._submitting:
            numbers: list[int] = await answer_of_queue(self.queue.submit.remote(stream, list(asked)))
        return numbers

    async def cancel(self, stream: str, keys: Sequence[str]) -> int:
        """Give up the prompts of these keys that have not ended; how many of them were generated. Raises Refusal, for a
        key that nobody submitted too."""
        items = await answer_of_queue(self.queue.known.remote(stream, list(keys)))
        for key, item in zip(keys, items, strict=True):
            if item is None:
                raise Refusal(404, "unknown_prompt", f"no prompt of stream {stream!a} has the key {key!a}", "keys")
        groups: dict[str, list[int]] = {}
        for number, replica in (ran := await answer_of_queue(self.queue.cancel.remote(items))):
            groups.setdefault(replica, []).append(number)
        await asyncio.gather(*(self._abort(replica, numbers) for replica, numbers in groups.items() if replica))
        return len(ran)


class PromptStream(Response):
    """See the module. stream: where the prompts belong."""

    media_type = "application/x-ndjson"

    def __init__(self, service: PromptService, stream: str) -> None:
        super().__init__(headers={"cache-control": "no-cache"})
        del self.headers["content-length"]
        self._service = service
        self._stream = stream
        self._said: asyncio.Queue[tuple[bytes, int | None] | None] = asyncio.Queue()
        self._open: dict[int, str] = {}
        """The keys of prompts that were accepted and not answered, by their numbers."""
        self._unsent = 0
        self._answered = asyncio.Event()
        """Set by each piece that the client took."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        late = None
        try:
            async with asyncio.TaskGroup() as both:
                both.create_task(self._write(send))
                both.create_task(self._work(receive))
        except* ClientGone:
            pass
        except* TimeoutError as errors:
            late = errors
        if late is not None:
            raise TimeoutError("the client reads nothing") from late

    # ---- out

    async def _write(self, send: Send) -> None:
        """Send what is said, all that there is at a time, to the end."""
        ends = False
        while not ends:
            said, ends = await self._pending_lines()
            body = b"".join(line for line, _ in said)
            await send({"type": "http.response.body", "body": body, "more_body": not ends})
            for _, item in said:
                if item is not None:
                    del self._open[item]
            self._unsent -= len(said)
            self._answered.set()

    async def _pending_lines(self) -> tuple[list[tuple[bytes, int | None]], bool]:
        """(what is said by now, whether nothing follows); waits for some."""
        lines = []
        line = await self._said.get()
        while line is not None:
            lines.append(line)
            if self._said.empty():
                return lines, False
            line = self._said.get_nowait()
        return lines, True

    def _send_line(self, line: bytes, item: int | None = None) -> None:
        """item: of the prompt that is answered by it."""
        self._unsent += 1
        self._said.put_nowait((line, item))

    # ---- in

    async def _work(self, receive: Receive) -> None:
        try:
            async with asyncio.TaskGroup() as following:
                async for asked in self._read_prompts(receive):
                    await self._submit(asked, following)
                watch = following.create_task(_until_gone(receive))
                await self._until(lambda: not self._open)
                watch.cancel()
            self._send_line(prompt_answers.end())
        except* Refusal as refusals:
            self._send_line(prompt_answers.refused(_first(refusals)))
        self._said.put_nowait(None)

    async def _read_prompts(self, receive: Receive) -> AsyncIterator[list[SubmittedPrompt]]:
        """The prompts, as they come; a line that is none is answered. Raises Refusal, ClientGone."""
        lines, count, more = Lines(self._service.max_line_bytes), 0, True
        while more:
            await self._until(lambda: self._unsent <= UNSENT)
            message = await self._message(receive)
            if message["type"] == "http.disconnect":
                raise ClientGone
            more = message.get("more_body", False)
            whole = lines.feed(message.get("body", b"")) + ([] if more else lines.rest())
            asked, said = await asyncio.to_thread(self._read, whole, count)
            for line in said:
                self._send_line(line)
            count += len(whole)
            yield asked

    def _read(self, lines: list[bytes], before: int) -> tuple[list[SubmittedPrompt], list[bytes]]:
        """(prompts, what is said of lines that are none). before: lines that came before these."""
        asked, said = [], []
        for number, line in enumerate(lines, before + 1):
            try:
                asked.append(self._service.reader.read(line))
            except Refusal as refusal:
                said.append(prompt_answers.refused(refusal, number, key_of(line)))
        return asked, said

    async def _message(self, receive: Receive) -> Any:
        while True:
            try:
                async with asyncio.timeout(self._service.idle_s):
                    return await receive()
            except TimeoutError as error:
                if not self._open:
                    what = f"no line came for {self._service.idle_s:g} s, and no prompt waits for its answer"
                    raise Refusal(408, "body_too_slow", what) from error

    async def _submit(self, asked: list[SubmittedPrompt], following: asyncio.TaskGroup) -> None:
        """Give prompts to the queue, no more at a time than may be open."""
        while asked:
            await self._until(lambda: len(self._open) < self._service.max_prompts and self._unsent <= UNSENT)
            room = self._service.max_prompts - len(self._open)
            piece, asked = asked[:room], asked[room:]
            numbers = await self._service.submit(self._stream, piece)
            fresh = []
            for one, item in zip(piece, numbers, strict=True):
                self._send_line(prompt_answers.accepted(one.key, item))
                if item not in self._open:
                    self._open[item] = one.key
                    fresh.append(item)
            following.create_task(self._follow(fresh))

    async def _until(self, enough: Callable[[], bool]) -> None:
        """Wait until the client has taken so much."""
        while not enough():
            self._answered.clear()
            await self._answered.wait()

    async def _follow(self, items: list[int]) -> None:
        """Tell of these prompts, as they end."""
        waiting = set(items)
        while waiting:
            outcomes = await self._service.ends.ended(sorted(waiting))
            if not outcomes:
                what = "the run ends; what was accepted goes on with its next launch: submit it again then"
                raise Refusal(503, "run_ended", what)
            for outcome in outcomes:
                waiting.discard(outcome.item)
                self._send_line(await self._outcome_line(outcome), outcome.item)

    async def _outcome_line(self, outcome: Outcome) -> bytes:
        key = self._open[outcome.item]
        if outcome.state is SubmissionState.DROPPED:
            return prompt_answers.dropped(key, outcome.reason)
        prompt_ids, rollouts = await self._service.rows.of(outcome) or ([], None)
        return prompt_answers.finished(key, outcome.group, prompt_ids, rollouts)


async def _until_gone(receive: Receive) -> None:
    """Raises ClientGone when the client goes away."""
    while (await receive())["type"] != "http.disconnect":
        pass
    raise ClientGone


def _first(refusals: BaseExceptionGroup[Refusal]) -> Refusal:
    """Of several that came at once."""
    found = refusals.exceptions[0]
    return _first(found) if isinstance(found, BaseExceptionGroup) else found
