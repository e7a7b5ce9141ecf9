"""Preference pairs on packs: direct preference optimisation as an objective of the learner.

Rows 2 i and 2 i + 1 of a batch are the chosen and the rejected answer to one prompt. Guarantees: both are in one pack,
so what a pair costs does not depend on how the batch is cut; pack by pack the losses add up to the mean over all pairs.
No key of the configuration chooses it: a run samples, and pairs come from files (`streamrl dpo`).
"""

import numpy as np
import torch

from streamrl.algorithms.aggregation import Denominators
from streamrl.algorithms.levels import row_sums
from streamrl.algorithms.supervised import dpo
from streamrl.errors import ConfigError, DataError
from streamrl.learner.batch.packing import PackedBatch, pack
from streamrl.learner.batch.rows import row_targets, select_rows
from streamrl.learner.model.policy import PolicyModel
from streamrl.learner.objectives import Reference, supervised_sums
from streamrl.learner.sums import Sums
from streamrl.types import LongArray, RolloutRows


def dpo_loss(
    policy: PolicyModel,
    pack: PackedBatch,
    total: Denominators,
    reference: Reference,
    beta: float,
    label_smoothing: float = 0.0,
) -> tuple[torch.Tensor, Sums]:
    """(loss, sums) of one pack of whole pairs: its part of the mean over the batch's pairs. See `supervised.dpo`.

    pack: of `pack_pairs`. total: counts over the whole batch, of which the rows are twice the pairs.
    """
    logprobs_K, entropy_K = policy(pack, 1.0)
    with torch.no_grad():
        reference_K = reference(pack, 1.0)[0]
    ours_R, theirs_R = (_row_sums(values_K, pack) for values_K in (logprobs_K, reference_K))
    loss_P = dpo(ours_R[::2], ours_R[1::2], theirs_R[::2], theirs_R[1::2], beta, label_smoothing)
    loss = loss_P.sum() / max(total.rows / 2, 1)
    return loss, supervised_sums(loss, pack, entropy_K)


@torch.no_grad()
def implicit_rewards(policy: PolicyModel, pack: PackedBatch, reference: Reference, beta: float) -> torch.Tensor:
    """float32 [R], beta x (log-prob of a row's answer - the reference's): what DPO takes for a reward. Source: Rafailov
    et al. 2023, equation 5, without the part that a prompt's answers share."""
    return beta * _row_sums(policy(pack, 1.0)[0] - reference(pack, 1.0)[0], pack)


def pack_pairs(rows: RolloutRows, max_tokens: int) -> list[PackedBatch]:
    """Packs of whole pairs, in order, each of at most `max_tokens`.

    Raises DataError for an odd number of rows, or one without a trained token; ConfigError for a pair that does not
    fit.
    """
    empty = np.flatnonzero(row_targets(rows) == 0)
    if rows.num_rows % 2 or len(empty):
        what = f"row {empty[0]} has no token to train on" if len(empty) else f"{rows.num_rows} rows are no pairs"
        raise DataError(f"preference pairs: {what}; give the chosen and the rejected answer in turn, each with a token")
    packs = []
    for part in _parts(rows.lengths(), max_tokens):
        packs += pack(select_rows(rows, part), np.zeros(len(part)), max_tokens)
    return packs


def _parts(lengths_N: LongArray, max_tokens: int) -> list[LongArray]:
    """The rows of each pack: as many pairs as fit."""
    lengths_P = lengths_N.reshape(-1, 2).sum(1)
    if lengths_P.max(initial=0) > max_tokens:
        raise ConfigError(
            f"the pair {lengths_P.argmax()} has {lengths_P.max()} tokens, more than fit into "
            f"learner.micro_batch_tokens = {max_tokens}; raise it to at least that"
        )
    parts, ends, start = [], np.cumsum(lengths_P), 0
    while start < len(ends):
        before = int(ends[start - 1]) if start else 0
        stop = int(np.searchsorted(ends, before + max_tokens, side="right"))
        parts.append(np.arange(2 * start, 2 * stop))
        start = stop
    return parts


def _row_sums(values_K: torch.Tensor, pack: PackedBatch) -> torch.Tensor:
    """float32 [R], the sum over each row's targets; every row has some."""
    lengths_R = torch.unique_consecutive(pack.rows, return_counts=True)[1]
    return row_sums(values_K, lengths_R)
