"""Held-out prompts as episodes: on an engine that is stepped for them, each under the version that was asked for."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from support.repository import TESTS

from streamrl.config.schema.environment import EnvironmentConfig
from streamrl.config.schema.run import Config, ModelConfig
from streamrl.engines.torch import TorchEngine
from streamrl.environments.driven.drive import driven
from streamrl.environments.driven.evaluation import EpisodeEvaluator
from streamrl.environments.open import environment_pool, episode_player
from streamrl.errors import ComponentError
from streamrl.evaluation import Evaluation
from streamrl.models.load import load_model, prepare_model_folder
from streamrl.models.tokenizer import load_tokenizer
from streamrl.tasks.base import Prompt
from streamrl.types import UpdateMode, Version

PROMPTS = [Prompt(f"p{number}", f"{number}*2", '{"answer":"1"}') for number in range(6)]
VERSION = Version(0, 3)


async def evaluated(
    folder: Path, name: str = "Echo", samples: int = 1, version: Version = VERSION, **row: Any
) -> Evaluation:
    config = Config(
        model=ModelConfig(preset="tiny-qwen3-tools"),
        environment=EnvironmentConfig(
            name=f"support.environments.games:{name}", options=row or None, max_tokens=128, max_turns=4, retries=0
        ),
    )
    prepare_model_folder(config.model, 0, folder)
    tokenizer = load_tokenizer(folder)
    model = load_model(folder, "float32")
    engine = TorchEngine(model, Version(0, -1), slots=4, max_length=128, kv_bytes=2**24)
    engine.load_weights({name: one.detach() for name, one in model.named_parameters()}, VERSION, UpdateMode.KEEP)
    async with environment_pool(config, [str(TESTS)]) as pool:
        player = episode_player(config, folder, pool, tokenizer, 100, lambda _text: None)
        temperature = 1.0 if samples > 1 else 0.0
        evaluator = EpisodeEvaluator(
            player,
            PROMPTS,
            tokenizer,
            max_new_tokens=20,
            samples=samples,
            temperature=temperature,
            sets={"a": 4, "b": 2},
        )
        found = await driven(engine, lambda requests: evaluator.play(version, requests.generate))
    engine.close()
    return found


async def test_every_prompt_is_played_to_its_end_and_the_same_again(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    found = await evaluated(tmp_path / "model")
    assert found.version == VERSION
    assert found.errors == []
    assert found.prompts == list(range(6))
    assert found.sets == {"a": 4, "b": 2}
    for item, prompt in zip(found.items, PROMPTS, strict=True):
        assert item.prompt == prompt.text
        payload = json.loads(item.payload)
        assert payload["answer"] == "1"
        assert payload["environment"]["final"] == item.completion
        assert len(item.token_ids) % 4 == 0 < len(item.token_ids)
        assert len(item.prompt_ids) > 0
    assert sum(len(item.token_ids) for item in found.items) == 4 * found.num_tokens
    again = await evaluated(tmp_path / "model")
    assert again.items == found.items


async def test_samples_of_one_prompt_differ(tmp_path: Path) -> None:
    found = await evaluated(tmp_path / "model", samples=3)
    assert found.prompts == [place for place in range(6) for _ in range(3)]
    assert len({item.completion for item in found.items[:3]}) > 1


async def test_an_episode_that_fails_is_an_error_and_no_score(tmp_path: Path) -> None:
    found = await evaluated(tmp_path / "model", "Bad", how="raises")
    cut = [item for item in found.items if item.finish_reason == "length"]
    assert len(found.errors) + len(cut) == 6
    assert all("no such move" in error for error in found.errors)


async def test_what_another_version_samples_is_no_answer(tmp_path: Path) -> None:
    with pytest.raises(ExceptionGroup) as caught:
        await evaluated(tmp_path / "model", version=Version(0, 4))
    assert caught.group_contains(ComponentError, match="the version must stay pinned")
