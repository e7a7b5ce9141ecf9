"""PRIME's implicit reward model: it rewards each token, and learns the outcomes of rows.

    log-probs under the model less those under the reference, times beta  ->  rewards of tokens  ->  advantages

Guarantees what an `AuxiliaryModel` does. (The authors' code in verl can update the model on a batch before it rewards
that batch, and the published runs do: then the rewards of a row come from a model that was told the row's outcome.
Their paper's algorithm, and this, rewards first.)

Source: Cui et al. 2025, Process reinforcement through implicit rewards.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import torch

from streamrl.config.schema.learner import PrimeConfig
from streamrl.learner.auxiliary.auxiliary import AuxiliaryModel, AuxiliaryObjective, AuxiliaryParts, Scores
from streamrl.learner.auxiliary.implicit_rewards import OutcomeSums, implicit_reward_loss
from streamrl.learner.auxiliary.process_rewards import with_process_advantages
from streamrl.learner.batch.mini_batches import MiniBatch
from streamrl.learner.batch.packing import PackedBatch
from streamrl.learner.batch.scored_batch import Part, ScoredTokens, by_mini_batch, by_share


def prime_objective(config: PrimeConfig) -> AuxiliaryObjective:
    return AuxiliaryObjective(partial(implicit_reward_loss, beta=config.beta), OutcomeSums, of_values=False)


class ImplicitRewardModel(AuxiliaryModel):
    """One rank's part. `step_batch` gives `prime/loss`, `prime/row_reward_abs_max`, `prime/grad_norm` and `prime/lr`.

    Example:
        model = ShardedPolicy(model, group, torch.float32)
        auxiliary = implicit_rewards_on_fsdp(model, reference, config, total_steps=100)
    """

    name = "prime"
    called = "implicit reward model"
    advantage = "prime"
    score = "a token's reward by the implicit reward model"

    def __init__(self, parts: AuxiliaryParts, reference: Scores, config: PrimeConfig) -> None:
        """parts: for `prime_objective`; scores are log-probs at `TEMPERATURE`. reference: the same of one that stands
        still."""
        super().__init__(parts)
        self._reference = reference
        self._config = config

    def add_advantages(
        self, mini_batches: Sequence[MiniBatch], parts: Sequence[Sequence[Part]]
    ) -> tuple[list[MiniBatch], dict[str, float]]:
        """As `AuxiliaryModel.add_advantages`: advantages, outcomes and the log-probs of the reference;
        `prime/accuracy` and `prime/reward_mean`. The packs' advantages must be those of the outcomes."""
        rewarded = [
            [self._rewarded(packs, part) for packs, part in zip(mini_batch.shares, own, strict=True)]
            for mini_batch, own in zip(mini_batches, parts, strict=True)
        ]
        shares = by_share(rewarded)
        self._require_finite(one for share in shares for one in share)
        last = max((int(part.places.max(initial=0)) for own in parts for part in own), default=0)
        num_rows = self._group.max_int(last + 1)
        packs, facts = with_process_advantages(shares, self._config, self._over_ranks, num_rows)
        return by_mini_batch(packs, mini_batches), facts

    def _rewarded(self, packs: Sequence[PackedBatch], part: Part) -> list[ScoredTokens]:
        """Collective. The rewards of tokens, float64 [K] for each pack, on the CPU."""
        found = zip(packs, self._scores(packs), self._reference(packs), strict=True)
        return [rewarded(*one, part, self._config.beta) for one in found]


def rewarded(
    pack: PackedBatch, logprobs_K: torch.Tensor, reference_K: torch.Tensor, part: Part, beta: float
) -> ScoredTokens:
    """A pack with the rewards of its targets, float64 [K], and with what the model learns from. Without gradient.

    logprobs_K, reference_K: float32 [K], of its targets, under the implicit reward model and under the reference.
    """
    outcomes_K = torch.from_numpy(part.rows.rewards).float()[pack.rows]
    rewards_K = beta * (logprobs_K.double() - reference_K.double())
    return ScoredTokens(replace(pack, reference_logprobs=reference_K, outcomes=outcomes_K), rewards_K, part)
