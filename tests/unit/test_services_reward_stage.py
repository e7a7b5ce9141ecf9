"""The reward stage: what a verdict becomes in the log and for the queue, row by row."""

import asyncio
import sys
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from probe_learner import finished, open_run
from probe_parts import Handle

from buffers.gather import score_columns
from buffers.records import ScoredRows, UnscoredFrame
from buffers.segment_reader import SegmentReader
from services.completions import CompletionLog
from services.reward import RewardActor
from services.rollout_rows import Finished, Issued
from streamrl.config import Config
from streamrl.config.schema import ModelConfig, QueueConfig, RewardConfig
from streamrl.logs import release
from streamrl.models.load import prepare_model_folder
from streamrl.types import FrameRef

MODULE = '''
"""A reward that fails in three ways."""


def by_number(completion, *, n, **_):
    if n % 4 == 0:
        raise ValueError("no")
    return {1: float("nan"), 2: "two"}.get(n % 4, n / 2)
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


def numbered(number: int) -> Finished:
    """A rollout of group `number`, whose payload tells the number."""
    one = finished(number, 0)
    told = one.issued
    issued = Issued(told.ticket, 0, told.group_id, told.prompt_id, told.prompt_ids, f'{{"n":{number}}}', 0)
    return Finished(issued, one.result, 1)


async def frame_of(config: Config, folder: Path, numbers: range) -> UnscoredFrame:
    log = CompletionLog(folder, config, f"rollout-{numbers[0]}", 0)
    frame, rows = await log.append([numbered(number) for number in numbers])
    log.close()
    row = np.arange(len(numbers), dtype=np.int32)
    return UnscoredFrame(frame, row, rows.number, rows.sample_index, rows.branch, rows.attempt)


async def scored(config: Config, folder: Path) -> tuple[FrameRef, ScoredRows]:
    """What the stage tells the queue of eight rollouts in two frames."""
    open_run(config, folder)
    told: list[Any] = []
    queue = Handle(add_scores=lambda *args: told.append(args), unscored=lambda *_: [])
    actor = RewardActor(str(folder), msgspec.to_builtins(config), queue)
    await actor.start(0)
    frames = [await frame_of(config, folder, range(start, start + ROWS // 2)) for start in (0, ROWS // 2)]
    await actor._score_frames(frames, 5)
    await actor.run()
    release()
    ((name, epoch, sequence, frame, rows),) = told
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
