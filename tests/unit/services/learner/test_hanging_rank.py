"""Rank 0 does not wait for ever for a rank that hangs before the plan of a step."""

import asyncio
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
import torch
from support.learner.probe_learner import lease, open_run, write_rows
from support.runs.probe_parts import Handle

from streamrl.clock import SystemClock
from streamrl.config import Config
from streamrl.config.schema.learner import LearnerConfig
from streamrl.config.schema.run import DeadlineConfig, ModelConfig
from streamrl.errors import ComponentError
from streamrl.observability.logs import release
from streamrl.observability.timeline import StepTimer
from streamrl.services.learner.actor import PHASES, LearnerRank

PROGRAM = Path(__file__).with_name("hanging_rank.py")


def started(store: Path, folder: Path, config: Config) -> subprocess.Popen[bytes]:
    command = [sys.executable, PROGRAM, store, folder, msgspec.json.encode(config)]
    return subprocess.Popen(command, stdin=subprocess.PIPE)


@pytest.mark.long
async def test_a_rank_that_hangs_before_the_plan_ends_the_step_at_its_deadline(tmp_path: Path) -> None:
    config = Config(
        model=ModelConfig(preset="tiny-qwen3"),
        learner=LearnerConfig(num_workers=2),
        deadlines=DeadlineConfig(step_s=15),
    )
    folder, store = tmp_path / "run", tmp_path / "store"
    open_run(config, folder)
    plain = msgspec.to_builtins(config)
    hanging = started(store, folder, config)
    frames = await write_rows(config, folder, 1)
    queue = Handle(lease=lambda step: lease(step, frames))
    rank = LearnerRank(0, str(folder), plain, str(store), queue, Handle(publish=lambda data, pin: ([], {})))
    threads = torch.get_num_threads()
    timer = rank._timer = StepTimer(SystemClock(), PHASES)
    try:
        await rank.build(Handle(report=lambda _: None, published=lambda _: None))
        with pytest.raises(
            ComponentError, match=r"learner-0: handing out the plan of step 0, .* took longer than 15 s"
        ):
            await rank._step(timer)
        progress = await rank.progress()
        assert (progress.phase, progress.step, progress.waits) == ("wait", 0, True)
    finally:
        hanging.communicate()
        await rank.close()
        await asyncio.to_thread(rank._compute.shutdown)
        rank._observer.close()
        release()
        torch.set_num_threads(threads)
