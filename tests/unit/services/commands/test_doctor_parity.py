"""`streamrl doctor parity`: how far the engine's log-probs are from those of the model that is trained."""

from pathlib import Path

import pytest

from streamrl.config import Config, load_args
from streamrl.errors import ConfigError
from streamrl.services.commands.doctor import parity

PROMPTS = 16


def config_with(folder: Path, *overrides: str) -> Config:
    (folder / "run.toml").write_text('name = "run"\n[model]\npreset = "tiny-qwen3"\n')
    return load_args(str(folder / "run.toml"), ["--warmup.max_steps", "0", *overrides])


def test_the_torch_engine_has_the_log_probs_of_the_learners_model(tmp_path: Path) -> None:
    found = parity(config_with(tmp_path), PROMPTS)
    assert found.tokens >= PROMPTS
    assert 0.0 <= found.mean <= found.p99 <= found.max <= 1e-5


def test_what_an_engine_rounds_shows_and_the_worst_token_is_the_one_that_is_furthest_apart(tmp_path: Path) -> None:
    config = config_with(tmp_path, "--model.dtype", "bfloat16")
    found = parity(config, PROMPTS)
    assert found.max > 1e-4
    worst = found.worst
    assert abs(worst.engine - worst.learner) == pytest.approx(found.max, rel=1e-5)
    assert 0 <= worst.place < config.rollout.sampling.max_new_tokens


def test_the_temperature_is_the_runs(tmp_path: Path) -> None:
    hot, plain = (parity(config_with(tmp_path, "--rollout.sampling.temperature", t), PROMPTS) for t in ("3.0", "1.0"))
    assert max(hot.max, plain.max) <= 1e-5
    assert hot.worst.engine != plain.worst.engine


def test_an_engine_without_a_model_and_no_prompts_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="has no model"):
        parity(config_with(tmp_path, "--rollout.engine", "scripted"), PROMPTS)
    with pytest.raises(ConfigError, match="one at least"):
        parity(config_with(tmp_path), 0)
