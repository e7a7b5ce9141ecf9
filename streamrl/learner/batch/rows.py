"""Questions about ragged rows, answered for all rows at once.

Pure numpy over `RolloutRows`. The loss mask is `token_origin == SAMPLED`, never a token value; no function
here looks at a token's id.
"""

import numpy as np
import numpy.typing as npt

from streamrl.algorithms.aggregation import Denominators
from streamrl.types import LongArray, RolloutRows, TokenOrigin


def ragged_arange(starts: LongArray, lengths: LongArray) -> LongArray:
    """int64 [sum(lengths)]: starts[0], starts[0] + 1, ... for lengths[0] items, then the same for each next
    pair."""
    ends = np.cumsum(lengths)
    return np.repeat(starts - (ends - lengths), lengths) + np.arange(int(ends[-1]) if len(ends) else 0)


def row_of_token(rows: RolloutRows) -> LongArray:
    """int64 [T], the row that each token belongs to."""
    return np.repeat(np.arange(rows.num_rows), rows.lengths())


def loss_mask(rows: RolloutRows) -> npt.NDArray[np.bool_]:
    """bool [T]: tokens that are trained. Sampled, in a row whose score did not fail, and not a row's first
    token, which nothing predicts."""
    mask = (rows.token_origin == TokenOrigin.SAMPLED) & np.repeat(rows.valid, rows.lengths())
    mask[rows.offsets[:-1][rows.lengths() > 0]] = False
    return mask


def count_targets(rows: RolloutRows) -> Denominators:
    """The global denominators, when `rows` is the whole batch."""
    targets = np.flatnonzero(loss_mask(rows))
    return Denominators(len(targets), len(np.unique(row_of_token(rows)[targets])))


def row_targets(rows: RolloutRows) -> LongArray:
    """int64 [N], trained tokens of each row."""
    return np.bincount(row_of_token(rows)[loss_mask(rows)], minlength=rows.num_rows)


def prompt_lengths(rows: RolloutRows) -> LongArray:
    """int64 [N], tokens of origin PROMPT at the head of each row."""
    first = np.flatnonzero(rows.token_origin != TokenOrigin.PROMPT)[::-1]
    row = row_of_token(rows)
    lengths = rows.lengths()
    # Where an index repeats the last assignment stays: reversed, that is each row's first such token.
    lengths[row[first]] = first - rows.offsets[row[first]]
    return lengths


def select_rows(rows: RolloutRows, index: LongArray) -> RolloutRows:
    """The rows at `index` (int64, any order), copied."""
    lengths = rows.lengths()[index]
    tokens = ragged_arange(rows.offsets[index], lengths)
    return RolloutRows(
        offsets=np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)]),
        token_ids=rows.token_ids[tokens],
        token_origin=rows.token_origin[tokens],
        rollout_logprobs=rows.rollout_logprobs[tokens],
        token_steps=rows.token_steps[tokens],
        group=rows.group[index],
        sample_index=rows.sample_index[index],
        rewards=rows.rewards[index],
        valid=rows.valid[index],
        replica=[rows.replica[i] for i in index] if rows.replica else [],
        routes=None if rows.routes is None else rows.routes[tokens],
    )


def training_order(rows: RolloutRows) -> LongArray:
    """int64 [N], the order in which rows are packed: (group, sample_index), stable. It makes the step
    independent of when each row arrived."""
    return np.lexsort((rows.sample_index, rows.group))
