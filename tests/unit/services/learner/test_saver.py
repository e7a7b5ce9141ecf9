"""Checkpoints beside the steps: what is saved is the moment of the snapshot; one at a time; a failure ends the run."""

import asyncio
import errno
import os
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from support.learner.probe_learner import STEPS, built, change
from support.runs.probe_parts import Handle

from streamrl.config.schema.learner import LearnerConfig, OptimizerConfig
from streamrl.config.schema.run import CheckpointConfig, Config, ModelConfig, ObserveConfig
from streamrl.errors import ComponentError, DeadlineError
from streamrl.learner.checkpoint.checkpoint import CheckpointInfo, find_newest
from streamrl.learner.checkpoint.digest import tensor_digest
from streamrl.observability.logs import release
from streamrl.services.actors.observe import Observer
from streamrl.services.learner.core import LearnerCore
from streamrl.services.learner.saver import Saver

CONFIG = Config(
    model=ModelConfig(preset="tiny-qwen3"),
    learner=LearnerConfig(steps=STEPS, optimizer=OptimizerConfig(lr=1e-3, warmup_steps=1)),
    checkpoint=CheckpointConfig(keep=1),
    observe=ObserveConfig(trace=False),
)


class Disk:
    """A disk whose first sync of a checkpoint waits until it is let through. `waits`: a save has come to it."""

    def __init__(self) -> None:
        self.waits, self._through = threading.Event(), threading.Event()
        self._sync = os.fdatasync

    def let_through(self) -> None:
        self._through.set()

    def sync(self, fd: int) -> None:
        if "checkpoints/" in os.readlink(f"/proc/self/fd/{fd}"):
            self.waits.set()
            self._through.wait()
        self._sync(fd)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    slow = Disk()
    monkeypatch.setattr(os, "fdatasync", slow.sync)
    yield slow
    slow.let_through()


class Saving:
    """A core, its saver, and what the queue and the controller heard."""

    def __init__(self, core: LearnerCore, folder: Path, limit_s: float) -> None:
        self.core, self.folder = core, folder
        self.heard: list[Any] = []
        self.compute = ThreadPoolExecutor(1)
        self.observer = Observer(core._run, CONFIG, "learner")
        queue = Handle(covered=lambda step, oldest: self.heard.append(("covered", step, oldest)))
        self.line_kept = asyncio.Event()
        self.line_kept.set()
        self.saver = Saver(
            core, queue, self._tell, self.observer, who="learner-0", limit_s=limit_s, told=self._step_reported
        )

    async def _step_reported(self) -> None:
        await self.line_kept.wait()

    def _tell(self, kind: str, facts: dict[str, Any]) -> None:
        self.heard.append((kind, facts["step"]))

    async def begin(self) -> None:
        await self.saver.begin(self.compute)

    def close(self) -> None:
        self.compute.shutdown()
        self.saver.close()
        self.observer.close()
        release()


@contextmanager
def saving(folder: Path, limit_s: float = 60.0) -> Iterator[Saving]:
    with built(CONFIG, folder) as core:
        made = Saving(core, folder, limit_s)
        try:
            yield made
        finally:
            made.close()


def weights(core: LearnerCore) -> dict[str, str]:
    return {f"model/{name}": tensor_digest(shard) for name, shard in core._policy.shards.items()}


def newest(folder: Path) -> CheckpointInfo:
    info = find_newest(folder / "checkpoints").newest
    assert info is not None
    return info


@asynccontextmanager
async def time_out(seconds: float = 60.0) -> AsyncIterator[None]:
    async with asyncio.timeout(seconds):
        yield


async def test_a_checkpoint_is_of_its_snapshot_though_steps_change_the_weights_while_it_is_written(
    tmp_path: Path, disk: Disk
) -> None:
    with saving(tmp_path) as run:
        before = weights(run.core)
        await run.begin()
        await asyncio.to_thread(disk.waits.wait)
        change(run.core)
        assert weights(run.core) != before
        assert run.heard == []
        assert find_newest(tmp_path / "checkpoints").newest is None
        disk.let_through()
        async with time_out():
            await run.saver.finish()
        assert run.heard == [("covered", 0, 0), ("checkpoint", 0)]
    saved = {name: digest for entry in newest(tmp_path).manifest.files for name, digest in entry.tensors.items()}
    assert {name: saved[name] for name in before} == before
    assert newest(tmp_path).extra["backend"]["steps_done"] == 0


async def test_a_checkpoint_comes_after_the_line_of_its_step(tmp_path: Path, disk: Disk) -> None:
    """A run that resumes from it makes that step no more, so nobody would write the line."""
    with saving(tmp_path) as run:
        disk.let_through()
        run.line_kept.clear()
        await run.begin()
        assert not await asyncio.to_thread(disk.waits.wait, 1.0)
        run.line_kept.set()
        async with time_out():
            await run.saver.finish()
        assert run.heard == [("covered", 0, 0), ("checkpoint", 0)]


async def test_one_save_at_a_time_and_rows_are_let_go_in_order(tmp_path: Path, disk: Disk) -> None:
    with saving(tmp_path) as run:
        await run.begin()
        await asyncio.to_thread(disk.waits.wait)
        change(run.core)
        second = asyncio.ensure_future(run.begin())
        for _ in range(10):
            await asyncio.sleep(0)
        assert not second.done()
        disk.let_through()
        async with time_out():
            await second
            await run.saver.finish()
        assert [one for one in run.heard if one[0] == "covered"] == [("covered", 0, 0), ("covered", 1, 1)]
    assert newest(tmp_path).version.step == 1


async def test_a_version_is_saved_once(tmp_path: Path) -> None:
    with saving(tmp_path) as run:
        for _ in range(2):
            await run.begin()
            await run.saver.finish()
        assert [one for one in run.heard if one[0] == "covered"] == [("covered", 0, 0)]


def broken(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """A disk that fails every rename; call it to repair it."""
    real = os.rename

    def fail(*_: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "rename", fail)
    return lambda: monkeypatch.setattr(os, "rename", real)


async def test_a_save_that_fails_ends_the_run_with_its_error_and_lets_no_rows_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = False

    async def waiting_for_rows(run: Saving) -> None:
        nonlocal ended
        try:
            await run.begin()
            await asyncio.Event().wait()
        finally:
            ended = True

    with saving(tmp_path) as run:
        repair = broken(monkeypatch)
        async with time_out():
            with pytest.raises(ComponentError, match=r"step_000000.*Input/output error"):
                await run.saver.unless_failed(waiting_for_rows(run))
        assert ended
        repair()
        change(run.core)
        for again in (run.begin, run.saver.finish):
            with pytest.raises(ComponentError, match="Input/output error"):
                await again()
        assert run.heard == []


async def test_what_runs_beside_comes_back_when_nothing_fails(tmp_path: Path) -> None:
    async def work(run: Saving) -> int:
        await run.begin()
        await run.saver.finish()
        return 7

    with saving(tmp_path) as run:
        assert await run.saver.unless_failed(work(run)) == 7


async def test_an_error_of_the_work_is_its_own_and_not_that_of_a_save(tmp_path: Path) -> None:
    async def work() -> None:
        raise DeadlineError("a step took too long")

    with saving(tmp_path) as run, pytest.raises(DeadlineError, match="a step took too long"):
        await run.saver.unless_failed(work())


async def test_invariant_7_a_save_that_does_not_end_is_named_with_its_limit(tmp_path: Path, disk: Disk) -> None:
    with saving(tmp_path, limit_s=0.01) as run:
        await run.begin()
        async with time_out():
            with pytest.raises(DeadlineError, match=r"learner-0: the checkpoint took longer than 0\.01 s"):
                await run.saver.finish()
        disk.let_through()
