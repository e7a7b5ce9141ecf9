"""Versions by a group of two: real processes over gloo. Who does not come, stands still or dies is named in time."""

import asyncio
import json
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest
import xxhash
from support.kernels import NEEDS_KERNELS
from support.weights.delta_versions import RUN
from support.weights.published_versions import KEY, publish_steps

from streamrl.errors import ComponentError, ConfigError, DataError
from streamrl.services.weights.collective import CollectiveSender, CollectiveTransport, Meeting
from streamrl.services.weights.endpoints import RunNode
from streamrl.types import Version
from streamrl.weights.delta.files import Content
from streamrl.weights.transport.pair import PIECE_BYTES, Place
from streamrl.weights.transport.pulls import TransferStep, VersionPulls
from streamrl.weights.transport.shelf import Item, VersionShelf

LOOPBACK = "127.0.0.1"
LIMIT_S, PATIENT_S = 1.5, 60.0
NUM_BYTES = 2 * PIECE_BYTES + 777
LARGE = Item("anchor", Version(0, 9))

# The other end, in a process of its own: does what it is told, a line each, and says what came of it.
OTHER = """
import json, os, signal, sys
import numpy as np
import xxhash
from streamrl.weights.transport.pair import PIECE_BYTES, Lobby, Peer, Place, join

peer = Peer("the test", 60.0)
print(json.dumps("ready"), flush=True)
for line in sys.stdin:
    word, *rest = json.loads(line)
    if word == "come":
        pair = join(Place(*rest), "127.0.0.1", peer, "it")
        answer = "here"
    elif word == "host":
        lobby = Lobby("127.0.0.1", "gloo", 60.0)
        answer = [lobby.place.address, lobby.place.port, lobby.place.backend]
    elif word == "join":
        pair = lobby.join(peer, "it")
        answer = "here"
    elif word == "send":
        pair.send(np.zeros(rest[0], np.uint8), "it")
        answer = "sent"
    elif word == "take":
        digest, left = xxhash.xxh3_64(), rest[0]
        while left:
            piece = pair.receive(min(left, PIECE_BYTES), "it")
            digest.update(piece)
            left -= len(piece)
        answer = digest.hexdigest()
    elif word == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif word == "die":
        os._exit(1)
    print(json.dumps(answer), flush=True)
"""


class Other:
    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def tell(self, *words: Any) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(words) + "\n")
        self._process.stdin.flush()

    def answer(self) -> Any:
        assert self._process.stdout is not None
        return json.loads(self._process.stdout.readline())

    async def do(self, *words: Any) -> Any:
        self.tell(*words)
        return await asyncio.to_thread(self.answer)

    def come_to(self, meeting: Meeting) -> None:
        self.tell("come", meeting.place.address, meeting.place.port, meeting.place.backend)


@contextmanager
def another() -> Iterator[Other]:
    command = [sys.executable, "-c", OTHER]
    pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command, text=True, start_new_session=True, **pipes) as process:
        try:
            other = Other(process)
            assert other.answer() == "ready"
            yield other
        finally:
            process.kill()


@pytest.fixture
def other() -> Iterator[Other]:
    with another() as made:
        yield made


@pytest.fixture
def shelf(tmp_path: Path) -> VersionShelf:
    """One item of three pieces."""
    (tmp_path / "0.9.weights").write_bytes(bytes(range(256)) * (NUM_BYTES // 256) + bytes(NUM_BYTES % 256))
    return VersionShelf(RUN, KEY, tmp_path)


def digest(content: Content) -> str:
    return xxhash.xxh3_64_hexdigest(content)


def sender_of(shelf: VersionShelf, limit_s: float) -> CollectiveSender:
    return CollectiveSender(shelf, LOOPBACK, "gloo", limit_s)


def foreign_threads() -> set[int]:
    """Threads of this process that Python did not start: those of a group, and of its store."""
    return {thread.id for thread in psutil.Process().threads()} - {thread.native_id for thread in threading.enumerate()}


def connections() -> set[tuple[Any, ...]]:
    return {(found.fd, *found.laddr) for found in psutil.Process().net_connections()}


@pytest.fixture(autouse=True)
async def _nothing_is_left() -> AsyncIterator[None]:
    """No thread and no connection that the test made: those of other tests may end meanwhile."""
    threads, open_before = foreign_threads(), connections()
    yield
    assert foreign_threads() <= threads
    assert connections() <= open_before


async def in_time(seconds: float, work: Any) -> str:
    """What a call fails with, within its limit and what a busy machine needs: far less than a patient call takes."""
    started = time.monotonic()
    with pytest.raises(ComponentError) as caught:
        await work
    assert time.monotonic() - started < seconds + PATIENT_S / 2
    return f"{type(caught.value).__name__}: {caught.value}"


async def test_bytes_come_to_another_process_item_after_item(other: Other, shelf: VersionShelf) -> None:
    sender = sender_of(shelf, PATIENT_S)
    meeting = await sender.meet("b")
    other.come_to(meeting)
    for _ in range(2):
        other.tell("take", NUM_BYTES)
        await sender.give("b", LARGE, meeting.number)
    answers = [await asyncio.to_thread(other.answer) for _ in range(3)]
    assert answers == ["here", *[digest(shelf.content(LARGE))] * 2]
    await sender.close()


async def test_r11_who_never_joins_is_named_in_time_and_the_next_meeting_works(
    other: Other, shelf: VersionShelf
) -> None:
    sender = sender_of(shelf, LIMIT_S)
    meeting = await sender.meet("b")
    said = await in_time(LIMIT_S, sender.give("b", LARGE, meeting.number))
    assert said == f"DeadlineError: weights: rendezvous of version 0.9 with node b took longer than {LIMIT_S:g} s"
    with pytest.raises(DataError, match=r"there is no meeting 0 with node b; meet again"):
        await sender.give("b", LARGE, meeting.number)
    again = await sender.meet("b")
    other.come_to(again)
    other.tell("take", NUM_BYTES)
    await sender.give("b", LARGE, again.number)
    await sender.close()


async def test_r11_who_never_joins_keeps_no_other_node_waiting(other: Other, shelf: VersionShelf) -> None:
    sender = sender_of(shelf, PATIENT_S)
    stuck = asyncio.create_task(sender.give("a", LARGE, (await sender.meet("a")).number))
    meeting = await sender.meet("b")
    other.come_to(meeting)
    other.tell("take", NUM_BYTES)
    await sender.give("b", LARGE, meeting.number)
    assert not stuck.done()
    with another() as late:
        late.come_to(Meeting(0, sender._joined["a"].lobby.place))
        late.tell("take", NUM_BYTES)
        await stuck
    await sender.close()


@pytest.mark.parametrize(("end", "says"), [("die", "ProcessDiedError"), ("stop", "DeadlineError")])
async def test_r11_who_dies_or_stands_still_midway_is_named_in_time(
    end: str, says: str, other: Other, shelf: VersionShelf
) -> None:
    limit_s = PATIENT_S if end == "die" else LIMIT_S
    sender = sender_of(shelf, limit_s)
    meeting = await sender.meet("b")
    other.come_to(meeting)
    other.tell("take", PIECE_BYTES)
    other.tell(end)
    said = await in_time(LIMIT_S, sender.give("b", LARGE, meeting.number))
    assert said.startswith(f"{says}: weights: send of byte ")
    assert " of version 0.9 with node b " in said
    with another() as next_one:
        again = await sender.meet("b")
        next_one.come_to(again)
        next_one.tell("take", NUM_BYTES)
        await sender.give("b", LARGE, again.number)
    await sender.close()


# ---- the node's end


class Actor:
    """In the place of the actor of the run's node: its calls are coroutines."""

    def __init__(self, **methods: Callable[..., Any]) -> None:
        self._methods = methods

    def __getattr__(self, name: str) -> "Actor":
        return Actor(remote=self._methods[name]) if name != "remote" else self._methods["remote"]


async def never(*_: Any) -> None:
    await asyncio.Event().wait()


def step_of(num_bytes: int) -> TransferStep:
    return TransferStep("anchor", LARGE.version, num_bytes, b"")


async def received(transport: CollectiveTransport, num_bytes: int) -> int:
    return sum([len(piece) async for piece in transport.receive(step_of(num_bytes))])


def transport_to(place: Place, limit_s: float, give: Callable[..., Any] = never) -> CollectiveTransport:
    async def meet(node: str) -> Meeting:
        return Meeting(0, place)

    actor: Any = Actor(meet=meet, give=give)
    return CollectiveTransport(RunNode(actor, "b", limit_s), LOOPBACK)


async def test_r11_a_host_that_never_joins_is_named_in_time(other: Other) -> None:
    place = Place(*await other.do("host"))
    said = await in_time(LIMIT_S, received(transport_to(place, LIMIT_S), 100))
    assert (
        said == f"DeadlineError: weights: rendezvous of version 0.9 with the run's node took longer than {LIMIT_S:g} s"
    )


@pytest.mark.parametrize(("end", "says"), [("die", "ProcessDiedError"), ("stop", "DeadlineError")])
async def test_r11_a_host_that_dies_or_stands_still_midway_is_named_in_time(end: str, says: str, other: Other) -> None:
    place = Place(*await other.do("host"))
    for words in (["join"], ["send", PIECE_BYTES], [end]):
        other.tell(*words)
    limit_s = PATIENT_S if end == "die" else LIMIT_S
    said = await in_time(LIMIT_S, received(transport_to(place, limit_s), NUM_BYTES))
    assert said.startswith(f"{says}: weights: receive of version 0.9 with the run's node ")


@NEEDS_KERNELS
async def test_what_the_other_end_says_it_failed_with_is_told_and_the_next_item_meets_anew(tmp_path: Path) -> None:
    made = publish_steps(tmp_path / "published", steps=4)
    sender = sender_of(made.shelf, PATIENT_S)
    asked: list[str] = []

    async def plan(manifest: bytes, have: Version | None) -> list[TransferStep]:
        return made.shelf.plan(manifest, have)

    async def meet(node: str) -> Meeting:
        asked.append("meet")
        return await sender.meet(node)

    async def give(node: str, kind: Any, version: Version, told: int) -> None:
        asked.append(f"{kind} {version}")
        if asked.count("delta 0.4") == 1 and kind == "delta" and version.step == 4:
            (tmp_path / "published" / "0.4.delta").unlink()
        await sender.give(node, Item(kind, version), told)

    actor: Any = Actor(plan=plan, meet=meet, give=give)
    home = RunNode(actor, "b", PATIENT_S)
    pulls = VersionPulls(RUN, KEY, tmp_path / "copies", home.plan, CollectiveTransport(home, LOOPBACK))
    for step in (1, 3, 4):
        manifest = made.versions[Version(0, step)]
        await pulls.fetch(manifest, msgspec.msgpack.encode(manifest))
    met = ["meet", "anchor 0.1", "delta 0.2", "delta 0.3", "delta 0.4"]
    assert asked == [*met, "meet", "anchor 0.4"]
    await pulls.close()
    await sender.close()


async def test_nccl_without_a_gpu_says_so(shelf: VersionShelf) -> None:
    with pytest.raises(ConfigError, match="needs a GPU on every node"):
        await CollectiveSender(shelf, LOOPBACK, "nccl", LIMIT_S).meet("b")
