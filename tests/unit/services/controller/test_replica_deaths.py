"""What the pool of replicas does when one dies: the queue hears of it first, and may excuse it."""

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest
import ray
from support.learner.probe_learner import open_run
from support.runs.probe_parts import Handle

from streamrl.config.schema.run import Config, ModelConfig
from streamrl.errors import DeadlineError, ProcessDiedError
from streamrl.services.controller.nodes import Nodes
from streamrl.services.controller.parts import Parts
from streamrl.services.controller.replicas import ReplicaPool


class Owner:
    """Whoever owns the pool; `said` is what it was told, in order."""

    def __init__(self) -> None:
        self.said: list[str] = []

    async def ready(self) -> int:
        return 7

    async def owned(self, name: str, work: Coroutine[Any, Any, None], /) -> None:
        await work

    async def in_time(self, name: str, call: Any, /) -> Any:
        return await call

    def served(self, name: str, /) -> None:
        self.said.append(f"{name} serves")

    def excuse(self, name: str, /) -> None:
        self.said.append(f"{name} is excused")

    async def restart_or_raise(self, name: str, error: BaseException, why: str | None, cost: str, /) -> None:
        self.said.append(f"{name} died, {cost}")

    def tell(self, text: str, /) -> None: ...


class Patient(Owner):
    """One that lets nothing start again before it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.may_restart = asyncio.Event()

    async def restart_or_raise(self, name: str, error: BaseException, why: str | None, cost: str, /) -> None:
        await super().restart_or_raise(name, error, why, cost)
        await self.may_restart.wait()


def die() -> None:
    raise ProcessDiedError("killed")


@pytest.mark.parametrize("excused", [False, True])
def test_a_death_is_told_to_the_queue_and_excused_before_it_is_counted_where_a_group_is_to_blame(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, excused: bool
) -> None:
    monkeypatch.setattr(ray, "kill", lambda handle: None)
    config = Config(model=ModelConfig(preset="tiny-qwen3"))
    owner, epochs, lives = Owner(), [], iter([{"run": die}, {}])

    def make(index: int) -> Any:
        return Handle(start=lambda epoch, *_: epochs.append(epoch), **next(lives))

    async def play() -> None:
        queue = Handle(next_epoch=lambda name: 0, died=lambda name: (1, excused, 3))
        nodes = Nodes(Parts(str(tmp_path), config), open_run(config, tmp_path), config, lambda text: None)
        pool = ReplicaPool(1, make, queue, Handle(leave=lambda name: None), nodes, owner, (), 1.0)
        loop = asyncio.create_task(pool.loop())
        for _ in range(50):
            await asyncio.sleep(0)
        loop.cancel()
        await asyncio.gather(loop, return_exceptions=True)

    asyncio.run(play())
    excuse = ["rollout-0 is excused"] if excused else []
    assert owner.said == ["rollout-0 serves", *excuse, "rollout-0 died, issued again: 3 groups", "rollout-0 serves"]
    assert epochs == [0, 1]


@pytest.mark.parametrize("wanted", [1, 2])
def test_one_that_is_not_wanted_any_more_when_it_may_start_again_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wanted: int
) -> None:
    monkeypatch.setattr(ray, "kill", lambda handle: None)
    config = Config(model=ModelConfig(preset="tiny-qwen3"))
    made: list[int] = []
    left: list[str] = []

    def make(index: int) -> Any:
        made.append(index)
        return Handle(start=lambda *_: None, **({"run": die} if made == [0, 1] else {}))

    async def turns() -> None:
        for _ in range(50):
            await asyncio.sleep(0)

    async def play() -> None:
        owner = Patient()
        queue = Handle(next_epoch=lambda name: 0, died=lambda name: (1, False, 0))
        nodes = Nodes(Parts(str(tmp_path), config), open_run(config, tmp_path), config, lambda text: None)
        pool = ReplicaPool(2, make, queue, Handle(leave=left.append), nodes, owner, (), 1.0)
        loop = asyncio.create_task(pool.loop())
        await turns()
        assert (made, left) == ([0, 1], ["rollout-1"])  # fenced at once, and started again later
        pool.scale(wanted)
        await turns()
        owner.may_restart.set()
        await turns()
        assert made == ([0, 1] if wanted == 1 else [0, 1, 1])
        assert not pool.changing
        loop.cancel()
        await asyncio.gather(loop, return_exceptions=True)

    asyncio.run(play())


class Strict(Owner):
    """One whose parts are past the deadline of their start where `late` says so; `whys` is why it ended them."""

    def __init__(self, late: list[bool]) -> None:
        super().__init__()
        self._late = late
        self.whys: list[str | None] = []

    async def in_time(self, name: str, call: Any, /) -> Any:
        if self._late.pop(0):
            raise DeadlineError(f"{name}: the start took longer than 120 s")
        return await call

    async def restart_or_raise(self, name: str, error: BaseException, why: str | None, cost: str, /) -> None:
        assert isinstance(error, ProcessDiedError)
        self.whys.append(why)


def started(folder: Path, owner: Strict, runs: list[dict[str, Any]]) -> BaseException | None:
    """What ended the pool while each process of `runs` had its turn; None where nothing did."""
    config = Config(model=ModelConfig(preset="tiny-qwen3"))
    lives = iter(runs)

    def make(index: int) -> Any:
        return Handle(start=lambda *_: None, **next(lives))

    async def play() -> BaseException | None:
        queue = Handle(next_epoch=lambda name: 0, died=lambda name: (1, False, 0))
        nodes = Nodes(Parts(str(folder), config), open_run(config, folder), config, lambda text: None)
        pool = ReplicaPool(1, make, queue, Handle(leave=lambda name: None), nodes, owner, (), 1.0)
        loop = asyncio.create_task(pool.loop())
        for _ in range(80):
            await asyncio.sleep(0)
        ended = loop.exception() if loop.done() else None
        loop.cancel()
        await asyncio.gather(loop, return_exceptions=True)
        return ended

    return asyncio.run(play())


def test_one_that_is_stuck_in_its_start_is_dead_once_another_has_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray, "kill", lambda handle: None)
    owner = Strict([False, True, False])
    assert started(tmp_path, owner, [{"run": die}, {}, {}]) is None
    assert owner.whys == [None, "the start took longer than 120 s"]
    assert owner.said == ["rollout-0 serves", "rollout-0 serves"]


def test_the_first_start_that_is_stuck_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray, "kill", lambda handle: None)
    ended = started(tmp_path, Strict([True]), [{}])
    assert str(ended) == "rollout-0: the start took longer than 120 s"
