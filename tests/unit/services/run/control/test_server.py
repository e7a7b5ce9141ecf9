"""The control socket, both ends: answers, errors, the story for a late subscriber, and slow or odd
clients.
"""

import asyncio
import json
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from streamrl.errors import ComponentError, DeadlineError, ResourceError
from streamrl.services.run.control import server as control_server
from streamrl.services.run.control.client import ControlClient
from streamrl.services.run.control.listener import listen_at
from streamrl.services.run.control.server import ControlServer, EventHub


async def answer() -> dict[str, Any]:
    return {"step": 3, "loss": float("nan")}


async def fail() -> dict[str, Any]:
    raise ResourceError("no room: 3 bytes free")


async def echo(**arguments: Any) -> dict[str, Any]:
    return {"asked": arguments}


async def never() -> dict[str, Any]:
    await asyncio.Event().wait()
    return {}


@asynccontextmanager
async def serving(folder: Path, hub: EventHub) -> AsyncIterator[Path]:
    handlers = {"status": answer, "fail": fail, "never": never, "echo": echo}
    async with ControlServer(listen_at(folder / "control.sock"), hub, handlers):
        try:
            yield folder / "control.sock"
        finally:
            hub.close()


def ask(path: Path, op: str, timeout_s: float = 5.0) -> dict[str, Any]:
    with ControlClient(path, timeout_s) as client:
        return client.ask(op)


def received(path: Path) -> list[dict[str, Any]]:
    with ControlClient(path) as client:
        return [event for event in client.events() if event is not None]


async def off_loop(action: Callable[..., Any], *arguments: Any) -> Any:
    return await asyncio.to_thread(action, *arguments)


async def test_an_answer_comes_back_with_nan_as_null(tmp_path: Path) -> None:
    async with serving(tmp_path, EventHub()) as path:
        assert await off_loop(ask, path, "status") == {"step": 3, "loss": None}


@pytest.mark.parametrize("with_folder", [True, False])
async def test_a_socket_that_a_cleaner_removed_is_there_again_for_this_user_alone(
    with_folder: bool, tmp_path: Path
) -> None:
    folder, hub = tmp_path / "runtime", EventHub()
    folder.mkdir(mode=0o700)
    path = folder / "control.sock"
    async with ControlServer(listen_at(path), hub, {"status": answer}) as server:
        for _ in range(2):
            if with_folder:
                shutil.rmtree(folder)
            else:
                path.unlink()
            await server.restore()
            assert await off_loop(ask, path, "status") == {"step": 3, "loss": None}
            assert path.stat().st_mode & 0o777 == 0o600
            assert folder.stat().st_mode & 0o777 == 0o700
        hub.close()


async def test_a_socket_is_looked_after_while_it_is_served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_server, "LOOK_S", 0.0)
    restored = asyncio.Event()

    class Watched(ControlServer):
        async def restore(self) -> None:
            await super().restore()
            restored.set()

    async with Watched(listen_at(tmp_path / "control.sock"), EventHub(), {"status": answer}):
        (tmp_path / "control.sock").unlink()
        restored.clear()
        await restored.wait()
        assert await off_loop(ask, tmp_path / "control.sock", "status") == {"step": 3, "loss": None}


async def test_arguments_reach_what_is_asked(tmp_path: Path) -> None:
    def ask_with_arguments(path: Path) -> dict[str, Any]:
        with ControlClient(path) as client:
            return client.ask("echo", rollout="4", part=None)

    async with serving(tmp_path, EventHub()) as path:
        assert await off_loop(ask_with_arguments, path) == {"asked": {"rollout": "4", "part": None}}
        assert await off_loop(ask, path, "echo") == {"asked": {}}


async def test_an_error_comes_back_as_its_class_and_the_server_goes_on(tmp_path: Path) -> None:
    async with serving(tmp_path, EventHub()) as path:
        with pytest.raises(ResourceError, match="no room: 3 bytes free"):
            await off_loop(ask, path, "fail")
        with pytest.raises(ComponentError, match="knows no operation 'frob'; it knows echo, events, fail, never"):
            await off_loop(ask, path, "frob")
        assert (await off_loop(ask, path, "status"))["step"] == 3


async def test_a_silent_owner_is_a_deadline_that_names_the_operation(tmp_path: Path) -> None:
    async with serving(tmp_path, EventHub()) as path:
        with pytest.raises(DeadlineError, match=r"did not answer `never` within 0\.1 s"):
            await off_loop(ask, path, "never", 0.1)


async def test_a_late_subscriber_gets_the_story_and_the_newest_step_in_order(tmp_path: Path) -> None:
    hub = EventHub()
    for event in ({"kind": "phase", "name": "ray"}, {"kind": "step", "step": 1}, {"kind": "step", "step": 2}):
        hub.publish(event)
    hub.publish({"kind": "eval", "score": 0.5})
    async with serving(tmp_path, hub) as path:
        reading = asyncio.create_task(off_loop(received, path))
        hub.publish({"kind": "end", "code": 0})
        hub.close()
        events = await reading
    assert [event["kind"] for event in events] == ["phase", "step", "eval", "end"]
    assert events[1]["step"] == 2
    assert all(event["time_ns"] > 0 for event in events)


async def test_a_client_that_never_reads_loses_its_oldest_events_and_holds_nobody_up() -> None:
    hub = EventHub()
    stream = hub.subscribe()
    first = asyncio.create_task(anext(stream))
    # One turn of the loop: the subscriber now waits for its first event.
    await asyncio.sleep(0)
    for step in range(control_server.BACKLOG + 10):
        hub.publish({"kind": "step", "step": step})
    assert (await first)["step"] == 10
    await stream.aclose()


@pytest.mark.parametrize("line", [b"not json\n", b"[1]\n", b'{"op": 5}\n', b"\xff\n", b"x" * 70000 + b"\n"])
async def test_odd_lines_do_no_harm(tmp_path: Path, line: bytes, caplog: pytest.LogCaptureFixture) -> None:
    async with serving(tmp_path, EventHub()) as path:
        reader, writer = await asyncio.open_unix_connection(path)
        writer.write(line)
        reply = await reader.readline()
        assert not reply or "error" in json.loads(reply)
        writer.close()
        await writer.wait_closed()
        assert (await off_loop(ask, path, "status"))["step"] == 3
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []


def test_a_socket_that_nobody_serves_says_so(tmp_path: Path) -> None:
    with pytest.raises(ComponentError, match="does not answer"):
        ControlClient(tmp_path / "none.sock")
    listen_at(tmp_path / "control.sock").close()
    with pytest.raises(ComponentError, match="does not answer"):
        ControlClient(tmp_path / "control.sock")
