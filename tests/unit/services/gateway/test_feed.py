"""What happens in a run, for its readers: the owner's events over its own socket, and how the run stands."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

from support.gateway.local_gateway import until

from streamrl.errors import ComponentError
from streamrl.services.gateway.page.feed import KEEP_ALIVE, MOST, RunFeed
from streamrl.services.run.control.server import ControlServer, EventHub

SOON = 0.001
LATE = 3600.0


class Pictures:
    """How a run stands, scripted: counts who asks."""

    def __init__(self, *, fails: int = 0) -> None:
        self.asked = 0
        self._fails = fails

    async def __call__(self) -> dict[str, Any]:
        self.asked += 1
        if self.asked <= self._fails:
            raise ComponentError("the controller is gone")
        return {"asked": self.asked, "loss": float("nan")}


@asynccontextmanager
async def owner(folder: Path, hub: EventHub) -> AsyncIterator[Path]:
    path = folder / "control.sock"
    bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    bound.bind(str(path))
    bound.listen()
    async with ControlServer(bound, hub, {}):
        try:
            yield path
        finally:
            hub.close()


class Client:
    """One reader of a feed, event by event."""

    def __init__(self, feed: RunFeed) -> None:
        self.stream = feed.read()
        self.told: list[dict[str, Any]] = []

    async def until(self, kind: str, **facts: Any) -> dict[str, Any]:
        """The first event of this kind that says this."""
        while True:
            for place, one in enumerate(self.told):
                if one["kind"] == kind and facts.items() <= one.items():
                    del self.told[: place + 1]
                    return one
            self.told = events_of(await anext(self.stream))

    async def rest(self) -> list[dict[str, Any]]:
        return self.told + [one async for some in self.stream for one in events_of(some)]


def events_of(some: bytes) -> list[dict[str, Any]]:
    lines = [line for line in some.split(b"\n\n") if line]
    return [json.loads(line.removeprefix(b"data: ")) for line in lines if not line.startswith(b":")]


async def test_a_reader_gets_the_story_then_what_happens_and_how_the_run_stands(tmp_path: Path) -> None:
    hub = EventHub()
    hub.publish({"kind": "phase", "name": "running"})
    for step in range(5):
        hub.publish({"kind": "step", "step": step})
    async with owner(tmp_path, hub) as path:
        feed = RunFeed(path, Pictures(), every_s=SOON)
        client = Client(feed)
        async with aclosing(client.stream):
            assert (await client.until("phase"))["name"] == "running"
            assert (await client.until("step"))["step"] == 4
            assert (await client.until("status", asked=3))["loss"] is None
            hub.publish({"kind": "step", "step": 5})
            hub.publish({"kind": "failure", "component": "learner", "cause": "loss is nan"})
            assert (await client.until("step"))["step"] == 5
            assert (await client.until("failure"))["cause"] == "loss is nan"
        await feed.close()


async def test_one_that_comes_late_gets_all_that_matters_and_the_newest_of_what_passes(tmp_path: Path) -> None:
    hub, pictures = EventHub(), Pictures()
    async with owner(tmp_path, hub) as path:
        feed = RunFeed(path, pictures, every_s=LATE)
        first = Client(feed)
        async with aclosing(first.stream):
            for step in range(3):
                hub.publish({"kind": "notice", "text": f"n{step}"})
                hub.publish({"kind": "step", "step": step})
                hub.publish({"kind": "replicas", "replicas": [{"name": f"r{step}"}]})
            await first.until("replicas", replicas=[{"name": "r2"}])
            second = Client(feed)
            async with aclosing(second.stream):
                story = events_of(await anext(second.stream))
        assert pictures.asked == 1, "one picture for both"
        await feed.close()
    told = [one.get("text", one.get("step")) for one in story if one["kind"] in ("notice", "step")]
    assert told == ["n0", "n1", "n2", 2]
    assert [one["kind"] for one in story].count("replicas") == [one["kind"] for one in story].count("status") == 1


async def test_while_nobody_reads_nobody_is_asked(tmp_path: Path) -> None:
    pictures, hub = Pictures(), EventHub()
    async with owner(tmp_path, hub) as path:
        feed = RunFeed(path, pictures, every_s=SOON)
        assert (pictures.asked, hub._subscribers) == (0, set())
        for _ in range(2):
            client = Client(feed)
            async with aclosing(client.stream):
                asked = (await client.until("status"))["asked"]
                await until(lambda: len(hub._subscribers) == 1)
            following = [task for task in asyncio.all_tasks() if task.get_name() == "feed"]
            await asyncio.wait(following)
            assert feed.readers == 0
            assert pictures.asked <= asked + 1
        await feed.close()


async def test_a_reader_that_takes_nothing_holds_no_more_than_so_many_and_loses_what_is_past(tmp_path: Path) -> None:
    hub, pictures = EventHub(), Pictures()
    async with owner(tmp_path, hub) as path:
        feed = RunFeed(path, pictures, every_s=SOON)
        slow, quick = Client(feed), Client(feed)
        async with aclosing(slow.stream), aclosing(quick.stream):
            await anext(slow.stream)
            for step in range(3 * MOST):
                hub.publish({"kind": "step", "step": step})
                await quick.until("step", step=step)
            (behind,) = [reader for reader in feed._readers if len(reader.backlog) > 1]
            assert len(behind.backlog) <= MOST
            told = events_of(await anext(slow.stream))
            steps = [one["step"] for one in told if one["kind"] == "step"]
            assert steps == list(range(steps[0], 3 * MOST))
            assert sum(one["kind"] == "status" for one in told) <= 1
        await feed.close()


async def test_with_the_owner_its_readers_end_after_its_last_word(tmp_path: Path) -> None:
    hub = EventHub()
    async with owner(tmp_path, hub) as path:
        feed = RunFeed(path, Pictures(), every_s=LATE)
        client = Client(feed)
        await client.until("status")
        await until(lambda: len(hub._subscribers) == 1)
        hub.publish({"kind": "end", "how": "done", "code": 0})
        hub.close()
        assert [one["kind"] for one in await client.rest()] == ["end"]
        await feed.close()


async def test_without_an_owner_there_is_how_the_run_stands(tmp_path: Path) -> None:
    for control, told in ((None, []), (tmp_path / "none.sock", ["notice"])):
        feed = RunFeed(control, Pictures(), every_s=SOON)
        client = Client(feed)
        async with aclosing(client.stream):
            for kind in told:
                assert "does not answer" in (await client.until(kind))["text"]
            await client.until("status", asked=4)
        await feed.close()


async def test_a_run_that_does_not_say_how_it_stands_is_asked_again() -> None:
    feed = RunFeed(None, Pictures(fails=2), every_s=SOON)
    client = Client(feed)
    async with aclosing(client.stream):
        assert "the controller is gone" in (await client.until("status"))["error"]
        assert "error" not in await client.until("status", asked=3)
    await feed.close()


async def test_a_reader_to_whom_nothing_is_told_hears_that_the_connection_lives() -> None:
    feed = RunFeed(None, Pictures(), every_s=LATE, keep_alive_s=SOON)
    async with aclosing(feed.read()) as stream:
        heard = [await anext(stream) for _ in range(4)]
    assert heard.count(KEEP_ALIVE) >= 2
    await feed.close()


async def test_closing_ends_all_readers_and_those_that_come_after() -> None:
    feed = RunFeed(None, Pictures(), every_s=LATE)
    client = Client(feed)
    await client.until("status")
    await feed.close()
    assert await client.rest() == []
    assert [one["kind"] for one in await Client(feed).rest()] in (["status"], [])
    assert feed.readers == 0
