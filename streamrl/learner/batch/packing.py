"""Rows to packs: what one forward and backward works on. Never padded.

Guarantees: the same rows give the same packs; rows keep their order over the packs; a token after the last
one that predicts a trained token is not computed, and what rows have in common at their beginning is
computed once in a pack (both exact: neither changes a log-prob or a gradient beyond rounding). Rows without a
trained token are not packed at all.

Knows nothing of rewards and of the model. A bad log-prob stops here: `rollout_logprobs` in a pack are finite.
"""

from dataclasses import dataclass, fields, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from streamrl.errors import ConfigError, NonFiniteError
from streamrl.learner.batch.attention_layout import SegmentLayout, lay_out, to_device
from streamrl.learner.batch.prefix_tree import (
    SHARED_FROM,
    group_prompts,
    prefix_tree,
    segments_on_path,
    shared_with_previous,
)
from streamrl.learner.batch.rows import loss_mask, ragged_arange, row_of_token
from streamrl.types import LongArray, RolloutRows

SHARED_COST = 8
"""For a row that shares a token this counts as one token in so many. Its key and value are copied for the row, in a
layer without grouped heads about an eighth of what a token's activations take; with them less."""


@dataclass(frozen=True, slots=True)
class PackedBatch:
    """One micro-batch. T tokens, K trained tokens ("targets").

    ids, position_ids: int64 [T]. layout: which tokens attend to which.
    predictors: int64 [K], the place in the pack whose next token is the target. targets: int64 [K], its id.
    rollout_logprobs, advantages: float32 [K]. lags: float32 [K], steps from the version that sampled the target to the
    one that is trained. row_tokens: float32 [K], targets in the row that the target is of. rows: int64 [K], that row,
    as numbered in the rows that were packed. start_logprobs: float32 [K], the targets' log-probs before the first
    update of the step; None where that is the policy that is differentiated, or nothing asks for them. values, returns:
    float32 [K], what a critic gave for the targets before the step, and what it is to learn; None without a critic.
    reference_logprobs: float32 [K], what an implicit reward model is measured against, or a loss that has no reference
    to ask; None otherwise. outcomes: float32 [K], the reward of the row that the target is of, which an implicit reward
    model is to learn; None without one. sources: int64 [K], the number of who sampled the target, as `sources.Sources`
    counts; None where nobody asks. routes: int64 [T, layers, k], the experts that each token went to in the engine, -1
    where that is not known; None of rows without any.
    """

    ids: torch.Tensor
    position_ids: torch.Tensor
    layout: SegmentLayout
    predictors: torch.Tensor
    targets: torch.Tensor
    rollout_logprobs: torch.Tensor
    advantages: torch.Tensor
    lags: torch.Tensor
    row_tokens: torch.Tensor
    rows: torch.Tensor
    start_logprobs: torch.Tensor | None = None
    values: torch.Tensor | None = None
    returns: torch.Tensor | None = None
    reference_logprobs: torch.Tensor | None = None
    outcomes: torch.Tensor | None = None
    sources: torch.Tensor | None = None
    routes: torch.Tensor | None = None

    @property
    def num_tokens(self) -> int:
        return len(self.ids)

    @property
    def num_targets(self) -> int:
        return len(self.targets)

    def row_offsets(self) -> LongArray:
        """int64 [R + 1]: row i of the R in this pack owns the targets offsets[i]:offsets[i + 1]. For a pack on the
        CPU."""
        ends = np.flatnonzero(np.diff(self.rows.numpy(), append=-1))
        return np.concatenate([np.zeros(1, np.int64), ends + 1])

    def to(self, device: torch.device) -> "PackedBatch":
        """The same pack with every tensor on `device`; itself where it lies there already."""
        if self.ids.device == device:
            return self
        parts = {field.name: getattr(self, field.name) for field in fields(self)}
        tensors = {name: to_device(part, device) for name, part in parts.items() if isinstance(part, torch.Tensor)}
        return PackedBatch(**parts | tensors | {"layout": self.layout.to(device)})


def empty_pack() -> PackedBatch:
    """One token and no target: a rank that has fewer packs than another takes part in the collectives with
    it, and adds exactly 0 to every gradient."""
    nothing, zero = torch.zeros(0), torch.zeros(1, dtype=torch.int64)
    no_index = nothing.to(torch.int64)
    layout = lay_out(np.ones(1, np.int64))
    one = PackedBatch(zero, zero, layout, no_index, no_index, nothing, nothing, nothing, nothing, no_index)
    return replace(one, values=nothing, returns=nothing, reference_logprobs=nothing, outcomes=nothing)


def pack(
    rows: RolloutRows,
    advantages_N: npt.NDArray[np.float64],
    max_tokens: int,
    *,
    step: int = 0,
    share_from: int | None = SHARED_FROM,
    skip_zero: bool = False,
) -> list[PackedBatch]:
    """Packs of at most `max_tokens`, in row order. A token that rows share counts once, and as a part of one
    (`SHARED_COST`) for each further row.

    rows: in `training_order`. advantages_N: float64 [N]. step: of the version that is trained, for the lags.
    share_from: as `prefix_tree` has it; `None` computes each row whole, which is slower and otherwise the same.
    `skip_zero` leaves rows out whose advantage is exactly 0: under a policy loss without other
    terms they give no gradient, and late in a run they are half of the batch. Denominators count them all the same.

    Raises ConfigError for a row longer than `max_tokens`, NonFiniteError for a log-prob or advantage that
    is not finite, both with the row's group and sample.
    """
    mask_T, row_T = loss_mask(rows), row_of_token(rows)
    if skip_zero:
        mask_T &= (advantages_N != 0.0)[row_T]
    targets = np.flatnonzero(mask_T)
    _require_finite(rows, advantages_N, targets, row_T)
    used_N = np.zeros(rows.num_rows, np.int64)
    # The last target of a row is the last to be assigned, so it stays; the tokens before it are the row's
    # inputs.
    used_N[row_T[targets]] = targets - rows.offsets[row_T[targets]]
    lengths = _Lengths(used_N, group_prompts(rows), share_from)
    told_apart = _told_apart(rows)
    parts = _split(told_apart, lengths, max_tokens)
    return [_pack_part(rows, told_apart, advantages_N, step, part, lengths, targets, row_T) for part in parts]


def _told_apart(rows: RolloutRows) -> RolloutRows:
    """The rows as they are compared: a token that went to other experts is another token, and is not shared."""
    if rows.routes is None:
        return rows
    beside = rows.routes.reshape(rows.num_tokens, -1).astype(np.int32)
    each = np.concatenate([rows.token_ids[:, None], beside], axis=1)
    numbers = np.unique(each, axis=0, return_inverse=True)[1]
    return replace(rows, token_ids=numbers.reshape(-1).astype(np.int32))


class _Lengths(NamedTuple):
    """used_N: int64 [N], each row's tokens that are computed. prompt_N, share_from: as `prefix_tree` has them."""

    used_N: LongArray
    prompt_N: LongArray
    share_from: int | None


def _require_finite(
    rows: RolloutRows, advantages_N: npt.NDArray[np.float64], targets: LongArray, row_T: LongArray
) -> None:
    for name, values, row_of in (
        ("rollout log-prob", rows.rollout_logprobs[targets], row_T[targets]),
        ("advantage", advantages_N, np.arange(rows.num_rows)),
    ):
        bad = np.flatnonzero(~np.isfinite(values))
        if len(bad):
            raise NonFiniteError(
                f"{name} {values[bad[0]]} in {rows.described(row_of[bad[0]])}: {len(bad)} of {len(values)} are not "
                "finite"
            )


def _split(rows: RolloutRows, lengths: _Lengths, max_tokens: int) -> list[LongArray]:
    """Row indices of each pack, in order: as few packs as hold them, and these as equal as the rows allow."""
    used_N = lengths.used_N
    kept = np.flatnonzero(used_N)
    if len(kept) and used_N.max() > max_tokens:
        row = int(used_N.argmax())
        raise ConfigError(
            f"the rollout of group {rows.group[row]}, sample {rows.sample_index[row]} has {used_N[row] + 1} "
            f"tokens, more than fit into learner.micro_batch_tokens = {max_tokens}; raise it to at least "
            f"{used_N[row]} or lower rollout.sampling.max_new_tokens"
        )
    saved = _saved(rows, kept, lengths)
    ends = np.cumsum(used_N[kept] - saved)
    stops = _stops(ends, saved, max_tokens)
    if len(stops) > 1:
        stops = _stops(ends, saved, _least_cap(ends, saved, int(used_N.max()), max_tokens, len(stops)))
    return np.split(kept, stops[:-1]) if stops else []


def _saved(rows: RolloutRows, kept: LongArray, lengths: _Lengths) -> LongArray:
    """int64 [n], tokens that each of the rows costs less behind the one before it in its group. At least so many: what
    it shares with earlier rows alone, or with those of other groups, is saved too, and not counted."""
    if lengths.share_from is None:
        return np.zeros(len(kept), np.int64)
    shared = shared_with_previous(rows, kept, lengths.used_N, lengths.prompt_N, lengths.share_from)
    shared[1:][rows.group[kept[1:]] != rows.group[kept[:-1]]] = 0
    return shared - -(-shared // SHARED_COST)


def _stops(ends: LongArray, saved: LongArray, cap: int) -> list[int]:
    """Behind which row each pack of at most `cap` tokens ends, each with as many rows as fit. ends: tokens up to and
    with each row. saved: of each row, unless it is the first of a pack. `cap` is no less than any row."""
    stops, start = [], 0
    while start < len(ends):
        before = int(ends[start - 1]) if start else 0
        start = int(np.searchsorted(ends, before - int(saved[start]) + cap, side="right"))
        stops.append(start)
    return stops


def _least_cap(ends: LongArray, saved: LongArray, low: int, high: int, packs: int) -> int:
    """The fewest tokens of the largest of `packs` packs in row order, between `low` and `high`. So no pack is nearly
    empty, and costs a GPU as much time as one that is half full."""
    while low < high:
        middle = (low + high) // 2
        if len(_stops(ends, saved, middle)) <= packs:
            high = middle
        else:
            low = middle + 1
    return low


def _pack_part(
    rows: RolloutRows,
    told_apart: RolloutRows,
    advantages_N: npt.NDArray[np.float64],
    step: int,
    part: LongArray,
    lengths: _Lengths,
    all_targets: LongArray,
    row_T: LongArray,
) -> PackedBatch:
    """The pack of the rows `part`."""
    tree = prefix_tree(told_apart, part, *lengths).sorted_by_shape()
    own_start = np.cumsum(tree.length) - tree.length
    tokens = ragged_arange(rows.offsets[part[tree.row]] + tree.start, tree.length)
    low, high = np.searchsorted(all_targets, rows.offsets[[part[0], part[-1] + 1]])
    targets = all_targets[low:high]
    row = np.searchsorted(part, row_T[targets])
    predictor = targets - 1 - rows.offsets[part[row]]
    segment = segments_on_path(tree.parent, tree.start, tree.leaf[row], predictor)
    row_tokens = np.bincount(row, minlength=len(part))
    return PackedBatch(
        ids=torch.from_numpy(rows.token_ids[tokens].astype(np.int64)),
        position_ids=torch.from_numpy(ragged_arange(tree.start, tree.length)),
        layout=lay_out(tree.length, tree.start, tree.parent),
        predictors=torch.from_numpy((own_start - tree.start)[segment] + predictor),
        targets=torch.from_numpy(rows.token_ids[targets].astype(np.int64)),
        rollout_logprobs=torch.from_numpy(rows.rollout_logprobs[targets]),
        advantages=torch.from_numpy(advantages_N[part][row].astype(np.float32)),
        lags=torch.from_numpy((step - rows.token_steps[targets]).astype(np.float32)),
        row_tokens=torch.from_numpy(row_tokens[row].astype(np.float32)),
        rows=torch.from_numpy(part[row]),
        routes=None if rows.routes is None else torch.from_numpy(rows.routes[tokens].astype(np.int64)),
    )
