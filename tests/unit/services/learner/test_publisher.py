"""Versions beside the steps: what is published is the moment of the snapshot; one at a time; a failure ends the run."""

import asyncio
import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from support.learner.probe_learner import STEPS, built, change
from support.runs.probe_parts import Handle

from streamrl.config.schema.learner import LearnerConfig, OptimizerConfig
from streamrl.config.schema.run import Config, EvalConfig, ModelConfig, ObserveConfig
from streamrl.errors import NonFiniteError
from streamrl.observability.logs import release
from streamrl.services.actors.observe import Observer
from streamrl.services.learner.core import LearnerCore
from streamrl.services.learner.publisher import Publisher
from streamrl.types import Version
from streamrl.weights.manifest import decode

CONFIG = Config(
    model=ModelConfig(preset="tiny-qwen3"),
    learner=LearnerConfig(steps=STEPS, optimizer=OptimizerConfig(lr=1e-3, warmup_steps=1)),
    eval=EvalConfig(every=2),
    observe=ObserveConfig(trace=False),
)
PARTS = ("snapshot_s", "room_s", "gather_s", "check_s", "write_s", "encode_s", "handover_s")
LIMIT_S = 60


class Memory:
    """Shared memory in which a version waits for its name until it is let through. `waits`: one has come to it."""

    def __init__(self) -> None:
        self.waits, self._through = threading.Event(), threading.Event()
        self._link = os.link

    def let_through(self) -> None:
        self._through.set()

    def link(self, source: Path, target: Path) -> None:
        if target.suffix == ".weights":
            self.waits.set()
            self._through.wait()
        self._link(source, target)


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> Iterator[Memory]:
    slow = Memory()
    monkeypatch.setattr(os, "link", slow.link)
    yield slow
    slow.let_through()


class Publishing:
    """A core, its publisher, and what the weight store and the controller heard."""

    def __init__(self, core: LearnerCore) -> None:
        self.core = core
        self.heard: list[Any] = []
        self.compute = ThreadPoolExecutor(1)
        self.observer = Observer(core._run, CONFIG, "learner")
        store = Handle(publish=self._published)
        controller = Handle(published=lambda version: self.heard.append(("due", version)))
        self.publisher = Publisher(core, store, controller, CONFIG, self._tell, self.observer, rank=0)

    def _published(self, manifest: bytes, pin: str | None) -> tuple[list[Version], dict[str, float]]:
        self.heard.append(("published", Version(*decode(manifest).version), decode(manifest).digest, pin))
        return [], {}

    def _tell(self, kind: str, facts: dict[str, Any]) -> None:
        self.heard.append((kind, facts))

    async def begin(self) -> "asyncio.Task[dict[str, Any]]":
        async with asyncio.timeout(LIMIT_S):
            return await self.publisher.begin(self.compute)

    def close(self) -> None:
        self.compute.shutdown()
        self.publisher.close()
        self.observer.close()
        release()


@contextmanager
def publishing(folder: Path) -> Iterator[Publishing]:
    with built(CONFIG, folder) as core:
        made = Publishing(core)
        try:
            yield made
        finally:
            made.close()


async def test_a_version_is_of_its_snapshot_though_a_step_changes_the_weights_while_it_is_written(
    tmp_path: Path, memory: Memory
) -> None:
    with publishing(tmp_path) as run:
        before = run.core.weight_digest()
        publication = await run.begin()
        await asyncio.to_thread(memory.waits.wait)
        change(run.core)
        assert run.core.weight_digest() != before
        assert run.heard == []
        memory.let_through()
        facts = await asyncio.wait_for(publication, LIMIT_S)
        assert facts["weights/digest"] == before
        assert run.heard == [("published", Version(0, 0), before, "evaluation"), ("due", Version(0, 0))]


async def test_the_next_snapshot_waits_for_the_publication_before_it(tmp_path: Path, memory: Memory) -> None:
    with publishing(tmp_path) as run:
        first = run.core.weight_digest()
        await run.begin()
        await asyncio.to_thread(memory.waits.wait)
        change(run.core)
        second = run.core.weight_digest()
        # Were the snapshot taken at once, it would write over what is being written out.
        next_one = asyncio.create_task(run.begin())
        await asyncio.sleep(0)
        await asyncio.to_thread(run.compute.submit(int).result)  # behind whatever `begin` gave the thread to do
        memory.let_through()
        await asyncio.wait_for(await next_one, LIMIT_S)
        versions = [one[1:] for one in run.heard if one[0] == "published"]
        assert versions == [(Version(0, 0), first, "evaluation"), (Version(0, 1), second, None)]


async def test_the_parts_of_a_publication_are_told_and_sum_to_it(tmp_path: Path) -> None:
    with publishing(tmp_path) as run:
        facts = await asyncio.wait_for(await run.begin(), LIMIT_S)
        num_parameters = run.core._policy.num_parameters
    parts = [facts[f"weights/{part}"] for part in PARTS]
    assert all(part >= 0 for part in parts)
    assert sum(parts) == pytest.approx(facts["weights/seconds"], abs=1e-9)
    assert facts["weights/bytes"] >= 4 * num_parameters


async def test_weights_that_are_not_finite_are_not_published_and_end_what_runs(tmp_path: Path) -> None:
    with publishing(tmp_path) as run:
        name, shard = next(iter(run.core._policy.shards.items()))
        with torch.no_grad():
            shard.view(-1)[0] = float("nan")
        publication = await run.begin()
        endless = asyncio.Event().wait()
        for work in (publication, run.publisher.unless_failed(endless), run.begin()):
            with pytest.raises(NonFiniteError, match=name):
                await asyncio.wait_for(work, LIMIT_S)
        assert run.heard == []
