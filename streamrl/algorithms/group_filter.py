"""Dynamic sampling: which finished groups are worth training on, by their rewards alone. Pure.

Source: Yu et al. 2025, DAPO, which keeps the prompts whose accuracy is neither 0 nor 1, and samples until the batch is
full. A window of mean rewards is the same idea for difficulty. Equality is of the rewards as they were given: seven
times 0.1 is a group without variance, whose standard deviation, computed, is not exactly 0 (verl's filter keeps it).
"""

from collections.abc import Sequence
from typing import Final

from streamrl.config.schema.learner import FilterConfig

ZERO_VARIANCE: Final = "zero_variance"
"""Reason of a group whose rewards, or each of their components, are all equal."""
TOO_HARD: Final = "too_hard"
"""Reason of a group whose mean reward is below `low`."""
TOO_EASY: Final = "too_easy"
"""Reason of a group whose mean reward is above `high`."""
TRUNCATED: Final = "truncated"
"""Reason of a group whose rollouts were all cut off, where those are not trained (`learner.overlong`)."""
FILTERED: Final = (ZERO_VARIANCE, TOO_HARD, TOO_EASY, TRUNCATED)


def reason_to_filter(
    rewards: Sequence[float], rule: FilterConfig, components: Sequence[tuple[float, ...]] | None = None
) -> str:
    """Why a group is left out, or "" for one that is trained.

    rewards: its valid ones, at least one. components: of the same rows, where advantages are made of them: the group
    has no variance then if each component is equal, whatever the rewards are.
    """
    judged: Sequence[object] = rewards if components is None else components
    if rule.zero_variance and all(one == judged[0] for one in judged):
        return ZERO_VARIANCE
    if rule.low is None and rule.high is None:
        return ""
    mean = sum(rewards) / len(rewards)
    # The mean of equal numbers is not exactly that number, and a bound may be: rounding decides nothing here.
    mean = min(max(mean, min(rewards)), max(rewards))
    if rule.low is not None and mean < rule.low:
        return TOO_HARD
    if rule.high is not None and mean > rule.high:
        return TOO_EASY
    return ""
