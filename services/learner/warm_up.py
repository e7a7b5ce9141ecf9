"""The greedy score that decides when a supervised warm-up has done enough: the run's own reward, on training items
that the warm-up does not touch. Held-out items stay unseen."""

import asyncio
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from streamrl.config import Config
from streamrl.engines.build import build_evaluation_engine
from streamrl.errors import ComponentError
from streamrl.evaluation import Evaluator, mean_score
from streamrl.learner.sharding import ShardedPolicy
from streamrl.models.tokenizer import TextTokenizer
from streamrl.rewards.pool import RewardPool
from streamrl.tasks.base import Task
from streamrl.tasks.order import PromptOrder
from streamrl.types import UpdateMode, Version

MOST_ITEMS = 512


def items_held_apart(task: Task) -> list[int]:
    """Training items that only tell the score: a tenth of them, 512 at most, drawn over the whole data."""
    order = PromptOrder(task.num_train, seed=0)
    return [order.at(place)[1] for place in range(min(MOST_ITEMS, max(1, task.num_train // 10)))]


@contextmanager
def greedy_score(
    config: Config, folder: Path, max_length: int, policy: ShardedPolicy, task: Task, tokenizer: TextTokenizer
) -> Iterator[Callable[[], float]]:
    """A function that scores the policy as it is. Collective: every rank gathers the weights, and scores them."""
    engine = build_evaluation_engine(config, folder, max_length)
    prompts = [task.train(index) for index in items_held_apart(task)]
    evaluator = Evaluator(engine, prompts, tokenizer, max_new_tokens=config.rollout.sampling.max_new_tokens)
    reward = config.reward
    pool = RewardPool(
        reward.function,
        batch_size=reward.batch_size,
        timeout_s=reward.timeout_s,
        memory_bytes=reward.memory_bytes,
        import_paths=[path for path in sys.path if path],
        model=reward.model,
    )
    with asyncio.Runner() as runner:
        runner.run(pool.start())
        looks = 0

        def score() -> float:
            nonlocal looks
            version = Version(0, looks)
            looks += 1
            torch.set_num_threads(config.rollout.threads)  # the engine's promise holds for that many
            engine.load_weights(dict(policy.iter_hf_weights()), version, UpdateMode.KEEP)
            answers = evaluator.run(version)
            torch.set_num_threads(config.warmup.threads)
            mean = mean_score(runner.run(pool.score(answers.items)), len(answers.errors)).mean
            if mean is None:
                raise ComponentError("warm-up: not one of its items could be scored; look at the reward function")
            return mean

        try:
            yield score
        finally:
            runner.run(pool.close())
            engine.close()
