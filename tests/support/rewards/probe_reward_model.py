"""What a configuration makes of a reward model: a real one that has learned nothing, of a seed for each name."""

import asyncio
from pathlib import Path
from typing import Any

import msgspec
from support.rewards.reward_models import item_of, random_reward_model
from support.runs.probe_parts import _with_reward

from streamrl.config import Config
from streamrl.models.tokenizer import load_tokenizer
from streamrl.rewards.base import RewardItem
from streamrl.rewards.build import make_scorer
from streamrl.rewards.model import RewardModel
from streamrl.services.reward.actor import RewardActor


def scored_by_the_stage(config: Config, folder: Path) -> list[Any]:
    """The verdicts of the reward stage, in its own processes."""

    async def use(actor: RewardActor) -> list[Any]:
        return [(one.reward, one.reason) for one in await actor._pool.score(_items(config))]

    return asyncio.run(_with_reward(_with_model(config, folder), folder, use))


def scored(config: Config, folder: Path) -> list[Any]:
    """The same by what each of these processes has."""
    reward = _with_model(config, folder).reward
    return [(one.reward, one.reason) for one in make_scorer(reward.function, reward.model).score(_items(config))]


def forwards(config: Config, folder: Path) -> int:
    """How often the model is computed for six rows of one length."""
    model = _with_model(config, folder).reward.model
    made = RewardModel(str(model.path), rows_at_once=model.rows_at_once)
    count = []
    made._model.register_forward_hook(lambda *_: count.append(1))
    tokenizer = load_tokenizer(Path(config.model.path or ""))
    made.score([tokenizer.encode(f"{digit}=") for digit in range(6)])
    return len(count)


def _with_model(config: Config, folder: Path) -> Config:
    name = str(config.reward.model.path)
    made = random_reward_model(folder / "made" / name, seed=len(name), head=0.1)
    model = msgspec.structs.replace(config.reward.model, path=str(made))
    return msgspec.structs.replace(config, reward=msgspec.structs.replace(config.reward, model=model))


def _items(config: Config) -> list[RewardItem]:
    tokenizer = load_tokenizer(Path(config.model.path or ""))
    return [item_of("12=", answer, tokenizer) for answer in ("1", "12", "122")]
