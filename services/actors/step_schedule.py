"""At which steps the learner commits a checkpoint and has a version evaluated, and with which score it ends. Pure."""

from streamrl.config import Config


def checkpoint_due(config: Config, step: int) -> bool:
    """Whether the weights of `step` are committed: every so many steps, and the last."""
    return step % config.checkpoint.every == 0 or step == config.learner.steps


def evaluation_due(config: Config, step: int) -> bool:
    """Whether the held-out items are scored under the weights of `step`: the first, every so many, and the last."""
    return step % config.eval.every == 0 or step == config.learner.steps


def target_reached(config: Config, score: float | None) -> bool:
    """Whether a held-out score is one that the run ends at."""
    return score is not None and 0 < config.eval.target_score <= score
