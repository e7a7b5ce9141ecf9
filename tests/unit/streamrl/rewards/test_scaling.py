"""A pool of reward workers that becomes larger and smaller while it scores: nothing is lost, nothing asked twice."""

import asyncio
import os
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from support.own_children import own_children

from streamrl.rewards.base import RewardItem
from streamrl.rewards.pool import RewardPool
from streamrl.types import Score

REWARDS = """
import os, signal, sys

folder = os.path.dirname(__file__)
if os.path.exists(os.path.join(folder, "held")):
    open(os.path.join(folder, "gate")).close()
if os.path.exists(os.path.join(folder, "broken")):
    raise RuntimeError("no such weights")

def reward(completion, **rest):
    with open(os.path.join(folder, "asked"), "a") as file:
        file.write(completion + "\\n")
    if completion.startswith("die"):
        os.kill(os.getpid(), signal.SIGKILL)
    if completion.startswith("wait"):
        open(os.path.join(folder, "gate")).close()
    return float(completion.lstrip("wait"))
"""


class Folder:
    """Of the reward's module. Whoever waits at the gate, to start or to score, goes on when it is opened."""

    def __init__(self, path: Path) -> None:
        self.path = path
        (path / "slow_rewards.py").write_text(REWARDS)
        (path / "asked").touch()
        os.mkfifo(path / "gate")
        self.opened: list[int] = []

    def asked(self) -> list[str]:
        """What children were given, in the order in which they began with it."""
        return (self.path / "asked").read_text().split()

    def open_gate(self) -> None:
        """Let go on who waits there, and who comes later."""
        # For both ways, so that it waits for nobody; it stays open with the descriptor.
        self.opened.append(os.open(self.path / "gate", os.O_RDWR))


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Folder]:
    made = Folder(tmp_path)
    yield made
    for descriptor in made.opened:
        os.close(descriptor)


@asynccontextmanager
async def open_pool(folder: Folder, *, workers: int, batch_size: int = 1) -> AsyncIterator[RewardPool]:
    pool = RewardPool(
        "slow_rewards:reward",
        workers=workers,
        batch_size=batch_size,
        timeout_s=60.0,
        memory_bytes=2**28,
        import_paths=[str(folder.path)],
    )
    async with pool:
        yield pool
    assert pool.pids == []
    assert own_children() == []


def items(*completions: str) -> list[RewardItem]:
    return [RewardItem(completion) for completion in completions]


async def until(done: Callable[[], bool]) -> None:
    while not done():  # noqa: ASYNC110 - a child tells of itself by a file
        await asyncio.sleep(0)


async def settled(pool: RewardPool, *, workers: int) -> None:
    """Wait until so many children are given work, and there is no other one."""
    await until(lambda: pool.size == workers)
    await until(lambda: len(own_children()) == workers)
    assert sorted(child.pid for child in own_children()) == sorted(pool.pids)


async def busy(folder: Folder, *, workers: int) -> None:
    """Wait until so many children have begun with an item."""
    await until(lambda: len(folder.asked()) == workers)


def rewards(scores: list[Score]) -> list[float | None]:
    return [score.reward for score in scores]


async def test_a_pool_that_grows_uses_its_new_children_and_one_that_shrinks_keeps_the_rest(folder: Folder) -> None:
    async with open_pool(folder, workers=1) as pool:
        first = pool.pids
        pool.scale(3)
        assert (pool.wanted, pool.size) == (3, 1)
        await settled(pool, workers=3)
        assert pool.pids[:1] == first
        scoring = asyncio.ensure_future(pool.score(items("wait1", "wait2", "wait3")))
        await busy(folder, workers=3)  # one child alone would not begin with all three
        folder.open_gate()
        await scoring
        assert rewards(scoring.result()) == [1.0, 2.0, 3.0]
        pool.scale(1)
        await settled(pool, workers=1)
        assert rewards(await pool.score(items("4", "5"))) == [4.0, 5.0]


async def test_a_child_that_joins_is_given_nothing_before_it_is_up_and_the_others_go_on(folder: Folder) -> None:
    async with open_pool(folder, workers=1) as pool:
        (folder.path / "held").touch()
        pool.scale(2)
        assert rewards(await pool.score(items("1", "2", "3"))) == [1.0, 2.0, 3.0]
        assert pool.size == 1
        folder.open_gate()
        await settled(pool, workers=2)


async def test_children_that_leave_end_first_what_they_were_given(folder: Folder) -> None:
    async with open_pool(folder, workers=3) as pool:
        scoring = asyncio.ensure_future(pool.score(items("wait1", "wait2", "wait3")))
        await busy(folder, workers=3)
        before = pool.pids
        pool.scale(1)
        assert (pool.wanted, pool.size, pool.pids) == (1, 3, before)
        folder.open_gate()
        await scoring
        assert rewards(scoring.result()) == [1.0, 2.0, 3.0]
        await settled(pool, workers=1)
    assert Counter(folder.asked()) == Counter(["wait1", "wait2", "wait3"])
    assert pool.lost == 0


async def test_children_that_were_to_leave_and_are_wanted_again_stay(folder: Folder) -> None:
    async with open_pool(folder, workers=2) as pool:
        scoring = asyncio.ensure_future(pool.score(items("wait1", "wait2")))
        await busy(folder, workers=2)
        before = pool.pids
        pool.scale(1)
        pool.scale(2)
        folder.open_gate()
        await scoring
        await settled(pool, workers=2)
        assert sorted(pool.pids) == sorted(before)


async def test_one_that_starts_and_is_not_wanted_any_more_leaves_no_process(folder: Folder) -> None:
    async with open_pool(folder, workers=1) as pool:
        first = pool.pids
        (folder.path / "held").touch()
        pool.scale(4)
        await until(lambda: len(own_children()) == 4)
        pool.scale(1)
        await settled(pool, workers=1)
        assert pool.pids == first


async def test_a_child_that_dies_while_others_join_or_leave_costs_its_item_alone(folder: Folder) -> None:
    async with open_pool(folder, workers=2) as pool:
        scoring = asyncio.ensure_future(pool.score(items("1", "die2", "3", "4", "die5", "6")))
        pool.scale(4)
        scores = await scoring
        assert rewards(scores) == [1.0, None, 3.0, 4.0, None, 6.0]
        await settled(pool, workers=4)
        scoring = asyncio.ensure_future(pool.score(items("7", "die8", "9", "wait10")))
        await until(lambda: "wait10" in folder.asked())
        pool.scale(1)
        folder.open_gate()
        await scoring
        assert rewards(scoring.result()) == [7.0, None, 9.0, 10.0]
        await settled(pool, workers=1)


async def test_one_that_does_not_come_up_is_told_and_tried_again_when_it_is_asked_for_again(folder: Folder) -> None:
    async with open_pool(folder, workers=1) as pool:
        (folder.path / "broken").touch()
        pool.scale(2)
        await until(lambda: bool(pool.not_started))
        assert "no such weights" in pool.not_started
        assert (pool.wanted, pool.size) == (2, 1)
        assert rewards(await pool.score(items("1"))) == [1.0]
        (folder.path / "broken").unlink()
        pool.scale(2)
        assert pool.not_started == ""
        await settled(pool, workers=2)


async def test_closing_ends_those_that_join_and_those_that_leave(folder: Folder) -> None:
    async with open_pool(folder, workers=2) as pool:
        scoring = asyncio.ensure_future(pool.score(items("wait1", "wait2")))
        await busy(folder, workers=2)
        (folder.path / "held").touch()
        pool.scale(1)
        pool.scale(3)
        await until(lambda: len(own_children()) == 3)
        await pool.close()
        pool.scale(5)
        assert pool.wanted == 3, "a pool that is closed grows no more"
        await asyncio.gather(scoring, return_exceptions=True)
        assert scoring.exception() is not None


@pytest.mark.parametrize("attempt", range(3))
async def test_whatever_is_asked_in_whatever_order_each_item_is_scored_once(folder: Folder, attempt: int) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    draw = random.Random(seed)
    calls: list[asyncio.Future[list[Score]]] = []
    expected: list[list[float]] = []
    async with open_pool(folder, workers=draw.randint(1, 3), batch_size=4) as pool:
        for number in range(24):
            if draw.random() < 0.4:
                pool.scale(draw.randint(1, 4))
            else:
                values = [float(1000 * number + place) for place in range(draw.randint(1, 12))]
                expected.append(values)
                calls.append(asyncio.ensure_future(pool.score(items(*map(str, values)))))
            for _ in range(draw.choice((0, 0, 1, 50, 2000))):
                await asyncio.sleep(0)
        assert [rewards(scores) for scores in await asyncio.gather(*calls)] == expected
        await settled(pool, workers=pool.wanted)
    assert Counter(folder.asked()) == Counter(str(value) for values in expected for value in values)
    assert pool.lost == 0


async def test_items_that_kill_their_child_meanwhile_fail_alone(folder: Folder) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    draw = random.Random(seed)
    calls: list[asyncio.Future[list[Score]]] = []
    expected: list[list[float | None]] = []
    async with open_pool(folder, workers=2, batch_size=4) as pool:
        for number in range(10):
            values = [None if draw.random() < 0.08 else float(8 * number + place) for place in range(8)]
            expected.append(values)
            asked = items(*("die" if value is None else str(value) for value in values))
            calls.append(asyncio.ensure_future(pool.score(asked)))
            pool.scale(draw.randint(1, 3))
            for _ in range(draw.choice((0, 50, 2000))):
                await asyncio.sleep(0)
        assert [rewards(scores) for scores in await asyncio.gather(*calls)] == expected
        await settled(pool, workers=pool.wanted)
