"""How one Megatron parameter is made of Hugging Face tensors, and cut over the ranks of a tensor group.

Guarantees: `merge` of the parts of all ranks is what they were cut from, to the bit. Shape arithmetic alone: no ranks,
no names, no megatron-core.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch


@dataclass(frozen=True, slots=True)
class Sizes:
    """Of the whole model. groups: key-value heads. queries: query heads of each."""

    groups: int
    queries: int
    vocabulary: int


class Cut(Protocol):
    """One way. A parameter has as many Hugging Face tensors as `part` is given, in the order of the table."""

    def part(self, wholes: Sequence[torch.Tensor], sizes: Sizes, rank: int, ranks: int) -> torch.Tensor:
        """What rank `rank` of `ranks` has."""
        ...

    def merge(self, parts: Sequence[torch.Tensor], sizes: Sizes) -> list[torch.Tensor]:
        """The Hugging Face tensors of the parts of all ranks, in their order."""
        ...


class Whole:
    """On each rank the same: norms, the router."""

    def part(self, wholes: Sequence[torch.Tensor], sizes: Sizes, rank: int, ranks: int) -> torch.Tensor:
        return wholes[0]

    def merge(self, parts: Sequence[torch.Tensor], sizes: Sizes) -> list[torch.Tensor]:
        return [parts[0]]


class Rows:
    """Cut by its outputs, the first dimension."""

    def part(self, wholes: Sequence[torch.Tensor], sizes: Sizes, rank: int, ranks: int) -> torch.Tensor:
        return wholes[0].chunk(ranks)[rank]

    def merge(self, parts: Sequence[torch.Tensor], sizes: Sizes) -> list[torch.Tensor]:
        return [torch.cat(list(parts))]


class Columns:
    """Cut by its inputs, the second dimension: what adds up over the ranks."""

    def part(self, wholes: Sequence[torch.Tensor], sizes: Sizes, rank: int, ranks: int) -> torch.Tensor:
        return wholes[0].chunk(ranks, 1)[rank]

    def merge(self, parts: Sequence[torch.Tensor], sizes: Sizes) -> list[torch.Tensor]:
        return [torch.cat(list(parts), 1)]


class Vocabulary:
    """Cut by rows, behind which rows of zeros make the ranks' parts equal."""

    def part(self, wholes: Sequence[torch.Tensor], sizes: Sizes, rank: int, ranks: int) -> torch.Tensor:
        (whole,) = wholes
        each = -(-sizes.vocabulary // ranks)
        mine = whole[rank * each : (rank + 1) * each]
        return torch.cat([mine, mine.new_zeros(each - len(mine), *whole.shape[1:])])

    def merge(self, parts: Sequence[torch.Tensor], sizes: Sizes) -> list[torch.Tensor]:
        return [torch.cat(list(parts))[: sizes.vocabulary]]


class Heads:
    """Query, key and value in one: for each key-value head its query heads, then the key, then the value. Cut by rows,
    so that a rank has whole groups."""

    def part(self, wholes: Sequence[torch.Tensor], sizes: Sizes, rank: int, ranks: int) -> torch.Tensor:
        grouped = torch.cat([whole.unflatten(0, (sizes.groups, -1)) for whole in wholes], 1)
        return grouped.chunk(ranks)[rank].flatten(0, 1)

    def merge(self, parts: Sequence[torch.Tensor], sizes: Sizes) -> list[torch.Tensor]:
        grouped = torch.cat(list(parts)).unflatten(0, (sizes.groups, sizes.queries + 2, -1))
        split = grouped.split((sizes.queries, 1, 1), 1)
        return [each.flatten(0, 2) for each in split]


class GateUp:
    """Gate and up projection in one, each cut by rows: a rank has its part of the gate, then that of the up."""

    def part(self, wholes: Sequence[torch.Tensor], sizes: Sizes, rank: int, ranks: int) -> torch.Tensor:
        return torch.cat([whole.chunk(ranks)[rank] for whole in wholes])

    def merge(self, parts: Sequence[torch.Tensor], sizes: Sizes) -> list[torch.Tensor]:
        halves = zip(*(part.chunk(2) for part in parts), strict=True)
        return [torch.cat(half) for half in halves]


class FusedGateUp:
    """The same of one tensor that holds the gate, then the up."""

    def part(self, wholes: Sequence[torch.Tensor], sizes: Sizes, rank: int, ranks: int) -> torch.Tensor:
        return GATE_UP.part(wholes[0].chunk(2), sizes, rank, ranks)

    def merge(self, parts: Sequence[torch.Tensor], sizes: Sizes) -> list[torch.Tensor]:
        return [torch.cat(GATE_UP.merge(parts, sizes))]


WHOLE, ROWS, COLUMNS, VOCABULARY, HEADS = Whole(), Rows(), Columns(), Vocabulary(), Heads()
GATE_UP, FUSED_GATE_UP = GateUp(), FusedGateUp()
