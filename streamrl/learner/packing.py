"""Rows to packs: what one forward and backward works on. Never padded.

Guarantees: the same rows give the same packs; rows keep their order over the packs; a token after the last
one that predicts a trained token is not computed, and the prompt that the rows of one group share is
computed once in a pack (both exact: neither changes a log-prob or a gradient beyond rounding). `max_tokens`
counts rows at their full length, shared or not, because attention reads that many keys. Rows without a
trained token are not packed at all.

Knows nothing of rewards and of the model. A bad log-prob stops here: `rollout_logprobs` in a pack are finite.
"""

from dataclasses import dataclass, fields, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from streamrl.errors import ConfigError, NonFiniteError
from streamrl.learner.rows import loss_mask, prompt_lengths, ragged_arange, row_of_token
from streamrl.learner.segments import SegmentLayout, lay_out
from streamrl.types import LongArray, RolloutRows

BoolArray = npt.NDArray[np.bool_]


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
    reference_logprobs, outcomes: float32 [K], what an implicit reward model is measured against, and the reward of the
    row that the target is of, which it is to learn; None without one. sources: int64 [K], the number of who sampled the
    target, as `sources.Sources` counts; None where nobody asks.
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
        parts = (getattr(self, field.name) for field in fields(self))
        return PackedBatch(*(None if part is None else part.to(device) for part in parts))


def empty_pack() -> PackedBatch:
    """One token and no target: a rank that has fewer packs than another takes part in the collectives with
    it, and adds exactly 0 to every gradient."""
    nothing, zero = torch.zeros(0), torch.zeros(1, dtype=torch.int64)
    no_index = nothing.to(torch.int64)
    layout = lay_out(np.ones(1, np.int64), np.zeros(1, np.int64), np.zeros(1, np.int64))
    one = PackedBatch(zero, zero, layout, no_index, no_index, nothing, nothing, nothing, nothing, no_index)
    return replace(one, values=nothing, returns=nothing, reference_logprobs=nothing, outcomes=nothing)


def pack(
    rows: RolloutRows,
    advantages_N: npt.NDArray[np.float64],
    max_tokens: int,
    *,
    step: int = 0,
    share_prompts: bool = True,
    skip_zero: bool = False,
) -> list[PackedBatch]:
    """Packs of at most `max_tokens`, in row order.

    rows: in `training_order`. advantages_N: float64 [N]. step: of the version that is trained, for the lags.
    `share_prompts = False` computes each prompt in each row, which is slower and otherwise the same: it is what the
    tests compare with. `skip_zero` leaves rows out whose advantage is exactly 0: under a policy loss without other
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
    prompt_N = prompt_lengths(rows) if share_prompts else np.zeros(rows.num_rows, np.int64)
    parts = _split(rows, used_N, max_tokens)
    return [_pack_part(rows, advantages_N, step, part, used_N, prompt_N, targets, row_T) for part in parts]


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


def _split(rows: RolloutRows, used_N: LongArray, max_tokens: int) -> list[LongArray]:
    """Row indices of each pack: as many rows as fit, in order."""
    kept = np.flatnonzero(used_N)
    if len(kept) and used_N.max() > max_tokens:
        row = int(used_N.argmax())
        raise ConfigError(
            f"the rollout of group {rows.group[row]}, sample {rows.sample_index[row]} has {used_N[row] + 1} "
            f"tokens, more than fit into learner.micro_batch_tokens = {max_tokens}; raise it to at least "
            f"{used_N[row]} or lower rollout.sampling.max_new_tokens"
        )
    ends = np.cumsum(used_N[kept])
    parts, start = [], 0
    while start < len(kept):
        before = int(ends[start - 1]) if start else 0
        stop = int(np.searchsorted(ends, before + max_tokens, side="right"))
        parts.append(kept[start:stop])
        start = stop
    return parts


def _pack_part(
    rows: RolloutRows,
    advantages_N: npt.NDArray[np.float64],
    step: int,
    part: LongArray,
    used_N: LongArray,
    prompt_N: LongArray,
    all_targets: LongArray,
    row_T: LongArray,
) -> PackedBatch:
    """The pack of the rows `part`."""
    placed = _place(rows, part, used_N, prompt_N)
    low, high = np.searchsorted(all_targets, rows.offsets[[part[0], part[-1] + 1]])
    targets = all_targets[low:high]
    row = np.searchsorted(part, row_T[targets])
    predictor = targets - 1 - rows.offsets[part[row]]
    behind = predictor - placed.prefix[row]
    place = np.where(behind < 0, placed.prefix_start[row] + predictor, placed.own_start[row] + behind)
    row_tokens = np.bincount(row, minlength=len(part))
    return PackedBatch(
        ids=torch.from_numpy(rows.token_ids[placed.tokens].astype(np.int64)),
        position_ids=torch.from_numpy(placed.positions),
        layout=placed.layout,
        predictors=torch.from_numpy(place),
        targets=torch.from_numpy(rows.token_ids[targets].astype(np.int64)),
        rollout_logprobs=torch.from_numpy(rows.rollout_logprobs[targets]),
        advantages=torch.from_numpy(advantages_N[part][row].astype(np.float32)),
        lags=torch.from_numpy((step - rows.token_steps[targets]).astype(np.float32)),
        row_tokens=torch.from_numpy(row_tokens[row].astype(np.float32)),
        rows=torch.from_numpy(part[row]),
    )


class _Placed(NamedTuple):
    """Where the n rows of a pack lie in it.

    tokens: the batch's token at each place of the pack; positions: its position in its row. prefix: for each row, how
    many of its tokens are a shared prompt's, which lies at prefix_start; its other tokens lie at own_start.
    """

    tokens: LongArray
    positions: LongArray
    layout: SegmentLayout
    prefix: LongArray
    prefix_start: LongArray
    own_start: LongArray


def _place(rows: RolloutRows, part: LongArray, used_N: LongArray, prompt_N: LongArray) -> _Placed:
    """One segment for each shared prompt and one for each row's own tokens, sorted by shape, so that equal ones are
    one attention call."""
    leader, shared = _leaders(rows, part, prompt_N)
    prefix = np.where(shared, prompt_N[part], 0)
    heads = np.flatnonzero(shared & (leader == np.arange(len(part))))
    owners = np.flatnonzero(used_N[part] > prefix)
    # Segments before they are sorted: the prompts, then the rows' own tokens.
    skipped = np.concatenate([np.zeros(len(heads), np.int64), prefix[owners]])
    q_len = np.concatenate([prefix[heads], (used_N[part] - prefix)[owners]])
    source = rows.offsets[part[np.concatenate([heads, owners])]] + skipped
    order = np.lexsort((skipped, q_len))
    start = np.empty_like(q_len)
    start[order] = np.cumsum(q_len[order]) - q_len[order]
    head_start, own_start = np.zeros((2, len(part)), np.int64)
    head_start[heads], own_start[owners] = start[: len(heads)], start[len(heads) :]
    prefix_start = head_start[leader]
    segment_prefix = np.concatenate([np.zeros(len(heads), np.int64), prefix_start[owners]])
    return _Placed(
        tokens=ragged_arange(source[order], q_len[order]),
        positions=ragged_arange(skipped[order], q_len[order]),
        layout=lay_out(q_len[order], segment_prefix[order], skipped[order]),
        prefix=prefix,
        prefix_start=prefix_start,
        own_start=own_start,
    )


def _leaders(rows: RolloutRows, part: LongArray, prompt_N: LongArray) -> tuple[LongArray, BoolArray]:
    """For each row of the pack: the first row of its group there, and whether the group shares its prompt.

    Only equal prompts are shared, and only by two rows or more. Ids decide, not the promise that a group
    has one.
    """
    group = rows.group[part]
    first = np.flatnonzero(np.concatenate([[True], group[1:] != group[:-1]]))
    size = np.diff(np.append(first, len(part)))
    leader = np.repeat(first, size)
    length = prompt_N[part]
    differs = length != length[leader]
    compared = np.where(differs, 0, length)
    own = rows.token_ids[ragged_arange(rows.offsets[part], compared)]
    led = rows.token_ids[ragged_arange(rows.offsets[part[leader]], compared)]
    unequal = np.repeat(np.arange(len(part)), compared)[own != led]
    differs[unequal] = True
    broken = np.add.reduceat(differs, first) > 0
    shares = (size > 1) & ~broken & (length[first] > 0)
    return leader, np.repeat(shares, size)
