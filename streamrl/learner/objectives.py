"""Objectives: from a policy and a pack to a loss to be minimised, and the sums that the metrics are made of.

The loss of a pack is its share of the batch's: weights hold the global denominators, so losses and sums of
all packs and all ranks add up to the batch's, however it was cut (but for `losses.covariance`). Both objectives are
pure functions of their arguments; the synchronous reference loop calls the same ones.
"""

from collections.abc import Callable

import torch

from streamrl.algorithms.aggregation import AGGREGATIONS, Denominators, token_mean
from streamrl.algorithms.corrections import CORRECTIONS, LOG_RATIO_LIMIT, importance
from streamrl.algorithms.divergences import DIVERGENCES
from streamrl.algorithms.losses import LOSS_SETTINGS, LOSSES, ROW_LOSSES, TEACHER_LOSSES
from streamrl.algorithms.proximal import PROXIMALS
from streamrl.algorithms.rejections import REJECTIONS, outside
from streamrl.algorithms.supervised import sft
from streamrl.config.schema.algorithm import AlgorithmConfig, RejectionConfig
from streamrl.learner.batch.packing import PackedBatch
from streamrl.learner.batch.token_facts import TokenFacts
from streamrl.learner.model.policy import PolicyModel
from streamrl.learner.sources import PER_SOURCE, SOURCES, by_source
from streamrl.learner.sums import LAGS, Sums, by_lag
from streamrl.learner.token_watch import TokenOutcome, TokenWatch

Objective = Callable[[PolicyModel, PackedBatch, Denominators], tuple[torch.Tensor, Sums]]
Reference = Callable[[PackedBatch, float], tuple[torch.Tensor, torch.Tensor]]
"""Called as `PolicyModel` is, without gradient."""


def policy_loss(
    policy: PolicyModel,
    pack: PackedBatch,
    total: Denominators,
    algorithm: AlgorithmConfig,
    temperature: float,
    reference: Reference | None = None,
    watch: TokenWatch | None = None,
) -> tuple[torch.Tensor, Sums]:
    """(loss, sums) of one pack. The loss is a scalar with gradient: this pack's part of the batch's loss.

    policy: anything called as `PolicyModel` is. total: counts over the whole batch. reference: the policy that
    `kl_coef` holds the trained one to, or that teaches it; where the loss has one and it is None, the pack holds the
    log-probs under it. Proximal policy, weights and
    rejections are of the policy at the start of the step: where a step has several updates the pack holds them.
    watch: is told what was found of each token.

    Metrics: the ratio is trainer/rollout; a token is counted as clipped when a bound of the loss or of the correction
    decided; kl is the k3 estimate of KL(rollout || trainer), `exp(d) - 1 - d` with `d = trainer - rollout` (Schulman
    2020).
    """
    logprobs_K, entropy_K = policy(pack, temperature, True) if algorithm.entropy_coef else policy(pack, temperature)
    current_K = logprobs_K.detach()
    start_K = current_K if pack.start_logprobs is None else pack.start_logprobs
    proximal_K = PROXIMALS[algorithm.proximal](start_K, pack.rollout_logprobs, pack.lags)
    lengths_R = _row_lengths(pack, algorithm)
    facts = _weigh(start_K, proximal_K, pack, algorithm, lengths_R)
    settings = {name: getattr(algorithm, name) for name in LOSS_SETTINGS[algorithm.loss]}
    if algorithm.loss in ROW_LOSSES:
        settings["lengths_R"] = lengths_R
    referred_K = _referred(reference, pack, temperature, algorithm)
    if algorithm.loss in TEACHER_LOSSES:
        settings["teacher_T"] = referred_K
    loss_K, clipped_K = LOSSES[algorithm.loss](logprobs_K, proximal_K, pack.advantages, facts.weights, **settings)
    if algorithm.entropy_coef:
        loss_K = loss_K - algorithm.entropy_coef * entropy_K
    divergence_K = None if referred_K is None else DIVERGENCES[algorithm.loss_divergence](logprobs_K, referred_K)
    if divergence_K is not None and algorithm.kl_in_loss:
        loss_K = loss_K + algorithm.kl_coef * divergence_K
    loss = (AGGREGATIONS[algorithm.aggregation](pack.row_tokens, total, algorithm.horizon) * loss_K).sum()
    if watch is not None:
        watch(pack, TokenOutcome(start_K, entropy_K, clipped_K, facts.truncated, facts.rejected))
    distance_K = current_K - pack.rollout_logprobs
    bounded_K = distance_K.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    ratio_K = bounded_K.exp()
    rows = (entropy_K.detach(), ratio_K, (clipped_K | facts.truncated).float(), ratio_K - 1.0 - bounded_K)
    return loss, _sums(loss, pack, rows, distance_K, divergence_K, facts)


def nll_loss(policy: PolicyModel, pack: PackedBatch, total: Denominators) -> tuple[torch.Tensor, Sums]:
    """Supervised: mean negative log-likelihood in nats of the targets over the batch; advantages have no
    part.

    The result is as `policy_loss`'s; ratio, clip and mismatch have no meaning here and are 0.
    """
    logprobs_K, entropy_K = policy(pack, 1.0)
    loss = (token_mean(pack.row_tokens, total) * sft(logprobs_K)).sum()
    return loss, supervised_sums(loss, pack, entropy_K)


def supervised_sums(loss: torch.Tensor, pack: PackedBatch, entropy_K: torch.Tensor) -> Sums:
    """The sums of a pack that nobody sampled."""
    nothing_K = torch.zeros_like(entropy_K)
    return _sums(loss, pack, (entropy_K.detach(), nothing_K, nothing_K, nothing_K), nothing_K)


def _row_lengths(pack: PackedBatch, algorithm: AlgorithmConfig) -> torch.Tensor | None:
    """int64 [R], targets of each row; None where nothing asks for them, since counting waits for a GPU."""
    by_row = algorithm.correction_level != "token" or algorithm.rejection.level != "token"
    if not by_row and algorithm.loss not in ROW_LOSSES:
        return None
    return torch.unique_consecutive(pack.rows, return_counts=True)[1]


def _weigh(
    start_K: torch.Tensor,
    proximal_K: torch.Tensor,
    pack: PackedBatch,
    algorithm: AlgorithmConfig,
    lengths_R: torch.Tensor | None,
) -> TokenFacts:
    """The weight of each token by correction and rejection."""
    ratio_K = importance(proximal_K, pack.rollout_logprobs, algorithm.correction_level, lengths_R)
    correct = CORRECTIONS[algorithm.correction]
    weights_K, truncated_K = correct(ratio_K, algorithm.tis_cap, algorithm.correction_low)
    rejected_K = _rejected(start_K, pack.rollout_logprobs, algorithm.rejection, lengths_R)
    if rejected_K is None:
        return TokenFacts(pack.lags, weights_K, truncated_K, torch.zeros_like(truncated_K))
    return TokenFacts(pack.lags, torch.where(rejected_K, 0.0, weights_K), truncated_K, rejected_K)


def _rejected(
    start_K: torch.Tensor, rollout_K: torch.Tensor, rejection: RejectionConfig, lengths_R: torch.Tensor | None
) -> torch.Tensor | None:
    if rejection.measure == "none":
        return None
    measure_K = REJECTIONS[rejection.measure](start_K, rollout_K, rejection.level, lengths_R)
    return outside(measure_K, rejection.low, rejection.high)


def _referred(
    reference: Reference | None, pack: PackedBatch, temperature: float, algorithm: AlgorithmConfig
) -> torch.Tensor | None:
    """float32 [K], log-probs under the reference where the loss has a use for them."""
    if not (algorithm.kl_in_loss or algorithm.loss in TEACHER_LOSSES):
        return None
    if reference is None:
        assert pack.reference_logprobs is not None
        return pack.reference_logprobs
    with torch.no_grad():
        return reference(pack, temperature)[0]


def _sums(
    loss: torch.Tensor,
    pack: PackedBatch,
    rows: tuple[torch.Tensor, ...],
    distance_K: torch.Tensor,
    divergence_K: torch.Tensor | None = None,
    facts: TokenFacts | None = None,
) -> Sums:
    sums_R = torch.stack(rows).double().sum(1)
    count = sums_R.new_tensor([pack.num_targets])
    greatest = distance_K.abs().max().double() if pack.num_targets else sums_R.new_zeros(())
    referred = sums_R.new_zeros(2)
    if divergence_K is not None:
        referred = torch.stack([divergence_K.detach().double().sum(), count[0]])
    lags = sums_R.new_zeros(LAGS * 5) if facts is None else by_lag(facts)
    kl_K = rows[-1]
    sources = sums_R.new_zeros(PER_SOURCE * SOURCES)
    if pack.sources is not None:
        sources = by_source(pack.sources, kl_K, facts)
    return Sums(torch.cat([loss.detach().double()[None], count, sums_R, referred, lags, sources]), greatest[None])
