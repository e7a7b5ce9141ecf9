"""A run that stands still is told of once, with the file of stacks, and shown as such until it moves."""

from pathlib import Path

import msgspec
import pytest
from support.learner.probe_learner import open_run
from support.runs.probe_parts import Handle

from streamrl.clock import VirtualClock
from streamrl.config import Config
from streamrl.config.schema.run import DeadlineConfig, GatewayConfig, ModelConfig
from streamrl.observability.stall_detector import Parts
from streamrl.services.controller.health.stall_monitor import StallMonitor, part_statuses

BOOKS = {"learner_waits": True, "groups_ready": 0, "groups_running": 1, "rows_complete": 0, "prompts_waiting": 0}


class Standing:
    """A monitor over parts that say what `books` says, its clock, and what it has told."""

    def __init__(self, folder: Path, **tables: object) -> None:
        config = Config(model=ModelConfig(preset="tiny-qwen3"), deadlines=DeadlineConfig(stall_s=60.0), **tables)
        self.run = open_run(config, folder)
        self.run.logs_path.mkdir(exist_ok=True)
        self.clock = VirtualClock()
        self.books = dict(BOOKS)
        self.low = False
        self.told: list[str] = []
        self.far = [("0123456789ab", "==== rollout-1, pid 7\nfar away\n", 1)]
        self.monitor = StallMonitor(
            self.run,
            config,
            self.clock,
            ask=self._say,
            disk_low=lambda: self.low,
            far_stacks=self._far_stacks,
            tell=self.told.append,
        )

    async def _say(self) -> Parts:
        return Parts(queue=dict(self.books), reward=None, learner=[], replicas={}, weights="0.1")

    async def _far_stacks(self) -> list[tuple[str, str, int]]:
        return self.far

    async def after(self, seconds: float) -> list[str]:
        """What is told by a look so much later."""
        self.clock.advance(seconds)
        before = len(self.told)
        await self.monitor.check()
        return self.told[before:]

    def files(self) -> list[Path]:
        return sorted(self.run.logs_path.glob("stacks-*.txt"))


async def test_a_stall_is_told_once_with_its_file_and_shown_until_the_run_moves(tmp_path: Path) -> None:
    standing = Standing(tmp_path)
    assert await standing.after(0.0) == []
    assert await standing.after(59.0) == []
    assert standing.monitor.status() == {}
    (told,) = await standing.after(1.0)
    (path,) = standing.files()
    assert told.startswith("no progress for 60 s, waiting for a replica: ")
    assert told.endswith(f"; the stacks of 1 processes are in {path}")
    assert path.read_text().startswith("no progress for 60 s")
    assert "######## node 0123456789ab\n\n==== rollout-1, pid 7\nfar away" in path.read_text()
    assert await standing.after(600.0) == []
    shown = standing.monitor.status()["stall"]
    assert (shown["still_s"], shown["stacks"]) == (660.0, f"the stacks of 1 processes are in {path}")
    standing.books["groups_ready"] = 1
    assert await standing.after(5.0) == ["the run moves again, after 665 s"]
    assert standing.monitor.status() == {}
    assert len(standing.files()) == 1


async def test_stacks_that_find_no_room_keep_nobody_from_being_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    standing = Standing(tmp_path)
    await standing.after(0.0)
    standing.run.logs_path.rename(tmp_path / "elsewhere")
    (told,) = await standing.after(60.0)
    assert "waiting for a replica" in told
    assert "the stacks could not be written down: " in told


async def test_a_run_that_pauses_for_its_disk_does_not_stand_still(tmp_path: Path) -> None:
    standing = Standing(tmp_path)
    await standing.after(0.0)
    standing.low = True
    assert await standing.after(600.0) == []
    standing.low = False
    assert await standing.after(59.0) == []
    standing.books["paused"] = "no room"
    assert await standing.after(60.0) == []
    standing.books["paused"] = ""
    assert len(await standing.after(60.0)) == 1


@pytest.mark.parametrize("weight", [0.0, 1.0])
async def test_a_run_without_data_of_its_own_waits_for_prompts_as_long_as_it_takes(
    weight: float, tmp_path: Path
) -> None:
    standing = Standing(tmp_path, gateway=GatewayConfig(enabled=True, stream_weights={"train": weight}))
    standing.books["groups_running"] = 0
    await standing.after(0.0)
    assert len(await standing.after(60.0)) == weight


async def test_parts_are_asked_for_themselves_and_one_that_is_silent_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamrl.services.actors.short_call.QUICK_S", 0.05)
    queue = Handle(movement=lambda: BOOKS)
    store = Handle(kept=lambda: [(0, 2), (1, 1)])
    replicas = {"rollout-0": Handle(status=lambda: {"name": "rollout-0"}), "rollout-1": Handle()}
    reward, rank = Handle().status.remote(), Handle(status=lambda: {"step": 3}).status.remote()
    parts = await part_statuses(queue, store, reward, [rank], replicas, "1.1")
    assert msgspec.to_builtins(parts) == {
        "queue": BOOKS,
        "reward": None,
        "learner": [{"step": 3}],
        "replicas": {"rollout-0": {"name": "rollout-0"}, "rollout-1": None},
        "weights": "1.1",
        "evaluation": "1.1",
    }
    silent = await part_statuses(Handle(), Handle(), Handle().status.remote(), [], {}, "")
    assert (silent.queue, silent.weights) == (None, None)
