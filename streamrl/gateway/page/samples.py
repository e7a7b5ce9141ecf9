"""Sampled rollouts as a page shows them: the place where a page begins, and the advantage of each. Pure."""

import re
from collections.abc import Sequence
from typing import Final

import numpy as np

from streamrl.algorithms.advantages.estimate import advantages_from_rows_alone, length_penalties
from streamrl.algorithms.advantages.outcome import advantage_of
from streamrl.config import Config
from streamrl.gateway.refusal import invalid

OF_ONE_GROUP: Final = ("grpo", "dr_grpo", "rloo", "maxrl")
"""Estimators that look at the rewards of a row's group, and at nothing else."""
_CURSOR = re.compile(r"([0-9]{1,18})\.([0-9]{1,9})")


def cursor_of(finished: int, row: int) -> str:
    """What a client sends to have the page that begins there."""
    return f"{finished}.{row}"


def place_of(cursor: str) -> tuple[int, int]:
    """(finished, row). Raises Refusal for what no page ended with."""
    match = _CURSOR.fullmatch(cursor)
    if match is None:
        what = f"{cursor[:40]!a} is no place in the samples: send what `next` said, or leave it out for the newest"
        raise invalid("invalid_value", what, "query.before")
    return int(match[1]), int(match[2])


def group_advantages(
    rewards: Sequence[float | None], sampled_tokens: Sequence[int], config: Config
) -> list[float | None]:
    """The advantage of each row of one group, None where there is no score, and where it is not known: the run looks at
    more than the rewards of the group, or at a teacher in their place."""
    advantage = config.learner.algorithm.advantage
    valid_N = np.array([reward is not None for reward in rewards], np.bool_)
    if advantage not in OF_ONE_GROUP or not advantages_from_rows_alone(config) or not valid_N.any():
        return [None] * len(rewards)
    tokens_N = np.array(sampled_tokens, np.int64)
    rewards_N = np.array([0.0 if reward is None else reward for reward in rewards], np.float64)
    rewards_N += length_penalties(tokens_N, config)
    advantages_N = advantage_of(advantage, rewards_N, valid_N, np.zeros(len(rewards), np.int64), tokens_N)
    return [value if valid else None for value, valid in zip(advantages_N.tolist(), valid_N.tolist(), strict=True)]
