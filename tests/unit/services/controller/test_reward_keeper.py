"""The keeper of the reward stage: another one in the place of one that died, with as many children as are wanted."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest
import ray
from support.runs.probe_parts import Handle

from streamrl.errors import ComponentError
from streamrl.services.controller.reward_keeper import RewardKeeper

DEATH = ray.exceptions.ActorDiedError()


class Stages:
    """In the place of the parts: stages that serve until they are told to die. started: (epoch, children) of each;
    scaled: (stage, number of the word, children)."""

    def __init__(self) -> None:
        self.started: list[tuple[int, int]] = []
        self.scaled: list[tuple[int, int, int]] = []
        self.ends: list[asyncio.Future[None]] = []

    def make(self) -> Any:
        stage, end = len(self.ends), asyncio.get_running_loop().create_future()
        self.ends.append(end)
        handle = Handle(
            start=lambda epoch, workers: self.started.append((epoch, workers)),
            scale=lambda number, workers: self.scaled.append((stage, number, workers)),
        )
        handle.run = _Run(end)
        return handle


class _Run:
    def __init__(self, end: "asyncio.Future[None]") -> None:
        self._end = end

    def remote(self) -> "asyncio.Future[None]":
        return self._end


class Told:
    """Whoever owns the keeper."""

    def __init__(self) -> None:
        self.served_names: list[str] = []
        self.deaths: list[str] = []
        self.texts: list[str] = []

    async def ready(self) -> int:
        return 7

    async def owned(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        await work

    async def in_time(self, name: str, call: Any) -> Any:
        return await call

    def served(self, name: str) -> None:
        self.served_names.append(name)

    async def restart_or_raise(self, name: str, error: BaseException, why: str | None, cost: str) -> None:
        if not isinstance(error, ray.exceptions.ActorDiedError):
            raise ComponentError("of its own") from error
        self.deaths.append(f"{name}, {cost}")

    def tell(self, text: str) -> None:
        self.texts.append(text)


def epochs_of(requeued: list[str]) -> Any:
    numbers = iter(range(100))

    def requeue(name: str) -> int:
        requeued.append(name)
        return 12

    return Handle(next_epoch=lambda _: next(numbers), requeue_unscored=requeue)


async def until_started(stages: Stages, count: int) -> None:
    while len(stages.started) < count:  # noqa: ASYNC110
        await asyncio.sleep(0)


async def test_a_stage_that_dies_has_a_successor_with_as_many_children_as_are_wanted() -> None:
    stages, told, requeued = Stages(), Told(), []
    keeper = RewardKeeper(2, stages.make, epochs_of(requeued), told)
    keeping = asyncio.ensure_future(keeper.keep())
    await until_started(stages, 1)
    first = await keeper.seat.get()
    assert keeper.scale(5) == 2
    assert keeper.scale(3) == 5
    stages.ends[0].set_exception(DEATH)
    await until_started(stages, 2)
    assert await keeper.seat.get() is not first
    keeper.scale(4)
    stages.ends[1].set_result(None)
    await keeping
    assert stages.started == [(0, 2), (1, 3)]
    assert stages.scaled == [(0, 0, 5), (0, 1, 3), (1, 2, 4)]
    assert (told.served_names, requeued) == (["reward"] * 2, ["reward"])
    assert told.deaths == ["reward, scored again: 12 rows"]


async def test_an_error_of_the_stages_own_is_raised() -> None:
    stages, told = Stages(), Told()
    keeper = RewardKeeper(1, stages.make, epochs_of([]), told)
    keeping = asyncio.ensure_future(keeper.keep())
    await until_started(stages, 1)
    stages.ends[0].set_exception(ray.exceptions.RayError())
    with pytest.raises(ComponentError, match="of its own"):
        await keeping


async def test_a_child_that_does_not_come_up_is_told_of_once() -> None:
    told = Told()
    keeper = RewardKeeper(3, Stages().make, epochs_of([]), told)
    for status in (None, {"not_started": ""}, {"not_started": "no memory"}, None, {"not_started": "no memory"}):
        keeper.note(status)
    assert told.texts == ["reward workers: one did not start, 3 are wanted: no memory"]
    keeper.note({"not_started": ""})
    keeper.note({"not_started": "no memory"})
    assert len(told.texts) == 2
