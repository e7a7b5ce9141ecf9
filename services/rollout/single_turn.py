"""Rollouts that are one completion of their prompt each: the plain stream of a replica.

Rollouts that an earlier attempt had begun go on from its journal. One event loop uses this.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future

from streamrl.services.rollout.engine_thread import EngineThread
from streamrl.services.rollout.partial_journal import PartialJournal
from streamrl.services.rollout.rows import Ended, Finished, Issued, RunningRollouts, finite
from streamrl.types import GenerationRequest, GenerationResult, PartialTokens, Version


class SingleTurnRollouts:
    """Those of one replica, by name. ended: takes what finished. ordered: told how each order to the engine went."""

    def __init__(
        self,
        name: str,
        thread: EngineThread,
        journal: PartialJournal,
        ended: Ended,
        ordered: "Callable[[Future[None]], None]",
    ) -> None:
        self._name = name
        self._thread = thread
        self._journal = journal
        self._ended = ended
        self._ordered = ordered
        self._running = RunningRollouts()

    def __len__(self) -> int:
        return len(self._running)

    async def begin(self, asked: Sequence[tuple[Issued, GenerationRequest]], serving: Callable[[], Version]) -> None:
        """Have rollouts generated. serving: the version that serves."""
        older = [request.request_id for issued, request in asked if self._running.issue(request.request_id, issued)]
        if older:
            self._thread.abort(older).add_done_callback(self._ordered)
            self._journal.ended(older)
        requests = await self._journal.go_on([request for _, request in asked], self._running.issued, serving)
        self._thread.submit(requests).add_done_callback(self._ordered)

    def abort(self, groups: Iterable[int]) -> None:
        """Generate these groups no further."""
        unwanted = set(groups)
        names = [name for name, issued in self._running.issued.items() if issued.ticket.number in unwanted]
        if names:
            self._thread.abort(names).add_done_callback(self._ordered)

    def take(self, results: Sequence[GenerationResult], idle: bool) -> None:
        """Of a step of the engine. idle: it has nothing more to do."""
        now = time.time_ns()
        finished = []
        for result in results:
            issued = self._running.ended(result.request_id)
            if issued is not None:  # else of a request that was aborted: nobody waits for it
                finished.append(Finished(issued, finite(result, self._name), now))
        self._ended(finished, len(results), idle)

    def take_pieces(self, pieces: Sequence[PartialTokens]) -> None:
        """What running rollouts have sampled."""
        self._journal.collect(self._running.of_newest(pieces), self._running.issued)

    def status(self) -> Mapping[str, int]:
        """Nothing beside the journal's."""
        return {}

    async def close(self) -> None:
        """Nothing is left of it."""
