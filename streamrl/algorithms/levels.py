"""Levels: whether a quantity is a token's own, or its row's. Pure functions of flat tensors.

The tokens of a row lie together, and all of them are there: a row is never split over packs. So nothing here depends on
how a batch was cut. lengths_R: int64 [R], tokens of each row, in their order, their sum T.
"""

from collections.abc import Callable

import torch


def row_sums(values_T: torch.Tensor, lengths_R: torch.Tensor) -> torch.Tensor:
    """[R], the sum over each row; differentiable. Added in order, unlike a scatter on a GPU."""
    if not len(lengths_R):
        return values_T
    return torch.segment_reduce(values_T, "sum", lengths=lengths_R)


def at_tokens(values_R: torch.Tensor, lengths_R: torch.Tensor) -> torch.Tensor:
    """[T], each row's value at each of its tokens."""
    return values_R.repeat_interleave(lengths_R)


def token(values_T: torch.Tensor, lengths_R: torch.Tensor) -> torch.Tensor:
    """Each token's own value."""
    return values_T


def sequence(values_T: torch.Tensor, lengths_R: torch.Tensor) -> torch.Tensor:
    """The sum over the token's row: of log ratios, the log ratio of the whole row."""
    return at_tokens(row_sums(values_T, lengths_R), lengths_R)


def geometric(values_T: torch.Tensor, lengths_R: torch.Tensor) -> torch.Tensor:
    """The mean over the token's row: of log ratios, the log of their geometric mean."""
    return at_tokens(row_sums(values_T, lengths_R) / lengths_R.to(values_T.dtype), lengths_R)


LEVELS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "token": token,
    "sequence": sequence,
    "geometric": geometric,
}
