"""Uploads beside a run: the newest checkpoint, one at a time; a store that fails or hangs holds nobody up."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from streamrl.config.schema.run import CheckpointConfig, Config, ModelConfig
from streamrl.errors import ComponentError, FencedError
from streamrl.services.run.folder import RunFolder
from streamrl.services.storage.mirror import LONGEST_PAUSE_S, CheckpointMirror, UploadBooks
from streamrl.services.storage.orders import Order, Upload

ADDRESS = "s3://bucket/runs/run"
Answer = Callable[[int], Awaitable[dict[str, Any]]]


class Asked:
    """A store: answers by the number of the question. orders: all that it was asked."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self.orders: list[Order] = []

    async def __call__(self, order: Order, limit_s: float) -> dict[str, Any]:
        self.orders.append(order)
        return await self._answer(len(self.orders))


def mirror_of(folder: Path, asked: Asked, told: list[str], *, to: str | None = "s3://bucket/runs") -> CheckpointMirror:
    folder.mkdir(exist_ok=True)
    config = Config(name="run", model=ModelConfig(preset="tiny-qwen3"), checkpoint=CheckpointConfig(folder=to))
    mirror = CheckpointMirror(RunFolder.create(folder, "run"), config, told.append, asked)
    mirror.start()
    return mirror


async def turns(count: int = 20) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_a_checkpoint_is_put_when_it_is_committed(tmp_path: Path) -> None:
    async def answer(_: int) -> dict[str, Any]:
        return {"step": 40, "bytes": 9}

    asked, told = Asked(answer), list[str]()
    mirror = mirror_of(tmp_path / "run", asked, told)
    mirror.committed(40)
    await mirror.finish(60)
    (order,) = asked.orders
    assert isinstance(order, Upload)
    assert (order.address, order.run_folder, order.keep) == (ADDRESS, str(tmp_path / "run"), 2)
    assert mirror.status() == {"stored": {"address": ADDRESS, "step": 40, "bytes": 9}}
    assert told == []


async def test_of_several_that_are_committed_meanwhile_the_newest_is_put(tmp_path: Path) -> None:
    release = asyncio.Event()

    async def answer(number: int) -> dict[str, Any]:
        if number == 1:
            await release.wait()
        return {"step": 10 if number == 1 else 40, "bytes": 9}

    asked, told = Asked(answer), list[str]()
    mirror = mirror_of(tmp_path / "run", asked, told)
    mirror.committed(10)
    await turns()
    for step in (20, 30, 40):
        mirror.committed(step)
    release.set()
    await mirror.finish(60)
    assert len(asked.orders) == 2
    assert mirror.status()["stored"]["step"] == 40


async def test_a_store_that_fails_is_told_once_and_its_return_once(tmp_path: Path) -> None:
    async def answer(number: int) -> dict[str, Any]:
        if number < 4:
            raise ComponentError(f"refused {number}")
        return {"step": 4, "bytes": 9}

    asked, told = Asked(answer), list[str]()
    mirror = mirror_of(tmp_path / "run", asked, told)
    for step in (1, 2, 3):
        mirror.committed(step)
        await turns()
    assert mirror.status()["stored"]["failing"] == "refused 3"
    mirror.committed(4)
    await mirror.finish(60)
    assert told == [
        "the checkpoint of step 1 is not stored yet, and is tried on: refused 1",
        "checkpoints are stored again, that of step 4 is there",
    ]


async def test_a_store_that_hangs_is_left_at_the_end_and_what_is_not_stored_is_told(tmp_path: Path) -> None:
    ended = asyncio.Event()

    async def answer(_: int) -> dict[str, Any]:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        return {}

    asked, told = Asked(answer), list[str]()
    mirror = mirror_of(tmp_path / "run", asked, told)
    mirror.committed(7)
    await turns()
    await mirror.finish(0.01)
    assert ended.is_set()
    (text,) = told
    assert text.startswith(
        f"the checkpoint of step 7 is in the run folder, and not in {ADDRESS}: 0.01 s were not enough"
    )
    assert text.endswith("the next `streamrl up` stores it")


async def test_a_launch_that_was_replaced_puts_no_more(tmp_path: Path) -> None:
    async def answer(_: int) -> dict[str, Any]:
        raise FencedError("taken over")

    asked, told = Asked(answer), list[str]()
    mirror = mirror_of(tmp_path / "run", asked, told)
    mirror.committed(1)
    await turns()
    mirror.committed(2)
    await mirror.finish(60)
    assert len(asked.orders) == 1
    assert told == ["taken over"]
    assert mirror.status()["stored"]["failing"] == "taken over"


async def test_a_learner_that_goes_back_to_an_older_checkpoint_is_followed(tmp_path: Path) -> None:
    async def answer(_: int) -> dict[str, Any]:
        return {"step": 40, "bytes": 0}

    asked, told = Asked(answer), list[str]()
    mirror = mirror_of(tmp_path / "run", asked, told)
    mirror.committed(40)
    await turns()
    mirror.committed(20)
    await mirror.finish(60)
    assert len(asked.orders) == 2
    assert told == []


async def test_without_a_second_place_nothing_is_asked(tmp_path: Path) -> None:
    async def answer(_: int) -> dict[str, Any]:
        raise AssertionError

    asked, told = Asked(answer), list[str]()
    mirror = mirror_of(tmp_path / "run", asked, told, to=None)
    mirror.committed(1)
    await mirror.finish(60)
    assert (asked.orders, told, mirror.status()) == ([], [], {})


def test_pauses_grow_to_a_bound() -> None:
    books = UploadBooks()
    books.committed(1)
    pauses = [books.failed("no")[0] for _ in range(12)]
    assert pauses[:4] == [1.0, 2.0, 4.0, 8.0]
    assert pauses[-1] == LONGEST_PAUSE_S
    books.succeeded(1)
    assert books.failed("no")[0] == 1.0
