"""The ranks of a worker group as a mesh of data parallel times sequence parallel times tensor parallel: who has rows of
its own, and who has the same rows as whom. Pure; it knows no process group.
"""

from dataclasses import dataclass
from typing import NamedTuple


class RowRank(NamedTuple):
    """A rank as one of those that have rows. data_rank: whose rows it has, of `data_size`. answers: whether it answers
    for them; of those that have the same, one does."""

    data_rank: int
    data_size: int
    answers: bool


@dataclass(frozen=True, slots=True)
class RankMesh:
    """Ranks with the same rows are neighbours, and of these the ones that have the same tokens.

    data_size: ranks, or groups of ranks, that have rows of their own. tensor_size: ranks that a layer is spread over,
    which see the same tokens. sequence_size: ranks, or such groups, that the tokens of a row are spread over. Raises
    ValueError for a size below 1.
    """

    data_size: int
    tensor_size: int = 1
    sequence_size: int = 1

    def __post_init__(self) -> None:
        if min(self.data_size, self.sequence_size, self.tensor_size) < 1:
            sizes = f"{self.data_size} x {self.sequence_size} x {self.tensor_size}"
            raise ValueError(f"a mesh has one rank at least, got {sizes}")

    @classmethod
    def of(cls, world_size: int, tensor_size: int, sequence_size: int = 1) -> "RankMesh":
        """The mesh of so many ranks. Raises ValueError when they are no whole number of groups."""
        same = tensor_size * sequence_size
        if min(tensor_size, sequence_size) < 1 or world_size % same:
            raise ValueError(f"{world_size} ranks cannot be groups of {same}; give a divisor of {world_size}")
        return cls(world_size // same, tensor_size, sequence_size)

    @property
    def world_size(self) -> int:
        return self.data_size * self.same_rows

    @property
    def same_rows(self) -> int:
        """Ranks that have the same rows."""
        return self.sequence_size * self.tensor_size

    @property
    def answering(self) -> range:
        """The ranks that answer for rows, one for each data rank, in the order of these: the first of those that have
        the same."""
        return range(0, self.world_size, self.same_rows)

    def data_rank(self, rank: int) -> int:
        """Whose rows a rank has, of `data_size`."""
        return rank // self.same_rows

    def row_rank(self, rank: int) -> RowRank:
        return RowRank(self.data_rank(rank), self.data_size, rank in self.answering)

    def sequence_rank(self, rank: int) -> int:
        """Which stretch of its rows' tokens a rank has, of `sequence_size`."""
        return rank // self.tensor_size % self.sequence_size


def own_parts(count: int, data_rank: int, data_size: int) -> range:
    """Of `count` numbered parts of a batch those of a data rank: as many for each, neighbours together.

    Raises ValueError when the parts cannot be dealt evenly.
    """
    if count % data_size:
        raise ValueError(f"{count} parts cannot be dealt evenly to {data_size} ranks; make a multiple of {data_size}")
    each = count // data_size
    return range(data_rank * each, (data_rank + 1) * each)
