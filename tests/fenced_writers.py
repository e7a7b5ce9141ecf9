"""Writers that sleep through their replacement, and the queue that they write for, each in a process of its own.

    python fenced_writers.py SEED FOLDER N

N times: a writer takes groups, appends rows to its segment and has them accepted, over a real socket. It is stopped by
SIGSTOP at a moment drawn by the seed, replaced under a higher epoch, and woken by SIGCONT: then it goes on with
whatever it was about to do, and after each refusal tries the next thing. Prints one JSON object: how the writers ended,
at which moments they were stopped, and what was accepted of whom.
"""

import asyncio
import json
import os
import random
import signal
import socket
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from support.runs.small_run import GROUP_SIZE, Order, completion_rows, queue_settings

from streamrl.buffers.ledger.ledger import read_ledger
from streamrl.buffers.ledger.records import Accepted, Writer
from streamrl.buffers.queue.replay_queue import ReplayQueue
from streamrl.buffers.rows.arrow import completions_batch
from streamrl.buffers.rows.records import AcceptedRows
from streamrl.buffers.rows.schema import COMPLETIONS
from streamrl.buffers.segments.places import COMPLETIONS_DIR, LEDGER_DIR
from streamrl.buffers.segments.reader import SegmentReader
from streamrl.buffers.segments.writer import SegmentWriter
from streamrl.clock import SystemClock
from streamrl.errors import FencedError
from streamrl.types import FrameRef, Ticket, Version

NAME = "replica-0"
STALENESS = 10_000
MOMENTS = ("take", "appending", "appended", "accept")
"""What a writer says that it does; it is stopped after one of these was heard."""
REFUSALS = 4
"""A zombie tries so many times, then ends."""


def encoded(message: Any) -> str:
    return msgspec.json.encode(message).decode()


def rows_of(ticket: Ticket) -> Any:
    return completion_rows(ticket, ticket.last_step - STALENESS)


class Zombie:
    """The writer's side: plain blocking code, over a socket that carries one JSON line a message."""

    def __init__(self, end: socket.socket, folder: Path) -> None:
        self._lines = end.makefile("rw", buffering=1)
        self._folder = folder

    def say(self, **message: Any) -> None:
        self._lines.write(f"{encoded(message)}\n")

    def ask(self, **message: Any) -> Any:
        self.say(**message)
        return json.loads(self._lines.readline())

    def live(self) -> None:
        epoch = json.loads(self._lines.readline())
        log = SegmentWriter(self._folder, COMPLETIONS_DIR, NAME, epoch, COMPLETIONS, 2**14, "disk", 0.0)
        refused, sequence = 0, 0
        tickets: list[Ticket] = []
        while refused < REFUSALS:
            answer = self.ask(op="take", epoch=epoch)
            refused += answer is None
            # A zombie goes on with what it has, whatever it was told.
            tickets = msgspec.convert(answer, list[Ticket]) if answer else tickets
            for ticket in tickets:
                self.say(op="appending")
                frame = log.append(completions_batch(rows_of(ticket))).result()
                self.say(op="appended")
                done = self.ask(op="accept", epoch=epoch, sequence=sequence, frame=frame, ticket=ticket)
                refused += done is None
                sequence += 1
        log.close()


class Warden:
    """The queue's side: hears a writer, stops it, replaces it, wakes it, and goes on serving it."""

    def __init__(self, queue: ReplayQueue, folder: Path, chance: random.Random) -> None:
        self._queue = queue
        self._folder = folder
        self._chance = chance
        self.moments: Counter[str] = Counter()
        self.refused = 0
        self.let_in = 0

    async def serve(self, pid: int, end: socket.socket) -> int:
        """One writer, from its epoch to its exit code."""
        reader, writer = await asyncio.open_connection(sock=end)
        writer.write(f"{await self._queue.next_epoch(NAME)}\n".encode())
        moment, left, replaced = self._chance.choice(MOMENTS), self._chance.randrange(1, 4), False
        while line := await reader.readline():
            message = json.loads(line)
            left -= message["op"] == moment
            if left == 0 and message["op"] == moment:
                self.moments[moment] += 1
                await self._replace(pid)
                replaced = True
            if message["op"] in ("take", "accept"):
                answer = await self._answer(message)
                self.let_in += replaced and answer is not None
                writer.write(f"{encoded(answer)}\n".encode())
        writer.close()
        return os.waitstatus_to_exitcode((await asyncio.to_thread(os.waitpid, pid, 0))[1])

    async def _replace(self, pid: int) -> None:
        """Stop it, have another one do its work under the next epoch, and wake it."""
        os.kill(pid, signal.SIGSTOP)
        _, status = await asyncio.to_thread(os.waitpid, pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        epoch = await self._queue.next_epoch(NAME)
        log = SegmentWriter(self._folder, COMPLETIONS_DIR, NAME, epoch, COMPLETIONS, 2**14, "disk", 0.0)
        for sequence, ticket in enumerate(await self._queue.take(NAME, epoch, Version(0, 0), 2)):
            rows = rows_of(ticket)
            frame = log.append(completions_batch(rows)).result()
            numbers = np.full(GROUP_SIZE, ticket.number, np.int64)
            await self._queue.accept(NAME, epoch, sequence, frame, AcceptedRows.of(rows, numbers))
        log.close()
        os.kill(pid, signal.SIGCONT)

    async def _answer(self, message: dict[str, Any]) -> Any:
        try:
            if message["op"] == "take":
                return await self._queue.take(NAME, message["epoch"], Version(0, 0), 2)
            ticket = msgspec.convert(message["ticket"], Ticket)
            rows = AcceptedRows.of(rows_of(ticket), np.full(GROUP_SIZE, ticket.number, np.int64))
            frame = msgspec.convert(message["frame"], FrameRef)
            await self._queue.accept(NAME, message["epoch"], message["sequence"], frame, rows)
        except FencedError:
            self.refused += 1
            return None
        return True


def open_queue(folder: Path) -> ReplayQueue:
    settings = msgspec.structs.replace(queue_settings(), total_groups=None, max_staleness=STALENESS)
    return ReplayQueue.open(folder, settings, Order(), SystemClock())


def accepted_late(folder: Path) -> Iterator[str]:
    """Segments of which the ledger accepted a frame after their writer was replaced."""
    epoch = -1
    for file in read_ledger(folder / LEDGER_DIR):
        for record in file.records:
            if isinstance(record, Writer):
                epoch = record.epoch
            if isinstance(record, Accepted) and Path(record.frame.path).name.split("-")[-2] != str(epoch):
                yield record.frame.path


def unreadable(folder: Path) -> Iterator[str]:
    """Accepted frames that are not as they were written."""
    reader = SegmentReader(folder)
    for file in read_ledger(folder / LEDGER_DIR):
        for record in file.records:
            if isinstance(record, Accepted) and reader.read(record.frame).num_rows != GROUP_SIZE:
                yield record.frame.path


def fork_writers(count: int, folder: Path) -> list[tuple[int, socket.socket]]:
    """Writers that wait for their epoch: made before this process has a thread."""
    writers = []
    for _ in range(count):
        ours, theirs = socket.socketpair()
        pid = os.fork()
        if pid == 0:
            ours.close()
            Zombie(theirs, folder).live()
            os._exit(0)
        theirs.close()
        writers.append((pid, ours))
    return writers


async def run(seed: int, folder: Path, writers: list[tuple[int, socket.socket]]) -> dict[str, Any]:
    queue = open_queue(folder)
    warden = Warden(queue, folder, random.Random(seed))
    ends = Counter([await warden.serve(pid, end) for pid, end in writers])
    before = queue.counts()
    queue.close()
    again = open_queue(folder)
    after = again.counts()
    again.close()
    return {
        "exit_codes": ends,
        "moments": warden.moments,
        "refused": warden.refused,
        "let_in": warden.let_in,
        "accepted_late": list(accepted_late(folder)),
        "unreadable": list(unreadable(folder)),
        "rows": [before.rows_complete, after.rows_complete],
        "ignored": before.rows_ignored,
    }


def main(seed: str, folder: str, count: str) -> None:
    writers = fork_writers(int(count), Path(folder))
    print(json.dumps(asyncio.run(run(int(seed), Path(folder), writers))))


if __name__ == "__main__":
    main(*sys.argv[1:])
