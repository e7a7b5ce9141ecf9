"""What autoscaling asks for is done or refused, and told; a person's number comes first."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from support.learner.probe_learner import open_run
from support.runs.probe_parts import Handle

from streamrl.clock import VirtualClock
from streamrl.config.schema.rollout import AutoscalingConfig, RolloutConfig
from streamrl.config.schema.run import Config, ModelConfig
from streamrl.scheduling.utilization import LOOK_BACK_S, Waited
from streamrl.services.controller.nodes import Nodes
from streamrl.services.controller.parts import Parts
from streamrl.services.controller.replica_scaler import ReplicaScaler
from streamrl.services.controller.replicas import ReplicaPool

STATUS = {"guests": 0, "running": 60, "waiting": 10}
AUTOSCALING = AutoscalingConfig(max_replicas=4, upscale_delay_s=5.0, downscale_delay_s=5.0)


class Owner:
    """Whoever owns the pool: its parts start at once and never end."""

    async def ready(self) -> int:
        return 7

    async def owned(self, name: str, work: Coroutine[Any, Any, None], /) -> None:
        await work

    async def in_time(self, name: str, call: Any, /) -> Any:
        return await call

    def served(self, name: str, /) -> None: ...

    def excuse(self, name: str, /) -> None: ...

    async def restart_or_raise(self, name: str, error: BaseException, why: str | None, cost: str, /) -> None:
        raise error

    def tell(self, text: str, /) -> None: ...


class Live:
    """A pool whose replicas are handles, and its scaler; the learner lacks `starved` of each second."""

    def __init__(self, folder: Path, rollout: RolloutConfig, fixed: bool = False) -> None:
        config = Config(model=ModelConfig(preset="tiny-qwen3"), rollout=rollout)
        run = open_run(config, folder)
        self.clock, self.starved, self.step, self._starved_s = VirtualClock(), 1.0, 0, 0.0
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.expected: list[int] = []
        queue = Handle(next_epoch=lambda name: 0, waits=self._waits)
        nodes = Nodes(Parts(str(folder), config), run, config, lambda text: None)
        make: Callable[[int], Any] = lambda index: Handle(start=lambda *args: None)  # noqa: E731
        self.pool = ReplicaPool(rollout.replicas, make, queue, Handle(), nodes, Owner(), (), 1.0)
        self.scaler = ReplicaScaler(
            config, self.clock, self.pool, queue, self._expect, lambda *event: self.events.append(event), fixed
        )

    def _waits(self) -> tuple[int, Waited]:
        return self.step, Waited(learner_s=self._starved_s, starved_s=self._starved_s)

    async def _expect(self, replicas: int) -> None:
        self.expected.append(replicas)

    async def look_for(self, seconds: int, paused: bool = False) -> None:
        for _ in range(seconds):
            self.clock.advance(1.0)
            self._starved_s, self.step = self._starved_s + self.starved, self.step + 1
            await self.scaler.tick([STATUS] * len(self.pool.serving), paused=paused)
            await turn()


async def turn() -> None:
    """Let what was begun come to where it waits."""
    for _ in range(20):
        await asyncio.sleep(0)


def live(folder: Path, then: Callable[[Live], Awaitable[None]], *, fixed: bool = False, **rollout: Any) -> Live:
    """Do something with a pool that runs."""

    async def play() -> Live:
        one = Live(folder, RolloutConfig(**{"engine": "scripted", "autoscaling": AUTOSCALING, **rollout}), fixed)
        loop = asyncio.create_task(one.pool.loop())
        await turn()
        await then(one)
        loop.cancel()
        await asyncio.gather(loop, return_exceptions=True)
        return one

    return asyncio.run(play())


def test_what_is_decided_is_done_and_told_with_its_reason(tmp_path: Path) -> None:
    async def then(one: Live) -> None:
        await one.look_for(40)
        assert (one.pool.wanted, len(one.pool.serving)) == (2, 2)

    one = live(tmp_path, then)
    assert one.expected == [2]
    ((kind, facts),) = one.events
    assert (kind, facts["before"], facts["replicas"]) == ("autoscaling", 1, 2)
    assert facts["text"].startswith("rollout replicas: 1 -> 2: over the last ")
    assert facts["reason"] in facts["text"]
    assert one.scaler.status()["autoscaling"]["reason"].startswith("1 -> 2: ")


def test_without_memory_the_number_stays_and_that_is_told_once(tmp_path: Path) -> None:
    async def then(one: Live) -> None:
        await one.look_for(300)
        assert one.pool.wanted == 1

    one = live(tmp_path, then, engine="torch", slots=2**40, kv_bytes=2**50)
    ((kind, facts),) = one.events
    assert kind == "notice"
    assert facts["text"].startswith("rollout replicas stay 1, not 2: over the last ")
    assert "rollout.kv_bytes: the run needs about" in facts["text"]


def test_a_persons_number_stays_until_it_is_left_to_autoscaling(tmp_path: Path) -> None:
    async def then(one: Live) -> None:
        await one.scaler.by_person(3)
        await one.look_for(300)
        assert one.pool.wanted == 3
        await one.scaler.by_person(None)
        await one.look_for(40)
        assert one.pool.wanted == 4

    one = live(tmp_path, then)
    assert [facts["text"] for kind, facts in one.events if kind == "notice"] == [
        "rollout replicas: 1 -> 3, until rollout=auto",
        "rollout replicas: 3 -> 3, by autoscaling",
    ]


def test_a_person_who_sets_the_number_while_another_is_decided_has_it(tmp_path: Path) -> None:
    async def then(one: Live) -> None:
        await one.look_for(int(LOOK_BACK_S + AUTOSCALING.upscale_delay_s))
        assert not one.events
        # The next look decides, and weighs the machine's memory in a thread meanwhile.
        await asyncio.gather(one.look_for(1), one.scaler.by_person(4))
        assert one.pool.wanted == 4

    one = live(tmp_path, then)
    assert [kind for kind, _ in one.events] == ["notice"]


def test_a_pool_changes_until_those_that_leave_have_left(tmp_path: Path) -> None:
    async def then(one: Live) -> None:
        await one.scaler.by_person(3)
        await one.look_for(2)
        assert (len(one.pool.serving), one.pool.changing) == (3, False)
        await one.scaler.by_person(2)
        await one.look_for(2)
        assert (len(one.pool.serving), one.pool.changing) == (2, True)

    live(tmp_path, then)


@pytest.mark.parametrize("fixed", [False, True])
def test_a_resumed_run_whose_number_a_person_set_keeps_it(tmp_path: Path, fixed: bool) -> None:
    async def then(one: Live) -> None:
        await one.look_for(100)

    one = live(tmp_path, then, fixed=fixed)
    assert one.pool.wanted == (1 if fixed else 4)
    assert one.scaler.status()["autoscaling"]["fixed"] is fixed


def test_a_run_that_waits_for_its_disk_is_not_scaled(tmp_path: Path) -> None:
    async def then(one: Live) -> None:
        await one.look_for(100, paused=True)

    assert live(tmp_path, then).events == []


def test_a_run_without_autoscaling_has_the_number_that_it_was_given(tmp_path: Path) -> None:
    async def then(one: Live) -> None:
        await one.look_for(100)
        await one.scaler.by_person(2)

    one = live(tmp_path, then, autoscaling=AutoscalingConfig())
    assert one.events == [("notice", {"text": "rollout replicas: 1 -> 2"})]
    assert one.scaler.status() == {}
