"""A replica's finished rollouts on their way to the queue: collected, written as durable frames, handed in, in order.

Waits for rollouts that finished; unblocked by the engine. A frame leaves when it is full, when the engine ran dry, or
when its oldest row waited `FRAME_WAIT_S`: one costs about the same for one row as for a hundred, all the way to the
learner.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Protocol, TypeVar

from streamrl.buffers.rows.records import AcceptedRows
from streamrl.services.actors.observe import Observer
from streamrl.services.rollout.completions import CompletionLog
from streamrl.services.rollout.rows import Finished, FinishedEpisode
from streamrl.types import FrameRef

T = TypeVar("T")

FRAME_ROWS: Final = 256
FRAME_WAIT_S: Final = 0.05


class Durably(Protocol):
    """Awaits `work` that ends on a disk, which may wait for room; `what` it is, for the message."""

    async def __call__(self, what: str, work: Awaitable[T], /) -> T: ...


class RowWriter:
    """One replica's. hand_in: gives the queue a frame, numbered from 0. durable: told the ids of what it has a receipt
    for. frame_room: the most rows that fit a frame."""

    def __init__(
        self,
        log: CompletionLog,
        frame_room: int,
        hand_in: Callable[[int, FrameRef, AcceptedRows], Awaitable[None]],
        durably: Durably,
        durable: Callable[[Sequence[str]], None],
        observer: Observer,
    ) -> None:
        self._log = log
        self._frame_room = frame_room
        self._hand_in = hand_in
        self._durably = durably
        self._durable = durable
        self._observer = observer
        self._waiting: list[Finished | FinishedEpisode] = []
        self._unwritten = 0
        self._flush, self._empty = asyncio.Event(), asyncio.Event()
        self._empty.set()

    def add(self, finished: "Sequence[Finished] | Sequence[FinishedEpisode]", idle: bool) -> None:
        """Take rollouts that ended. idle: the engine has nothing more to do."""
        if finished and not self._waiting:
            asyncio.get_running_loop().call_later(FRAME_WAIT_S, self._flush.set)
        self._waiting += finished
        self._unwritten += len(finished)
        if self._unwritten:
            self._empty.clear()
        if idle or len(self._waiting) >= min(FRAME_ROWS, self._frame_room):
            self._flush.set()

    async def drained(self) -> None:
        """Wait until the queue has a receipt for everything that was taken."""
        self._flush.set()
        await self._empty.wait()

    async def loop(self) -> None:
        """Write, for ever."""
        sequence = 0
        while True:
            await self._flush.wait()
            self._flush.clear()
            finished, self._waiting = self._waiting, []
            for start in range(0, len(finished), self._frame_room):
                with self._observer.span("write", "log"):
                    await self._write(finished[start : start + self._frame_room], sequence)
                sequence += 1
            if not self._unwritten:
                self._empty.set()

    async def _write(self, finished: list[Finished | FinishedEpisode], sequence: int) -> None:
        frame, rows = await self._durably("the write to disk", self._log.append(finished))
        await self._durably("the queue's receipt", self._hand_in(sequence, frame, rows))
        self._durable([one.rollout for one in finished])
        self._unwritten -= len(finished)
