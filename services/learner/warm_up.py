"""What a supervised warm-up needs of a run: the greedy score that decides when it has done enough, and what it learns
from where rollouts are episodes.

The score is the run's own reward, on training items that the warm-up does not touch. Held-out items stay unseen.
"""

import asyncio
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import structlog
import torch

from streamrl.config import Config
from streamrl.config.estimates.sizes import final_bytes
from streamrl.engines.base import Engine
from streamrl.engines.build import build_evaluation_engine
from streamrl.environments.driven.demonstrations import EpisodeDemonstrations
from streamrl.environments.driven.drive import driven
from streamrl.environments.driven.evaluation import EpisodeEvaluator
from streamrl.environments.open import environment_pool, episode_player
from streamrl.environments.processes.pool import EnvironmentPool
from streamrl.errors import ComponentError
from streamrl.evaluation import Evaluation, Evaluator, mean_score
from streamrl.learner.backend import LearnerBackend
from streamrl.models.tokenizer import TextTokenizer
from streamrl.rewards.pool import RewardPool
from streamrl.tasks.base import DemonstratedTask, Task
from streamrl.tasks.order import PromptOrder
from streamrl.types import UpdateMode, Version

MOST_ITEMS = 512


class WarmUpParts(NamedTuple):
    """score: of the policy as it is; collective: every rank gathers the weights, and scores them. demonstrations: None
    where they are the task's texts."""

    score: Callable[[], float]
    demonstrations: EpisodeDemonstrations | None = None


def items_held_apart(task: Task) -> list[int]:
    """Training items that only tell the score: a tenth of them, 512 at most, drawn over the whole data."""
    order = PromptOrder(task.num_train, seed=0)
    return [order.at(place)[1] for place in range(min(MOST_ITEMS, max(1, task.num_train // 10)))]


@contextmanager
def warm_up_parts(
    config: Config,
    folder: Path,
    max_length: int,
    backend: LearnerBackend,
    task: DemonstratedTask,
    tokenizer: TextTokenizer,
) -> Iterator[WarmUpParts]:
    """See `WarmUpParts`; their child processes and the engine are gone at the end."""
    engine = build_evaluation_engine(config, folder, max_length)
    prompts = [task.train(index) for index in items_held_apart(task)]
    most = config.rollout.sampling.max_new_tokens
    try:
        with asyncio.Runner() as runner, _rewards(config, runner) as rewards:
            if not config.plays_episodes:
                evaluator = Evaluator(engine, prompts, tokenizer, max_new_tokens=most)
                yield WarmUpParts(_score(config, engine, backend, evaluator.run, runner, rewards))
                return
            with _environments(config, runner) as pool:
                log = structlog.get_logger("warm-up")
                player = episode_player(config, folder, pool, tokenizer, final_bytes(config), log.warning)
                episodes = EpisodeEvaluator(player, prompts, tokenizer, max_new_tokens=most)

                def answer(version: Version) -> Evaluation:
                    return runner.run(driven(engine, lambda requests: episodes.play(version, requests.generate)))

                score = _score(config, engine, backend, answer, runner, rewards)
                yield WarmUpParts(score, EpisodeDemonstrations(player, task, tokenizer, most, runner.run))
    finally:
        engine.close()


@contextmanager
def _rewards(config: Config, runner: asyncio.Runner) -> Iterator[RewardPool]:
    reward = config.reward
    pool = RewardPool(
        reward.rule,
        batch_size=reward.batch_size,
        timeout_s=reward.timeout_s,
        memory_bytes=reward.memory_bytes,
        import_paths=[path for path in sys.path if path],
        model=reward.model,
        sandbox=config.sandbox,
    )
    runner.run(pool.start())
    try:
        yield pool
    finally:
        runner.run(pool.close())


@contextmanager
def _environments(config: Config, runner: asyncio.Runner) -> Iterator[EnvironmentPool]:
    pool = environment_pool(config, [path for path in sys.path if path])
    runner.run(pool.start())
    try:
        yield pool
    finally:
        runner.run(pool.close())


def _score(
    config: Config,
    engine: Engine,
    backend: LearnerBackend,
    answer: Callable[[Version], Evaluation],
    runner: asyncio.Runner,
    rewards: RewardPool,
) -> Callable[[], float]:
    """answer: has the engine answer under a version."""
    looks = 0

    def score() -> float:
        nonlocal looks
        version = Version(0, looks)
        looks += 1
        torch.set_num_threads(config.rollout.threads)  # the engine's promise holds for that many
        engine.load_weights(dict(backend.iter_hf_weights()), version, UpdateMode.KEEP)
        answers = answer(version)
        torch.set_num_threads(config.warmup.threads)
        mean = mean_score(runner.run(rewards.score(answers.items)), len(answers.errors)).mean
        if mean is None:
            raise ComponentError("warm-up: not one of its items could be scored; look at the reward function")
        return mean

    return score
