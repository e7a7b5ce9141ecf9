"""The reward stage: what a verdict becomes in the log and for the queue, row by row."""

import asyncio
import sys
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from support.learner.probe_learner import finished, open_run
from support.runs.probe_parts import Handle

from streamrl.buffers.rows.columns import map_columns
from streamrl.buffers.rows.gather import score_columns
from streamrl.buffers.rows.records import ScoredRows, UnscoredFrame
from streamrl.buffers.segments.reader import SegmentReader
from streamrl.config import Config
from streamrl.config.schema.algorithm import AlgorithmConfig
from streamrl.config.schema.learner import LearnerConfig
from streamrl.config.schema.rollout import RolloutConfig
from streamrl.config.schema.run import ModelConfig, QueueConfig, RewardConfig
from streamrl.config.schema.streams import TASK
from streamrl.errors import ComponentError
from streamrl.models.load import prepare_model_folder
from streamrl.observability.logs import release
from streamrl.services.reward.actor import RewardActor
from streamrl.services.rollout.completions import CompletionLog
from streamrl.services.rollout.rows import Finished, Issued
from streamrl.types import FrameRef

MODULE = '''
"""Rewards that fail: in three ways, and for want of a component."""


def by_number(completion, *, n, **_):
    if n % 4 == 0:
        raise ValueError("no")
    return {1: float("nan"), 2: "two"}.get(n % 4, n / 2)


def in_parts(completion, *, n, **_):
    return {"format": n / 4, "correct": float(n)} if n % 3 else {"correct": float(n)}
'''
ROWS = 8


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Config:
    prepare_model_folder(ModelConfig(preset="tiny-qwen3"), 0, tmp_path / "model")
    (tmp_path / "failing_reward.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield Config(
        model=ModelConfig(path=str(tmp_path / "model")),
        reward=RewardConfig(function="failing_reward:by_number", max_failed=1.0),
        queue=QueueConfig(durability="memory", segment_bytes=2**20),
    )
    sys.modules.pop("failing_reward", None)


def numbered(number: int, stream: str) -> Finished:
    """A rollout of group `number`, whose payload tells the number."""
    one = finished(number, 0)
    told = one.issued
    issued = Issued(told.ticket, 0, told.group_id, told.prompt_id, told.prompt_ids, f'{{"n":{number}}}', 0, stream)
    return Finished(issued, one.result, 1)


async def frame_of(config: Config, folder: Path, numbers: range, stream: str) -> UnscoredFrame:
    log = CompletionLog(folder, config, f"rollout-{numbers[0]}", 0)
    frame, rows = await log.append([numbered(number, stream) for number in numbers])
    log.close()
    row = np.arange(len(numbers), dtype=np.int32)
    return UnscoredFrame(frame, row, rows.number, rows.sample_index, rows.branch, rows.attempt)


async def scored(config: Config, folder: Path, stream: str = TASK) -> tuple[FrameRef, ScoredRows]:
    """What the stage tells the queue of eight rollouts in two frames."""
    open_run(config, folder)
    told: list[Any] = []
    queue = Handle(add_scores=lambda *args: told.append(args), unscored=lambda *_: [])
    actor = RewardActor(str(folder), msgspec.to_builtins(config), queue)
    await actor.start(0)
    frames = [await frame_of(config, folder, range(start, start + ROWS // 2), stream) for start in (0, ROWS // 2)]
    try:
        await actor._score_frames(frames, 5)
    finally:
        await actor.run()
        release()
    ((name, epoch, sequence, frame, rows, _),) = told
    assert (name, epoch, sequence) == ("reward", 0, 5)
    return frame, rows


def test_invariant_8_a_failed_verdict_is_told_as_failed_with_the_row_that_it_is_of(config, tmp_path) -> None:
    frame, rows = asyncio.run(scored(config, tmp_path / "run"))
    assert rows.number.tolist() == list(range(ROWS))
    assert rows.valid.tolist() == [number % 4 == 3 for number in range(ROWS)]
    np.testing.assert_array_equal(rows.reward, [number / 2 if number % 4 == 3 else np.nan for number in range(ROWS)])
    written = SegmentReader(tmp_path / "run").read(frame)
    valid, reward = score_columns(written)
    np.testing.assert_array_equal(valid, rows.valid)
    np.testing.assert_array_equal(reward, rows.reward)
    assert written.column("rollout_id").to_pylist() == [f"g{number}/0" for number in range(ROWS)]
    reasons = written.column("reason").to_pylist()
    assert ["ValueError: no" in reason for reason in reasons] == [number % 4 == 0 for number in range(ROWS)]


def test_the_components_are_told_and_a_score_that_lacks_one_is_written_as_failed(config, tmp_path) -> None:
    algorithm = AlgorithmConfig(advantage="gdpo", components={"correct": 1.0, "format": 0.2})
    config = msgspec.structs.replace(
        config,
        reward=RewardConfig(function="failing_reward:in_parts", max_failed=1.0),
        learner=LearnerConfig(algorithm=algorithm),
    )
    frame, rows = asyncio.run(scored(config, tmp_path / "run"))
    valid = [number % 3 != 0 for number in range(ROWS)]
    assert rows.valid.tolist() == valid
    expected = [[n, n / 4] if has else [np.nan] * 2 for n, has in enumerate(valid)]
    np.testing.assert_array_equal(rows.components, expected)
    written = SegmentReader(tmp_path / "run").read(frame)
    np.testing.assert_array_equal(map_columns(written.column("components"), ("correct", "format")), expected)
    assert ["no component 'format'" in reason for reason in written.column("reason").to_pylist()] == [
        not v for v in valid
    ]


def test_without_components_the_queue_is_told_of_none(config, tmp_path) -> None:
    assert asyncio.run(scored(config, tmp_path / "run"))[1].components is None


@pytest.mark.parametrize("stream", [TASK, "clients"])
def test_what_clients_submit_ends_no_run_however_much_of_it_has_no_score(stream, config, tmp_path) -> None:
    reward = RewardConfig(function="failing_reward:by_number", max_failed=0.5)
    small = RolloutConfig(group_size=2)
    learner = LearnerConfig(groups_per_step=2)
    config = msgspec.structs.replace(config, reward=reward, rollout=small, learner=learner)
    if stream == TASK:
        with pytest.raises(ComponentError, match=r"3 of the last 4 rollouts have no score"):
            asyncio.run(scored(config, tmp_path / "run", stream))
    else:
        rows = asyncio.run(scored(config, tmp_path / "run", stream))[1]
        assert np.count_nonzero(~rows.valid) == 3 * ROWS // 4


async def test_how_many_children_there_are_is_what_was_said_last_and_rows_are_handed_out_to_as_many(
    config, tmp_path
) -> None:
    run = open_run(config, tmp_path / "run")
    asked: list[int] = []
    queue = Handle(unscored=lambda _name, _epoch, most: asked.append(most) or [])
    actor = RewardActor(str(run.path), msgspec.to_builtins(config), queue)
    with pytest.raises(ComponentError, match="have not started"):
        await actor.status()
    await actor.scale(1, 3)
    await actor.scale(0, 7)  # it was said before, and comes late
    await actor.start(0, 2)
    try:
        assert (await actor.status())["workers"] == 3
        await actor.scale(2, 1)
        assert (await actor.status())["workers"] == 1
        await actor.scale(2, 4)
        assert (await actor.status())["workers"] == 1
    finally:
        await actor.run()
        release()
    assert asked == [config.reward.batch_size]


async def test_a_stage_that_was_told_no_number_has_as_many_children_as_its_start_says(config, tmp_path) -> None:
    run = open_run(config, tmp_path / "run")
    actor = RewardActor(str(run.path), msgspec.to_builtins(config), Handle(unscored=lambda *_: []))
    await actor.start(0, 2)
    assert (await actor.status())["workers"] == 2
    await actor.run()
    release()
