"""The ranks of a worker group as a plane of data parallel times tensor parallel: who has rows of its own, and who has
the same rows as whom. Pure; it knows no process group.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RankMesh:
    """Rank r is number r % tensor_size of the ranks that have the rows of data rank r // tensor_size.

    data_size: ranks, or groups of ranks, that have rows of their own. tensor_size: ranks that a layer is spread over,
    which see the same rows. Raises ValueError for a size below 1.
    """

    data_size: int
    tensor_size: int = 1

    def __post_init__(self) -> None:
        if min(self.data_size, self.tensor_size) < 1:
            raise ValueError(f"a mesh has one rank at least, got {self.data_size} x {self.tensor_size}")

    @classmethod
    def of(cls, world_size: int, tensor_size: int) -> "RankMesh":
        """The mesh of so many ranks. Raises ValueError when `tensor_size` does not divide them."""
        if tensor_size < 1 or world_size % tensor_size:
            raise ValueError(f"{world_size} ranks cannot be groups of {tensor_size}; give a divisor of {world_size}")
        return cls(world_size // tensor_size, tensor_size)

    @property
    def world_size(self) -> int:
        return self.data_size * self.tensor_size

    @property
    def answering(self) -> range:
        """The ranks that answer for rows, one for each data rank, in the order of these: the first of each
        tensor-parallel group."""
        return range(0, self.world_size, self.tensor_size)

    def data_rank(self, rank: int) -> int:
        """Whose rows a rank has, of `data_size`."""
        return rank // self.tensor_size


def own_parts(count: int, data_rank: int, data_size: int) -> range:
    """Of `count` numbered parts of a batch those of a data rank: as many for each, neighbours together.

    Raises ValueError when the parts cannot be dealt evenly.
    """
    if count % data_size:
        raise ValueError(f"{count} parts cannot be dealt evenly to {data_size} ranks; make a multiple of {data_size}")
    each = count // data_size
    return range(data_rank * each, (data_rank + 1) * each)
