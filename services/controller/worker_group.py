"""The actors of a worker group, called together: what each is called with and what their answers make says the group's
table (`streamrl.learner.parallel.dispatch`).

A rank cannot go on without the others (their collectives would wait for it), so the death of one is the death of all.
What a rank raises because another one died is told from an error of its own by waiting for that death a moment. Where a
rank waited for another longer than it may, all are asked where they are, and the one that hangs is named.
"""

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any

from ray.actor import ActorHandle

from streamrl.errors import DeadlineError, ProcessDiedError
from streamrl.learner.parallel.dispatch import DispatchTable, RowParts
from streamrl.learner.parallel.late_ranks import who_is_late
from streamrl.learner.parallel.rank_mesh import RankMesh
from streamrl.services.actors.deaths import cause_of, explain_death, process_died
from streamrl.services.actors.short_call import short_call

DEATH_WAIT_S = 5.0
"""How long after the first error a rank's death may become known: the broken connection is noticed before it."""


class WorkerGroup:
    """See the module.

    Example:
        group = WorkerGroup(LEARNER_CALLS, RankMesh.of(4, tensor_size=2), handles)
        answers = await group.call("run")
    """

    def __init__(
        self,
        table: DispatchTable,
        mesh: RankMesh,
        ranks: Sequence[ActorHandle],
        death_wait_s: float = DEATH_WAIT_S,
        progress: str | None = None,
    ) -> None:
        """ranks: by their number, as many as the mesh has, else ValueError. progress: the method by which a rank says
        its `Progress`, for tables that have one."""
        if len(ranks) != mesh.world_size:
            raise ValueError(f"{len(ranks)} actors for a mesh of {mesh.world_size} ranks")
        self.ranks = tuple(ranks)
        self._table = table
        self._mesh = mesh
        self._death_wait_s = death_wait_s
        self._progress = progress

    async def call(self, method: str, *args: Any, parts: RowParts | None = None) -> Any:
        """Call a method as its mode says, and wait for all whom it calls; what the mode makes of their answers.

        parts: as `DispatchTable.plan` has them. Raises ProcessDiedError when the process of a rank died, else the first
        error of a rank: one of ours as Ray gives it, any other as a ComponentError; death and ComponentError name the
        rank. A DeadlineError says which rank the others waited for. Raises ValueError for an unknown method, and for
        arguments that its mode cannot cut, before any rank is called.
        """
        planned = self._table.plan(method, self._mesh, args, parts)
        calls = {rank: asyncio.ensure_future(self._ask(rank, method, own)) for rank, own in planned.arguments.items()}
        try:
            await asyncio.wait(calls.values(), return_when=asyncio.FIRST_EXCEPTION)
            late = ""
            if any(_error_of(call) is not None for call in calls.values()):
                late = await self._who_is_late(calls)  # at once: those that wait in a collective give up soon, too
                await asyncio.wait(calls.values(), timeout=self._death_wait_s, return_when=asyncio.ALL_COMPLETED)
            self._raise_worst(calls, late)
            return planned.gather({rank: call.result() for rank, call in calls.items()})
        finally:
            for call in calls.values():
                call.cancel()
            await asyncio.gather(*calls.values(), return_exceptions=True)

    def each(self, method: str, *args: Any) -> list[Coroutine[Any, Any, Any]]:
        """The calls one by one, for who takes each answer and each error, as Ray gives it, for itself."""
        planned = self._table.plan(method, self._mesh, args)
        return [self._ask(rank, method, own) for rank, own in planned.arguments.items()]

    async def _ask(self, rank: int, method: str, args: tuple[Any, ...]) -> Any:
        return await getattr(self.ranks[rank], method).remote(*args)

    async def _who_is_late(self, calls: "Mapping[int, asyncio.Future[Any]]") -> str:
        """As `late_ranks.who_is_late`, where a rank waited longer than it may; "" otherwise."""
        errors = (_error_of(call) for call in calls.values())
        if self._progress is None or not any(isinstance(cause_of(error), DeadlineError) for error in errors if error):
            return ""
        asked = self.each(self._progress)
        found = await asyncio.gather(*map(short_call, asked))
        return who_is_late(dict(enumerate(found)), self._table.name)

    def _raise_worst(self, calls: "Mapping[int, asyncio.Future[Any]]", late: str) -> None:
        """Raise a death before an error, since the error may be its echo. late: what a DeadlineError adds."""
        errors = {rank: error for rank, call in calls.items() if (error := _error_of(call)) is not None}
        for rank, error in errors.items():
            if process_died(error):
                raise explain_death(self._table.name(rank), error) from error
        for error in errors.values():
            if late and isinstance(cause_of(error), DeadlineError):
                raise DeadlineError(f"{cause_of(error)}; {late}") from error
        for rank, error in errors.items():
            told = explain_death(self._table.name(rank), error)
            # An error of ours says itself whose it is. The death of another part, that the rank passes on, must not
            # look like the death of a rank, which other ranks could replace.
            if told is cause_of(error) or isinstance(told, ProcessDiedError):
                raise error
            raise told from error


def _error_of(call: "asyncio.Future[Any]") -> BaseException | None:
    return call.exception() if call.done() else None
