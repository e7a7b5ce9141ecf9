"""The child processes that score, as a configuration asks for them."""

import sys
from pathlib import Path

from streamrl.config import Config
from streamrl.models.vocabulary import require_same_vocabulary
from streamrl.rewards.pool import RewardPool
from streamrl.services.run.layout import STACKS_FOLDER, model_folder


def reward_pool(config: Config, run_folder: Path, workers: int) -> RewardPool:
    """The pool, not started. Raises ConfigError for a reward model of another vocabulary."""
    reward = config.reward
    if reward.model.path is not None:
        require_same_vocabulary(model_folder(run_folder, config), Path(reward.model.path), "reward.model.path")
    return RewardPool(
        reward.rule,
        workers=workers,
        batch_size=reward.batch_size,
        timeout_s=reward.timeout_s,
        memory_bytes=reward.memory_bytes,
        import_paths=[path for path in sys.path if path],
        model=reward.model,
        sandbox=config.sandbox,
        stacks=str(run_folder / STACKS_FOLDER),
    )
