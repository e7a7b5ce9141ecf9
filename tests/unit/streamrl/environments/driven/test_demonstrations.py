"""Demonstrations that are played: rows whose context is that of rollouts; and what cannot be demonstrated."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streamrl.config.estimates.model_presets import PRESETS
from streamrl.config.schema.environment import EnvironmentConfig
from streamrl.config.schema.run import Config, ModelConfig
from streamrl.environments.driven.demonstrations import EpisodeDemonstrations
from streamrl.environments.open import environment_pool, episode_player
from streamrl.errors import ComponentError
from streamrl.models.tokenizer import load_tokenizer, write_preset_tokenizer
from streamrl.tasks.multiplication import MultiplicationTask
from streamrl.types import TokenOrigin


class Short(MultiplicationTask):
    """Demonstrates the call alone."""

    def demonstration(self, prompt: Any) -> list[str]:
        return super().demonstration(prompt)[:1]


TASK = MultiplicationTask(0.1)
CALLS = next(index for index in range(100) if len(TASK.demonstration(TASK.train(index))) == 2)
ANSWERS = next(index for index in range(100) if len(TASK.demonstration(TASK.train(index))) == 1)


@pytest.fixture
def demonstrations(tmp_path: Path) -> Iterator[Any]:
    write_preset_tokenizer(PRESETS["tiny-qwen3-tools"], tmp_path)
    tokenizer = load_tokenizer(tmp_path)
    config = Config(
        model=ModelConfig(preset="tiny-qwen3-tools"),
        environment=EnvironmentConfig(name="tools", tools=("calculator",), max_tokens=128),
    )
    with asyncio.Runner() as runner:
        pool = environment_pool(config, [])
        runner.run(pool.start())
        player = episode_player(config, tmp_path, pool, tokenizer, 100, lambda _text: None)
        yield lambda task: (EpisodeDemonstrations(player, task, tokenizer, 30, runner.run), tokenizer)
        runner.run(pool.close())


def test_a_row_is_what_a_perfect_rollout_would_be(demonstrations) -> None:
    found, tokenizer = demonstrations(MultiplicationTask(0.1))
    rows = found.rows(np.array([CALLS, ANSWERS, CALLS]))
    assert rows.num_rows == 3
    assert rows.group.tolist() == [0, 1, 2]
    first = slice(rows.offsets[0], rows.offsets[1])
    ids, origin = rows.token_ids[first], rows.token_origin[first]
    assert ids.tolist() == rows.token_ids[rows.offsets[2] :].tolist()
    prompt = TASK.train(CALLS)
    call, answer = TASK.demonstration(prompt)
    text = tokenizer.decode(ids, special_tokens=True)
    assert text == (
        f"<|tools|>calculator<tool_call><|user|>{prompt.text}<|assistant|>{call}<eos>"
        f"<|tool|>{answer}<|assistant|>{answer}<eos>"
    )
    trained = tokenizer.decode(ids[origin == TokenOrigin.SAMPLED], special_tokens=True)
    assert trained == f"{call}<eos>{answer}<eos>"
    assert set(origin.tolist()) == {TokenOrigin.PROMPT, TokenOrigin.SAMPLED, TokenOrigin.ENVIRONMENT}


def test_a_demonstration_with_too_few_turns_is_told(demonstrations) -> None:
    found, _ = demonstrations(Short(0.1))
    with pytest.raises(ComponentError, match="demonstrates fewer turns than its environment takes"):
        found.rows(np.array([CALLS]))
