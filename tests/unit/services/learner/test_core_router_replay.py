"""A learner's core replays the routes that came with rows from an engine, through the log of completions, and goes on
from a checkpoint to the bit."""

import asyncio
from pathlib import Path

import numpy as np
import pytest
import torch
from support.learner.probe_learner import GROUP_SIZE, GROUPS, built, finished, lease, with_experts

from streamrl.clock import SystemClock
from streamrl.config import Config
from streamrl.config.schema.learner import LearnerConfig
from streamrl.config.schema.rollout import RolloutConfig
from streamrl.engines.torch import TorchEngine
from streamrl.models.load import load_model
from streamrl.observability.timeline import StepTimer
from streamrl.services.learner.core import LearnerCore
from streamrl.services.rollout.completions import CompletionLog
from streamrl.services.rollout.rows import Finished
from streamrl.types import FrameRef, GenerationRequest, SamplingParams, Version


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def config_of(folder: Path, *, replay: bool = True) -> Config:
    learner = LearnerConfig(groups_per_step=GROUPS, router_replay=replay, steps=4)
    config = Config(name="routed", learner=learner, rollout=RolloutConfig(group_size=GROUP_SIZE))
    return with_experts(config, folder)


def sampled(config: Config, *, record_routes: bool) -> list[Finished]:
    """The prompts of the seeded rows, completed by an engine."""
    issued = [finished(number, sample).issued for number in range(GROUPS) for sample in range(GROUP_SIZE)]
    model = load_model(Path(str(config.model.path)), "float32")
    engine = TorchEngine(model, Version(0, 0), slots=16, max_length=32, kv_bytes=2**24, record_routes=record_routes)
    asked = [
        GenerationRequest(
            f"g{n // GROUP_SIZE}/{n % GROUP_SIZE}", one.prompt_ids, n, SamplingParams(max_new_tokens=5), ()
        )
        for n, one in enumerate(issued)
    ]
    return [Finished(one, result, 1) for one, result in zip(issued, engine.generate(asked), strict=True)]


def written(config: Config, folder: Path, rows: list[Finished]) -> FrameRef:
    log = CompletionLog(folder, config, "replica-0", 0)
    frame, _ = asyncio.run(log.append(rows))
    log.close()
    return frame


def train(core: LearnerCore, step: int, frame: FrameRef) -> dict[str, float]:
    timer = StepTimer(SystemClock(), ("read", "pack", "forward_backward", "optimizer"))
    return core.train(core.plan(lease(step, [frame])), timer)


@pytest.mark.parametrize(("recorded", "share"), [(True, 1.0), (False, 0.0)])
def test_a_step_replays_what_the_rows_have(tmp_path: Path, recorded: bool, share: float) -> None:
    config = config_of(tmp_path)
    frame = written(config, tmp_path, sampled(config, record_routes=recorded))
    with built(config, tmp_path) as core:
        metrics = train(core, 0, frame)
    assert metrics["router/replayed_share"] == share
    assert abs(metrics["mismatch/kl"]) < 1e-6


def test_without_replay_a_step_does_not_look_at_routes(tmp_path: Path) -> None:
    config = config_of(tmp_path, replay=False)
    rows = sampled(config, record_routes=True)
    for one in rows:
        assert one.result.routes is not None
        one.result.routes[:] = np.roll(one.result.routes, 1, axis=1)
    frame = written(config, tmp_path, rows)
    with built(config, tmp_path) as core:
        metrics = train(core, 0, frame)
    assert "router/replayed_share" not in metrics
    assert abs(metrics["mismatch/kl"]) < 1e-6


def test_a_resumed_learner_replays_to_the_bits_of_one_that_went_on(tmp_path: Path) -> None:
    config = config_of(tmp_path)
    frame = written(config, tmp_path, sampled(config, record_routes=True))
    with built(config, tmp_path) as core:
        train(core, 0, frame)
        core.save()
        train(core, 1, frame)
        expected = core.weight_digest()
    with built(config, tmp_path) as core:
        assert core.step == 1
        assert train(core, 1, frame)["router/replayed_share"] == 1.0
        assert core.weight_digest() == expected
