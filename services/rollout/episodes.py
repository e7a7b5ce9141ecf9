"""Rollouts of several turns: each is an episode of an environment, with the replica's engine as its model.

An episode is a task of the event loop that waits for the engine and for its environment in turn; thousands wait beside
each other. While one waits for its environment the engine samples others. An episode stays on the replica, whose engine
keeps what its turns have in common.

What its turns sampled is journalled. One that another replica had begun is played again from its beginning: as long as
the environment answers as it did, each turn has the tokens that were sampled there, and the engine goes on behind the
last of them. One event loop uses this.
"""

import asyncio
import itertools
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial

from streamrl.config.schema.streams import TASK
from streamrl.environments.episode import Limit, Rollout
from streamrl.environments.play import EndedEpisode, Player, row_of
from streamrl.environments.processes.pool import EnvironmentPool
from streamrl.errors import ComponentError
from streamrl.scheduling.partial_rollouts import PartialChains, cut_from, turn_id, whole_completion
from streamrl.services.rollout.engine_thread import EngineThread
from streamrl.services.rollout.partial_journal import PartialJournal
from streamrl.services.rollout.rows import Ended, FinishedEpisode, Issued, finite
from streamrl.types import FinishReason, GenerationRequest, GenerationResult, PartialTokens, Version

PREFIX = "turn/"
"""Of the ids of their requests."""


@dataclass(slots=True)
class _Asked:
    """A turn that the engine samples. turn: its id in the journal, which has `told` of its tokens so far."""

    rollout: str
    turn: str
    answered: asyncio.Future[GenerationResult]
    told: int = 0


@dataclass(slots=True)
class _Earlier:
    """What an episode that was issued again may go on from. counted: whether the journal has counted it."""

    chains: PartialChains
    serving: Callable[[], Version]
    counted: bool


class EpisodeRollouts:
    """Those of one replica, by name. ended: takes what finished. ordered: told how each order to the engine went.
    failed: told why no episode can be played any more."""

    def __init__(
        self,
        name: str,
        thread: EngineThread,
        pool: EnvironmentPool,
        player: Player,
        journal: PartialJournal,
        run_seed: int,
        ended: Ended,
        ordered: "Callable[[Future[None]], None]",
        failed: Callable[[BaseException], None],
    ) -> None:
        self._name = name
        self._thread = thread
        self._pool = pool
        self._player = player
        self._journal = journal
        self._run_seed = run_seed
        self._ended = ended
        self._ordered = ordered
        self._failed = failed
        self._tasks: dict[str, tuple[Issued, asyncio.Task[None]]] = {}
        """By rollout."""
        self._unwanted: set[str] = set()
        self._asked: dict[str, _Asked] = {}
        """By the id of the engine's request."""
        self._requests: dict[str, str] = {}
        """The engine's request of each rollout that has one."""
        self._numbers = itertools.count()
        self._counts = {"episodes": 0, "turns": 0, "tool_calls": 0, "forks": 0, "faults": 0, "failed": 0}
        self._counts |= {f"limit/{limit.value}": 0 for limit in Limit}

    def __len__(self) -> int:
        return len(self._tasks)

    async def begin(self, asked: Sequence[tuple[Issued, GenerationRequest]], serving: Callable[[], Version]) -> None:
        """Play rollouts. One that runs already is begun anew."""
        for _, request in asked:
            self._drop(request.request_id)
        again = [request.request_id for issued, request in asked if issued.ticket.attempt > 0]
        chains = await self._journal.earlier(again)
        for issued, request in asked:
            earlier = _Earlier(chains, serving, counted=issued.ticket.attempt == 0)
            row = row_of(issued.payload, issued.text)
            rollout = Rollout(request, issued.text, row, self._run_seed)
            task = asyncio.create_task(self._play(issued, rollout, earlier), name=f"episode {request.request_id}")
            self._tasks[request.request_id] = issued, task

    def abort(self, groups: Iterable[int]) -> None:
        """Play these groups no further: each ends at the next answer of engine or environment."""
        unwanted = set(groups)
        names = [name for name, (issued, _) in self._tasks.items() if issued.ticket.number in unwanted]
        self._unwanted.update(names)
        self._abort_requests(names)

    def take(self, results: Sequence[GenerationResult], idle: bool) -> None:
        """Of a step of the engine."""
        for result in results:
            asked = self._asked.pop(result.request_id, None)
            if asked is None or asked.answered.done():
                continue  # nobody waits for it
            result = finite(result, self._name)
            if asked.told < len(result.token_ids) and result.finish_reason in (FinishReason.STOP, FinishReason.LENGTH):
                self._write_down(asked, cut_from(whole_completion(result, asked.turn), asked.told))
            asked.answered.set_result(result)

    def take_pieces(self, pieces: Sequence[PartialTokens]) -> None:
        """What running turns have sampled."""
        for piece in pieces:
            asked = self._asked.get(piece.request_id)
            if asked is not None and not asked.answered.done():
                self._write_down(asked, replace(piece, request_id=asked.turn))
                asked.told = piece.end

    def _write_down(self, asked: _Asked, piece: PartialTokens) -> None:
        if self._journal.every and asked.rollout in self._tasks:
            self._journal.collect([piece], {asked.rollout: self._tasks[asked.rollout][0]})

    def status(self) -> Mapping[str, int]:
        """Counts since the start."""
        return {f"environment_{name}": count for name, count in self._counts.items()}

    async def close(self) -> None:
        """End all episodes, and their environments."""
        tasks = [task for _, task in self._tasks.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._pool.close()

    async def _play(self, issued: Issued, rollout: Rollout, earlier: _Earlier) -> None:
        name = rollout.request.request_id
        try:
            episode = await self._player.play(rollout, partial(self._generate, name, issued, earlier))
        except Exception as error:  # noqa: BLE001 - nobody waits for this task: the replica must hear of it
            self._failed(error)
            return
        del self._tasks[name]
        self._unwanted.discard(name)
        record = episode.record
        self._counts["episodes"] += 1
        self._counts["forks"] += episode.forks
        self._counts["faults"] += episode.faults
        self._counts["failed"] += episode.finish_reason is FinishReason.ERROR
        self._counts["turns"] += 0 if record is None else record.turns
        self._counts["tool_calls"] += 0 if record is None else record.tool_calls
        if record is not None and record.limit:
            self._counts[f"limit/{record.limit}"] += 1
        self._ended([FinishedEpisode(issued, name, episode, time.time_ns())], 1, not self._tasks)
        self._spend(issued, episode)

    def _spend(self, issued: Issued, episode: EndedEpisode) -> None:
        """Of the budget of failures. What a client submits may be nothing that can be played, and ends nobody's
        run; an episode that was given up says nothing."""
        if self._player.budget is None or issued.stream != TASK or episode.finish_reason is FinishReason.ABORT:
            return
        failed = episode.finish_reason is FinishReason.ERROR
        try:
            self._player.budget.add((episode.error or "it says not why") if failed else "")
        except ComponentError as error:
            self._failed(error)

    async def _generate(
        self, name: str, issued: Issued, earlier: _Earlier, request: GenerationRequest
    ) -> GenerationResult:
        """`streamrl.environments.play.Generate`. name: of the rollout."""
        if name in self._unwanted:
            return self._aborted(request)
        own, turn = f"{PREFIX}{next(self._numbers)}/{request.request_id}", turn_id(name, request)
        so_far = self._journal.usable(turn, issued, earlier.chains, earlier.serving())
        self._journal.count(so_far, first=not earlier.counted)
        earlier.counted = True
        asked = self._asked[own] = _Asked(name, turn, asyncio.get_running_loop().create_future())
        self._requests[name] = own
        self._thread.submit([replace(request, request_id=own, so_far=so_far)]).add_done_callback(self._ordered)
        try:
            return await asked.answered
        finally:
            self._requests.pop(name, None)

    def _aborted(self, request: GenerationRequest) -> GenerationResult:
        ids = request.prompt_ids[:0]
        return GenerationResult(request.request_id, ids, ids.astype("f4"), (), FinishReason.ABORT)

    def _drop(self, name: str) -> None:
        """Forget an episode that is begun anew."""
        found = self._tasks.pop(name, None)
        if found is None:
            return
        self._unwanted.discard(name)
        self._abort_requests([name])
        self._journal.ended([name])
        found[1].cancel()
        self._ended([], 1, False)

    def _abort_requests(self, names: Iterable[str]) -> None:
        requests = [self._requests[name] for name in names if name in self._requests]
        if requests:
            self._thread.abort(requests).add_done_callback(self._ordered)
