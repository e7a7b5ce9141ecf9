"""How a call reaches the ranks of a worker group, and what their answers make: one mode for each method, in a table.

    RANK_ZERO       the arguments to rank 0 alone        its answer
    ONE_TO_ALL      the same arguments to every rank     a list, an answer of each rank
    ALL_TO_ALL      lists, an entry for each rank        a list, an answer of each rank
    DATA_PARALLEL   columns, a value for each row        one column, in the order of the rows

Guarantees of DATA_PARALLEL: each row goes to one data rank, and to every rank that has the same rows, of which
the first alone answers for it; nothing is padded or repeated, whatever the number of rows; the column that comes back
is in the order of the rows, to the bit. A rank without rows is called too, with empty columns: the others' collectives
wait for it. Nothing is called here: who calls is given the arguments of each rank and gives the answers.

The modes are those of verl's `Dispatch`, where rows are cut into equal chunks and padded to a multiple of the ranks.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from streamrl.errors import ComponentError
from streamrl.learner.batch.row_parts import is_column, put_back, require_partition, take
from streamrl.learner.parallel.rank_mesh import RankMesh
from streamrl.types import LongArray

Arguments = tuple[Any, ...]
RowParts = Sequence[LongArray]


class Dispatch(StrEnum):
    """See the module."""

    RANK_ZERO = "rank_zero"
    ONE_TO_ALL = "one_to_all"
    ALL_TO_ALL = "all_to_all"
    DATA_PARALLEL = "data_parallel"


@dataclass(frozen=True, slots=True)
class PlannedCall:
    """A call of `method`, cut for the ranks. who: what a rank is called, before its number. arguments: by rank; a rank
    that is not there is not called. parts: of each data rank its rows; none in the other modes."""

    who: str
    method: str
    mode: Dispatch
    mesh: RankMesh
    arguments: Mapping[int, Arguments]
    parts: RowParts

    def gather(self, answers: Mapping[int, Any]) -> Any:
        """What the caller is answered, of the answer of each rank that was called.

        Raises ComponentError, with the rank's name, for an answer that is missing or of a rank that was not called, and
        for one that has not a value for each of its rows.
        """
        for rank in sorted(self.arguments.keys() ^ answers.keys()):
            what = "gave no answer" if rank in self.arguments else "was not called, and answered"
            raise ComponentError(f"{self._name(rank)} {what}")
        match self.mode:
            case Dispatch.RANK_ZERO:
                return answers[0]
            case Dispatch.ONE_TO_ALL | Dispatch.ALL_TO_ALL:
                return [answers[rank] for rank in range(self.mesh.world_size)]
            case Dispatch.DATA_PARALLEL:
                ranks = self.mesh.answering
                return put_back([answers[rank] for rank in ranks], self.parts, [self._name(rank) for rank in ranks])

    def _name(self, rank: int) -> str:
        return f"{rank_name(self.who, rank)}.{self.method}"


class DispatchTable:
    """The methods of a worker group, and the mode of each.

    Example:
        table = DispatchTable("learner", {"step": Dispatch.RANK_ZERO, "logprobs": Dispatch.DATA_PARALLEL})
        parts = split_rows(lengths_N, group_N, mesh.data_size, hidden_size)
        call = table.plan("logprobs", mesh, (rows,), parts)
        column = call.gather({rank: ask(rank, *own) for rank, own in call.arguments.items()})
    """

    def __init__(self, who: str, modes: Mapping[str, str]) -> None:
        """who: what a rank is called in errors, before its number. Raises ValueError for a mode that there is not."""
        self.who = who
        self._modes = {method: _mode(f"{who}.{method}", mode) for method, mode in modes.items()}

    def name(self, rank: int) -> str:
        """What a rank is called in errors."""
        return rank_name(self.who, rank)

    @property
    def methods(self) -> list[str]:
        return sorted(self._modes)

    def mode_of(self, method: str) -> Dispatch:
        """Raises ValueError for a method that is not in the table."""
        if method not in self._modes:
            raise ValueError(f"{self.who} has no method {method!r} in its table; it has {', '.join(self.methods)}")
        return self._modes[method]

    def plan(self, method: str, mesh: RankMesh, args: Arguments = (), parts: RowParts | None = None) -> PlannedCall:
        """What each rank of the mesh is called with.

        parts: for DATA_PARALLEL, and for it alone, the rows of each data rank, as `balance.split_rows` gives them.
        Raises ValueError for a method that is not in the table, and for arguments that its mode cannot cut.
        """
        mode = self.mode_of(method)
        if (parts is None) == (mode is Dispatch.DATA_PARALLEL):
            what = (
                "needs the parts that its rows are cut into" if parts is None else "is not cut by rows: give no parts"
            )
            raise ValueError(f"{self.who}.{method} is {mode}: it {what}")
        arguments = _CUTS[mode](f"{self.who}.{method}", mesh, args, parts or ())
        return PlannedCall(self.who, method, mode, mesh, arguments, parts or ())


def rank_name(who: str, rank: int) -> str:
    return f"{who}-{rank}"


def _mode(method: str, mode: str) -> Dispatch:
    try:
        return Dispatch(mode)
    except ValueError as error:
        raise ValueError(f"{method}: there is no mode {mode!r}; the modes are {', '.join(Dispatch)}") from error


def _to_rank_zero(method: str, mesh: RankMesh, args: Arguments, parts: RowParts) -> dict[int, Arguments]:
    return {0: args}


def _to_all(method: str, mesh: RankMesh, args: Arguments, parts: RowParts) -> dict[int, Arguments]:
    return dict.fromkeys(range(mesh.world_size), args)


def _to_each_its_own(method: str, mesh: RankMesh, args: Arguments, parts: RowParts) -> dict[int, Arguments]:
    for place, each in enumerate(args):
        _require_values(method, place, each, mesh.world_size, "rank")
    return {rank: tuple(each[rank] for each in args) for rank in range(mesh.world_size)}


def _to_data_ranks(method: str, mesh: RankMesh, args: Arguments, parts: RowParts) -> dict[int, Arguments]:
    if len(parts) != mesh.data_size:
        raise ValueError(f"{method}: {len(parts)} parts for {mesh.data_size} data ranks; cut the rows into as many")
    num_rows = sum(map(len, parts))
    require_partition(parts, num_rows)
    for place, column in enumerate(args):
        _require_values(method, place, column, num_rows, "row")
    # Ranks with the same rows get the same objects, so they cannot get other rows.
    cut = [tuple(take(column, part) for column in args) for part in parts]
    return {rank: cut[mesh.data_rank(rank)] for rank in range(mesh.world_size)}


def _require_values(method: str, place: int, values: Any, count: int, of: str) -> None:
    if not is_column(values) or len(values) != count:
        given = f"{len(values)} values" if is_column(values) else f"a {type(values).__name__}"
        raise ValueError(f"{method}: argument {place} is {given}; give a list or an array, one for each {of} ({count})")


_CUTS: Mapping[Dispatch, Callable[[str, RankMesh, Arguments, RowParts], dict[int, Arguments]]] = {
    Dispatch.RANK_ZERO: _to_rank_zero,
    Dispatch.ONE_TO_ALL: _to_all,
    Dispatch.ALL_TO_ALL: _to_each_its_own,
    Dispatch.DATA_PARALLEL: _to_data_ranks,
}
