"""Aggregation: the weight that each token's loss has in the scalar that is minimised.

The denominators are counts over the whole batch, all micro-batches and all ranks, and are given in. So the
sum of `weight * loss` over any split of the batch is the same number. Rows without a trained token do not
count. Rejected tokens do: they were counted before any forward (in verl they leave a denominator that is
counted on the spot, and stay in one that is handed in).
"""

from collections.abc import Callable
from typing import NamedTuple

import torch


class Denominators(NamedTuple):
    """Counts over the whole batch: tokens that are trained, and rows that have at least one."""

    tokens: int
    rows: int


def token_mean(row_tokens_T: torch.Tensor, total: Denominators, horizon: float = 1.0) -> torch.Tensor:
    """`1 / tokens`: every token of the batch weighs the same (DAPO).

    row_tokens_T: float32 [T], trained tokens in the row that the token belongs to. horizon: has a part in
    `seq_mean_token_sum_norm` alone. Returns float32 [T].
    """
    return torch.full_like(row_tokens_T, 1.0 / max(total.tokens, 1))


def seq_mean_token_mean(row_tokens_T: torch.Tensor, total: Denominators, horizon: float = 1.0) -> torch.Tensor:
    """`1 / (rows * tokens of the row)`: every row weighs the same (GRPO as first published). As
    `token_mean`."""
    return 1.0 / (row_tokens_T * max(total.rows, 1))


def seq_mean_token_sum(row_tokens_T: torch.Tensor, total: Denominators, horizon: float = 1.0) -> torch.Tensor:
    """`1 / rows`: a row weighs as much as it is long (REINFORCE over rows; Dr.GRPO up to a constant). As
    `token_mean`."""
    return torch.full_like(row_tokens_T, 1.0 / max(total.rows, 1))


def seq_mean_token_sum_norm(row_tokens_T: torch.Tensor, total: Denominators, horizon: float = 1.0) -> torch.Tensor:
    """`1 / (rows * horizon)`: as `seq_mean_token_sum`, by a constant length (Dr.GRPO: the budget of a generation). As
    `token_mean`.

    verl divides by both as of 0.7.1, and by the horizon alone before. Where none is given it takes the padded width of
    the batch: the step then hangs on the longest row of it.
    """
    return torch.full_like(row_tokens_T, 1.0 / (max(total.rows, 1) * horizon))


AGGREGATIONS: dict[str, Callable[..., torch.Tensor]] = {
    "token_mean": token_mean,
    "seq_mean_token_mean": seq_mean_token_mean,
    "seq_mean_token_sum": seq_mean_token_sum,
    "seq_mean_token_sum_norm": seq_mean_token_sum_norm,
}
