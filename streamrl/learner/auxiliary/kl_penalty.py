"""How far what was sampled is from a reference policy: what `kl_in = "reward"` takes off the rewards, of rows where the
advantage is of rows, of tokens where a critic scores these.

The estimate is of the policy that sampled, by the log-probs that came with the rows, as in Ziegler et al. 2019,
Fine-tuning language models from human preferences. (verl and OpenRLHF compute the log-probs of the policy before the
step anew; with rows of the present version that is the same.)
"""

from collections.abc import Iterable, Sequence
from itertools import chain

import numpy as np
import numpy.typing as npt
import torch

from streamrl.algorithms.advantages.groups import DoubleArray
from streamrl.algorithms.divergences import REWARD_DIVERGENCES
from streamrl.learner.batch.packing import PackedBatch
from streamrl.learner.batch.scored_batch import ScoredTokens
from streamrl.learner.blame import Logprobs
from streamrl.learner.finite import require_finite_tokens
from streamrl.learner.fsdp import padded
from streamrl.learner.objectives import Reference
from streamrl.learner.parallel.process_group import LearnerGroup


@torch.no_grad()
def referred(
    reference: Reference, packs: Sequence[PackedBatch], temperature: float, group: LearnerGroup
) -> list[torch.Tensor]:
    """Collective. float32 [K] for each pack, on the CPU: log-probs of its targets under the reference."""
    found = [reference(one.to(group.device), temperature)[0].cpu() for one in padded(packs, group)]
    return found[: len(packs)]


def require_finite_reference(judged: Iterable[ScoredTokens], group: LearnerGroup, step: int) -> None:
    """Collective, as `require_finite_tokens`. judged: what `referred` gave, of a whole step. step: the one it makes."""
    what = f"learner step {step}: a log-prob of the reference"
    require_finite_tokens(judged, group, what, "Look at the model that learner.algorithm.reference names")


class TokenDivergences:
    """Of each token apart. Source: Ouyang et al. 2022, Training language models to follow instructions with human
    feedback: the reward of a token is minus `coef` times its divergence, that of the last one has the score too.

    reference: log-probs of packs under the reference, at the temperature of the rollouts. estimator: of
    `REWARD_DIVERGENCES`.
    """

    def __init__(self, reference: Logprobs, estimator: str, coef: float, group: LearnerGroup) -> None:
        self.coef = coef
        self._reference = reference
        self._estimate = REWARD_DIVERGENCES[estimator]
        self._group = group

    def __call__(self, shares: Sequence[Sequence[ScoredTokens]], step: int) -> list[list[DoubleArray]]:
        """Collective. float64 [K] for each pack of each share; what was given for it has no part. step: the one that is
        made. Raises NonFiniteError, on every rank, for a log-prob of the reference that is not finite, with its row."""
        found = [self._referred(share) for share in shares]
        require_finite_reference(chain(*found), self._group, step)
        return [[self._distance(one) for one in share] for share in found]

    def _referred(self, share: Sequence[ScoredTokens]) -> list[ScoredTokens]:
        given = self._reference([one.pack for one in share])
        return [one._replace(given=reference_K) for one, reference_K in zip(share, given, strict=True)]

    def _distance(self, one: ScoredTokens) -> DoubleArray:
        return self._estimate(one.pack.rollout_logprobs.double(), one.given.double()).numpy()


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
