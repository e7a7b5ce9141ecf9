"""A learner that is held to the policy that its stream began with."""

import asyncio
from pathlib import Path

from support.learner.probe_learner import built, lease, write_rows

from streamrl.clock import SystemClock
from streamrl.config.schema.algorithm import AlgorithmConfig
from streamrl.config.schema.learner import LearnerConfig, OptimizerConfig
from streamrl.config.schema.run import Config, ModelConfig, WarmupConfig
from streamrl.observability.timeline import StepTimer


def test_the_learner_is_held_to_what_the_warm_up_left(tmp_path: Path) -> None:
    config = Config(
        model=ModelConfig(preset="tiny-qwen3"),
        warmup=WarmupConfig(max_steps=2, eval_every=2, batch_size=8, lr=1e-2, target_score=1.0),
        learner=LearnerConfig(
            steps=3,
            optimizer=OptimizerConfig(lr=1e-3, warmup_steps=0),
            algorithm=AlgorithmConfig(kl_coef=0.1),
        ),
    )
    folder = tmp_path / "run"
    timer = StepTimer(SystemClock(), ("read", "pack", "forward_backward", "optimizer"))
    with built(config, folder) as core:
        written = asyncio.run(write_rows(config, folder, 1))
        core.warm_up(lambda _: None)
        distances = [core.train(core.plan(lease(step, written)), timer)["loss/kl"] for step in range(2)]
        core.save()
    assert distances[0] == 0.0 < distances[1]
    with built(config, folder) as core:
        assert core.train(core.plan(lease(2, written)), timer)["loss/kl"] > distances[1]
