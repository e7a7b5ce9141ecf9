"""GDPO: every component of a reward is normalised by itself, so that a large one does not drown a small one. Pure.

The sum of the components, which is what the row's reward usually is, has no part: rewards (0, 2) and (1, 1) are two
things here, and one to every estimator that is given the sum.
"""

import numpy as np

from streamrl.algorithms.advantages.batch import whiten
from streamrl.algorithms.advantages.groups import BoolArray, DoubleArray
from streamrl.algorithms.advantages.outcome import GRPO_EPS, grpo
from streamrl.types import LongArray


def gdpo(
    components_NC: DoubleArray,
    valid_N: BoolArray,
    group_N: LongArray,
    tokens_N: LongArray,
    weights_C: DoubleArray,
    counted_N: BoolArray | None = None,
    *,
    whitened: bool = True,
    eps: float = GRPO_EPS,
) -> DoubleArray:
    """`whiten(sum over c of w_c * (r_c - mean_c(group)) / (std_c(group) + eps))`, whitened over the batch's
    tokens. Source: Liu et al. 2026, GDPO (arXiv:2601.05242); as in verl. `whitened = False` leaves the last step out.

    components_NC: float64 [N, C], ignored where not valid. valid_N: bool [N]. group_N, tokens_N: int64 [N]. weights_C:
    float64 [C]. counted_N: as in `batch_advantages`. Returns float64 [N]; a component that is equal over a group adds
    exactly 0 to its sum. Raises NonFiniteError for a component of a valid row that is not finite, ValueError where
    there are not C columns.
    """
    total_N = np.zeros(len(components_NC))
    for component_N, weight in zip(components_NC.T, weights_C, strict=True):
        total_N += weight * grpo(component_N, valid_N, group_N, eps=eps)
    return whiten(total_N, valid_N, tokens_N, counted_N) if whitened else total_N
