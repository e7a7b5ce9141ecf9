"""The divergence from the reference as a part of the reward, on the ranks of a learner.

Each rank asks the reference for its own rows; the sums of all rows are added over the ranks, each being 0 on all ranks
but one, so all come to the same advantages, whatever their number.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from streamrl.config import Config
from streamrl.learner.auxiliary.kl_penalty import require_finite_reference, row_divergences
from streamrl.learner.batch.packing import pack
from streamrl.learner.batch.row_parts import in_place
from streamrl.learner.batch.scored_batch import Part, ScoredTokens
from streamrl.learner.blame import Logprobs
from streamrl.services.learner.backends import Ranks
from streamrl.services.learner.step_plan import Share, StepPlan, penalised
from streamrl.types import RolloutRows


def pay_divergence(
    plan: StepPlan,
    parts: Sequence[tuple[RolloutRows, Share]],
    config: Config,
    referred: Logprobs,
    ranks: Ranks,
) -> tuple[StepPlan, dict[str, float]]:
    """Collective. The plan with the advantages of rewards less `kl_coef` times the divergence, and its metrics.

    parts: the rows of this rank, by share. referred: log-probs under the reference, at the temperature of rollouts.
    Rows that are cut off count too: they are in the baselines. Raises NonFiniteError, on every rank, for a log-prob of
    the reference that is not finite, with its row.
    """
    learner = config.learner
    divergences, judged = [], []
    for rows, share in parts:
        scored = replace(rows, valid=share.scored)
        packs = pack(scored, np.zeros(rows.num_rows), learner.micro_batch_tokens, step=plan.step)
        found = referred(packs)
        judged += [ScoredTokens(one, given, Part(rows, share.place)) for one, given in zip(packs, found, strict=True)]
        divergences.append(row_divergences(packs, found, learner.algorithm.kl_estimator, rows.num_rows))
    require_finite_reference(judged, ranks.group, plan.step + 1)
    total_N = in_place(divergences, [share.place for _, share in parts], num_rows=len(plan.rewards) // 8)
    total_N = ranks.sum_over_rows(torch.from_numpy(total_N).to(ranks.group.device)).cpu().numpy()
    tokens = np.frombuffer(plan.tokens, np.int64)[np.frombuffer(plan.scored, np.uint8) > 0].sum()
    metrics = {"reward/kl": float(total_N.sum() / max(tokens, 1))}
    return penalised(plan, learner.algorithm.kl_coef * total_N, learner.algorithm.advantage), metrics
