"""A run with one checkpoint and a few lines of metrics, as `streamrl export` finds it."""

import json
from pathlib import Path

from support.learner.probe_learner import built, change

from streamrl.config import dump
from streamrl.config.schema.learner import LearnerConfig, OptimizerConfig
from streamrl.config.schema.run import Config, ModelConfig
from streamrl.services.run.folder import RunFolder


def exported_run(folder: Path) -> RunFolder:
    """Of a tiny model after one step."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    learner = LearnerConfig(optimizer=OptimizerConfig(lr=1e-2, warmup_steps=1))
    config = Config(name=folder.name, model=ModelConfig(preset="tiny-qwen3"), learner=learner)
    with built(config, folder) as core:
        change(core)
        core.save()
    run = RunFolder.open(folder)
    run.config_path.write_text(dump(config))
    lines = [
        {"step": 0, "reward/mean": 0.1, "eval/score": 0.1, "eval/step": 0, "version": "0.0"},
        {"step": 1, "reward/mean": 0.4, "eval/score": 0.5, "eval/step": 1, "version": "0.1"},
    ]
    run.metrics_path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return run
