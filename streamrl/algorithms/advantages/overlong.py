"""Soft overlong punishment: a reward falls as a rollout comes close to the end of its budget. Pure numpy.

Source: Yu et al. 2025, DAPO, equation 13; as in verl's DAPO reward manager, which has no floor for rows longer than the
budget, while the paper has.
"""

from streamrl.algorithms.advantages.groups import DoubleArray
from streamrl.types import LongArray


def overlong_penalty(tokens_N: LongArray, budget: int, buffer: int, penalty: float) -> DoubleArray:
    """`penalty * clip((budget - buffer - tokens) / buffer, -1, 0)`: float64 [N], 0 down to `-penalty`.

    tokens_N: int64 [N], sampled tokens of each row. budget: the most that a rollout may sample. buffer: tokens before
    the budget over which the punishment grows, from 1 to `budget`.
    """
    left_N = (budget - buffer - tokens_N) / buffer
    return penalty * left_N.clip(-1.0, 0.0)
