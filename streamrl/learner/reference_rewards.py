"""How far the sampled rows are from a reference policy: what `kl_in = "reward"` takes off their rewards.

The estimate is of the policy that sampled, by the log-probs that came with the rows, as in Ziegler et al. 2019,
Fine-tuning language models from human preferences. (verl and OpenRLHF compute the log-probs of the policy before the
step anew; with rows of the present version that is the same.)
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from streamrl.algorithms.divergences import REWARD_DIVERGENCES
from streamrl.learner.packing import PackedBatch


def row_divergences(
    packs: Sequence[PackedBatch], references: Sequence[torch.Tensor], estimator: str, num_rows: int
) -> npt.NDArray[np.float64]:
    """float64 [N], the sum over each row's targets; 0 for a row that is in no pack.

    packs: of N rows, as `pack` numbers them. references: float32 [K] for each pack, log-probs of its targets under the
    reference policy.
    """
    total_N = np.zeros(num_rows)
    for pack, reference_K in zip(packs, references, strict=True):
        distance_K = REWARD_DIVERGENCES[estimator](pack.rollout_logprobs.double(), reference_K.double())
        total_N += np.bincount(pack.rows.numpy(), weights=distance_K.numpy(), minlength=num_rows)
    return total_N
