"""At which steps the learner commits a checkpoint and has a version evaluated, with which score it ends, and when its
numbers are worth a notice. Pure."""

from streamrl.config import Config


def checkpoint_due(config: Config, step: int) -> bool:
    """Whether the weights of `step` are committed: every so many steps, and the last."""
    return step % config.checkpoint.every == 0 or step == config.learner.steps


def evaluation_due(config: Config, step: int) -> bool:
    """Whether the held-out items are scored under the weights of `step`: the first, every so many, and the last."""
    return step % config.eval.every == 0 or step == config.learner.steps


def target_reached(config: Config, score: float) -> bool:
    """Whether a held-out score is one that the run ends at."""
    return 0 < config.eval.target_score <= score


def share_notice(config: Config, step: int, before: float, share: float) -> str:
    """What to tell of the effective share of a step's tokens, that of the step before it being `before`: one sentence
    each time that it falls under its bound, else ""."""
    least = config.learner.algorithm.least_effective_share
    if share >= least or before < least:
        return ""
    return (
        f"step {step}: the weights of its tokens are worth {share:.0%} of them, under "
        f"learner.algorithm.least_effective_share = {least:g}; the rows are too old, or engine and learner disagree: "
        "look at correction/lag_* and mismatch/kl, and lower learner.max_staleness or learner.optimizer.lr"
    )
