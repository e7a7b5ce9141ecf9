"""Readers and rows of other nodes: asked for before they are read, and never trained or scored once they are lost."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from support.learner.probe_learner import lease, open_run
from support.runs.probe_parts import Handle

from streamrl.buffers.rows.records import UnscoredFrame
from streamrl.config import Config
from streamrl.config.schema.run import ModelConfig, QueueConfig
from streamrl.errors import DeadlineError
from streamrl.models.load import prepare_model_folder
from streamrl.observability.logs import release
from streamrl.services.learner.actor import LearnerRank
from streamrl.services.queue.far_rows import FarRows
from streamrl.services.reward.actor import RewardActor
from streamrl.types import FrameRef

HERE = FrameRef("queue/completions/rollout-0-0-0.arrow", 0, 10, 12, 1, 2)
FAR = FrameRef("nodes/0123456789ab/queue/completions/rollout-1-0-0.arrow", 0, 10, 12, 1, 2)


@pytest.fixture
def config(tmp_path: Path) -> Iterator[Config]:
    prepare_model_folder(ModelConfig(preset="tiny-qwen3"), 0, tmp_path / "model")
    yield Config(
        model=ModelConfig(path=str(tmp_path / "model")), queue=QueueConfig(durability="memory", segment_bytes=2**20)
    )
    release()


class Home:
    """In the place of the node's actor: the frames in `gone` are lost, and it keeps what it was asked."""

    def __init__(self, *gone: FrameRef) -> None:
        self.asked: list[tuple[str, list[FrameRef], bool]] = []
        self._gone = gone
        self.handle = Handle(bring=self._bring, pause=lambda: "")

    def _bring(self, reader: str, frames: list[FrameRef], leased: bool) -> list[FrameRef]:
        self.asked.append((reader, frames, leased))
        return [frame for frame in frames if frame in self._gone]


async def test_only_rows_of_other_nodes_are_asked_for_and_a_run_of_one_node_asks_nobody() -> None:
    home = Home(FAR)
    far = FarRows("reward", home.handle, 60.0, leases=False)
    assert await far.lost([HERE]) == set()
    assert home.asked == []
    assert await far.lost([HERE, FAR]) == {FAR}
    assert home.asked == [("reward", [FAR], False)]
    assert await FarRows("reward", None, 60.0, leases=False).lost([FAR]) == set()


async def test_rows_that_do_not_come_in_time_are_an_error_that_names_who_waited() -> None:
    never = Handle(pause=lambda: "")
    with pytest.raises(DeadlineError, match="learner: 1 frames of other nodes took longer"):
        await FarRows("learner", never, 0.01, leases=True).lost([FAR])


def test_the_learner_gives_a_batch_with_lost_rows_back_and_takes_the_next_one(config: Config, tmp_path: Path) -> None:
    open_run(config, tmp_path)
    leases, home = [lease(0, [FAR]), lease(0, [HERE])], Home(FAR)

    async def next_lease() -> Any:
        queue = Handle(lease=lambda step: leases.pop(0))
        told = msgspec.to_builtins(config), str(tmp_path / "store"), queue, Handle(), home.handle
        rank = LearnerRank(0, str(tmp_path), *told)
        threads = torch.get_num_threads()
        try:
            await rank.build(Handle())
            return await rank._lease()
        finally:
            await rank.close()
            await asyncio.to_thread(rank._compute.shutdown)
            torch.set_num_threads(threads)
            rank._observer.close()

    assert asyncio.run(next_lease()).frames == [HERE]
    assert home.asked == [("learner", [FAR], True)]
    assert leases == []


def test_the_reward_stage_passes_over_lost_rows_and_goes_on(config: Config, tmp_path: Path) -> None:
    """A frame that is lost cannot be read: to try would be an error."""
    open_run(config, tmp_path)
    zeros = np.zeros(1, np.int32)
    answers: list[list[UnscoredFrame]] = [[UnscoredFrame(FAR, zeros, zeros.astype(np.int64), zeros, zeros, zeros)], []]
    told: list[Any] = []

    async def score() -> None:
        queue = Handle(unscored=lambda *_: answers.pop(0), add_scores=lambda *args: told.append(args))
        actor = RewardActor(str(tmp_path), msgspec.to_builtins(config), queue, Home(FAR).handle)
        await actor.start(0)
        await actor.run()

    asyncio.run(score())
    assert (answers, told) == ([], [])
