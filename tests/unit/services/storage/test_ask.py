"""A store is asked in a child process: it answers, fails, or is ended when its time is over."""

import asyncio
from pathlib import Path

import psutil
import pytest

from streamrl.errors import ComponentError, ConfigError, DeadlineError
from streamrl.services.storage.ask import ask, ask_beside
from streamrl.services.storage.orders import Look, Probe, Take
from streamrl.storage.owners import Owner

OWNER = Owner(run_id="r", name="n", created_ns=1, folder="/x", incarnation=2, token="t", config="seed = 1")
LIMIT_S = 60.0


def children() -> list[psutil.Process]:
    return [one for one in psutil.Process().children(recursive=True) if "services.storage" in " ".join(one.cmdline())]


def test_a_place_is_probed_claimed_and_looked_at(tmp_path: Path) -> None:
    address = f"file://{tmp_path}/store"
    assert ask(Probe(address), LIMIT_S) == {}
    assert list((tmp_path / "store").iterdir()) == []
    assert ask(Look(address), LIMIT_S) == {"owner": None, "step": None}
    ask(Take(address, OWNER), LIMIT_S)
    assert ask(Look(address), LIMIT_S)["owner"]["token"] == "t"
    assert children() == []


def test_what_the_child_fails_with_is_raised_here(tmp_path: Path) -> None:
    (tmp_path / "store").write_text("a file")
    with pytest.raises(ConfigError, match="store"):
        ask(Probe(str(tmp_path / "store")), LIMIT_S)


async def test_beside_an_event_loop_it_is_the_same(tmp_path: Path) -> None:
    assert await ask_beside(Probe(str(tmp_path / "store")), LIMIT_S) == {}
    (tmp_path / "file").write_text("a file")
    with pytest.raises(ConfigError):
        await ask_beside(Probe(str(tmp_path / "file")), LIMIT_S)


def test_a_child_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    with pytest.raises(DeadlineError, match=r"the probe took longer than 0\.01 s"):
        ask(Probe(str(tmp_path / "store")), 0.01)
    assert children() == []


async def test_beside_an_event_loop_too(tmp_path: Path) -> None:
    with pytest.raises(DeadlineError):
        await ask_beside(Probe(str(tmp_path / "store")), 0.01)
    task = asyncio.create_task(ask_beside(Probe(str(tmp_path / "store")), LIMIT_S))
    for _ in range(100):
        await asyncio.sleep(0)  # the child is started, or about to be
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert children() == []


def test_a_child_that_ends_without_a_word_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONHOME", str(tmp_path))
    with pytest.raises(ComponentError, match="its process exited with code"):
        ask(Probe(str(tmp_path / "store")), LIMIT_S)
