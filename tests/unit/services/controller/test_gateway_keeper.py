"""The keeper of the gateway: what of it may end a run, and what never does."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
from support.learner.probe_learner import open_run
from support.runs.probe_parts import Handle

from streamrl.clock import VirtualClock
from streamrl.config import Config
from streamrl.config.schema.run import GatewayConfig
from streamrl.errors import ResourceError
from streamrl.services.actors.restarts import RestartBudget
from streamrl.services.controller.gateway_keeper import GatewayKeeper
from streamrl.services.controller.health.death_monitor import DeathMonitor

DEATH = ray.exceptions.ActorDiedError()


class Fates:
    """In the place of the parts: each gateway that is made meets the next fate: its port, or what its start or its run
    ends with."""

    def __init__(self, fates: Iterator[Any]) -> None:
        self._fates = fates
        self.starts: list[tuple[int, int, int]] = []
        self.serves: list[tuple[int, list[str]]] = []

    def gateway(self) -> Any:
        start, run = next(self._fates)

        def started(*args: int) -> int:
            self.starts.append(args)
            return _met(start)

        def serve(number: int, replicas: dict[str, Any]) -> None:
            self.serves.append((number, sorted(replicas)))

        methods = {"start": started, "serve": serve}
        return Handle(**methods, **({"run": lambda: _met(run)} if run is not None else {}))


def _met(fate: Any) -> Any:
    if isinstance(fate, BaseException):
        raise fate
    return fate


async def kept(
    folder: Path, monkeypatch: pytest.MonkeyPatch, *fates: Any, steps: Iterator[int] | None = None
) -> tuple[Fates, list[Any], Any]:
    """What was made, told and raised, until a gateway runs for good or there is none any more."""
    monkeypatch.setattr(ray, "kill", lambda handle: None)  # there is no Ray
    told: list[Any] = []
    run = open_run(Config(), folder / "run")
    parts: Any = Fates(iter(fates))
    number = (lambda: next(steps)) if steps is not None else (lambda: 0)
    config = Config(gateway=GatewayConfig(enabled=True))
    parts.pauses = []

    async def pause(seconds: float) -> None:
        parts.pauses.append(seconds)

    explain = DeathMonitor(run, 10_000, VirtualClock()).explain
    keeper = GatewayKeeper(run, config, RestartBudget(), number, lambda *event: told.append(event), explain, pause)
    keeper.serves("rollout-0", Handle())
    keeping = asyncio.ensure_future(keeper.keep(parts.gateway, 7))
    for _ in range(200):
        await asyncio.sleep(0)
    failed = keeping.exception() if keeping.done() else None
    keeping.cancel()
    return parts, told, failed


async def test_an_error_of_its_own_at_its_first_start_ends_the_run(tmp_path, monkeypatch) -> None:
    taken = ResourceError("the gateway cannot listen on 127.0.0.1:80")
    error = ray.exceptions.RayTaskError("start", "", taken).as_instanceof_cause()
    _, told, failed = await kept(tmp_path, monkeypatch, (error, None))
    assert isinstance(failed, ResourceError)
    assert told == []


async def test_its_death_never_ends_the_run_not_even_before_it_served(tmp_path, monkeypatch) -> None:
    parts, told, failed = await kept(tmp_path, monkeypatch, (DEATH, None), (8001, DEATH), (8001, None))
    assert failed is None
    assert parts.starts == [(0, 7, 0), (1, 7, 0), (2, 7, 8001)]  # a higher number each time, and the port that it had
    assert [kind for kind, _ in told] == ["notice", "gateway", "notice", "gateway"]
    assert {facts["url"] for kind, facts in told if kind == "gateway"} == {"http://127.0.0.1:8001"}
    assert [names for _, names in parts.serves] == [["rollout-0"]] * 2
    assert parts.serves[0][0] < parts.serves[1][0]


async def test_with_its_restarts_used_up_the_run_goes_on_without_it(tmp_path, monkeypatch) -> None:
    parts, told, failed = await kept(tmp_path, monkeypatch, *[(8001, DEATH)] * 4)
    assert failed is None
    assert len(parts.starts) == 4
    assert parts.pauses == [0, 1, 2]
    assert told[-1][0] == "notice"
    assert told[-1][1]["text"].endswith("the run goes on without it")


async def test_steps_that_were_trained_while_it_served_forgive_its_deaths(tmp_path, monkeypatch) -> None:
    steps = iter(range(1000))
    parts, _, failed = await kept(tmp_path, monkeypatch, *[(8001, DEATH)] * 9, (8001, None), steps=steps)
    assert failed is None
    assert len(parts.starts) == 10
    assert parts.pauses == [0] * 9


async def test_ingresses_hear_of_each_change_and_of_a_gateway_that_died(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray, "kill", lambda handle: None)  # there is no Ray
    run, config = open_run(Config(), tmp_path / "run"), Config(gateway=GatewayConfig(enabled=True))
    explain, paused = DeathMonitor(run, 10_000, VirtualClock()).explain, asyncio.Event()
    parts: Any = Fates(iter([(7001, DEATH), (7001, None)]))
    keeper = GatewayKeeper(
        run,
        config,
        RestartBudget(),
        lambda: 0,
        lambda *_: None,
        explain,
        lambda _: paused.wait(),  # type: ignore[arg-type]
    )
    before = await keeper.words(-1)
    asked = asyncio.ensure_future(keeper.words(before[0]))
    await asyncio.sleep(0)
    assert not asked.done()
    keeper.serves("rollout-0", Handle())
    number, home, replicas = await asked
    assert (before[1:], home, list(replicas)) == ((None, {}), None, ["rollout-0"])
    keeping = asyncio.ensure_future(keeper.keep(parts.gateway, 7))
    while home is not None or not keeper.status():  # it has served, and is gone
        number, home, _ = await keeper.words(number)
    paused.set()
    while home is None:
        number, home, _ = await keeper.words(number)
    assert keeper.status()["gateway"]["started"] == 2
    keeping.cancel()
