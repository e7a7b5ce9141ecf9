"""A replica's journal of what its running rollouts have sampled, and how it goes on where another replica's ended.

What is written down are completions: a rollout's own, or those of its turns, each under an id of its own.

Guaranteed: pieces are written in the order in which they were sampled, by one loop, and never hold up generation: what
comes while the disk is slow or full waits in memory, where only running rollouts have anything. What is read of a
replica that died never ends this one: without it a rollout begins anew, and the log says why. Only journals of the same
node are looked at. What may be continued is decided by `streamrl.scheduling.partial_rollouts`.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from streamrl.buffers.rows.partial_rows import Piece
from streamrl.buffers.segments.partial_log import EarlierJournals, PartialFiles, PartialLog, read_partials
from streamrl.buffers.segments.places import PARTIALS_DIR, on_node
from streamrl.config import Config
from streamrl.scheduling.partial_rollouts import PartialChains, parts_of, usable
from streamrl.services.rollout.rows import Issued
from streamrl.types import GenerationRequest, PartialTokens, UpdateMode, Version

Durably = Callable[[str, Awaitable[Any]], Awaitable[Any]]
"""Awaits something, by name, that ends on a disk."""


class JournalFigures(msgspec.Struct):
    """Tokens written by this process. Rollouts that were issued again to it: how many went on, from how many tokens in
    all, and how many began anew."""

    tokens_journalled: int = 0
    rollouts_continued: int = 0
    tokens_continued: int = 0
    rollouts_begun_anew: int = 0


class PartialJournal:
    """See the module. node: the replica's. durably: how it waits. tell: takes what is wrong with a journal."""

    def __init__(
        self,
        run_folder: Path,
        config: Config,
        replica: str,
        epoch: int,
        node: str,
        durably: Durably,
        tell: Callable[[str], None],
    ) -> None:
        self.every = config.rollout.journal_every_tokens if config.journals_partials else 0
        self.figures = JournalFigures()
        self._max_staleness = config.learner.max_staleness
        drains = UpdateMode(config.rollout.update_mode) is UpdateMode.DRAIN
        self._one_version = config.learner.max_staleness == 0 or drains
        self._run_folder, self._folder = run_folder, on_node(node, PARTIALS_DIR)
        self._replica, self._epoch = replica, epoch
        self._durably, self._tell = durably, tell
        queue = config.queue
        interval_s = queue.commit_interval_ms / 1e3
        place = run_folder, self._folder, replica, epoch
        rest = queue.segment_bytes, queue.durability, interval_s
        self._log = PartialLog(*place, *rest, routed=config.learner.router_replay)
        self._files = PartialFiles()
        self._chains = PartialChains()
        self._attempts: dict[str, int] = {}
        """Of the completions of running rollouts of which there is anything."""
        self._completions: dict[str, set[str]] = {}
        """Of each running rollout of which there is anything."""
        self._pending: list[Piece] = []
        self._wake = asyncio.Event()
        self._earlier: EarlierJournals | None = None

    @property
    def pause(self) -> str:
        """What a full disk keeps it waiting for, in words; "" while it does not wait."""
        return self._log.pause

    def collect(self, pieces: Sequence[PartialTokens], issued: Mapping[str, Issued]) -> None:
        """Take what running rollouts have sampled. issued: the rollouts that somebody waits for."""
        for tokens in pieces:
            rollout, _ = parts_of(tokens.request_id)
            if rollout in issued:
                attempt = self._attempts[tokens.request_id] = issued[rollout].ticket.attempt
                self._completions.setdefault(rollout, set()).add(tokens.request_id)
                self._chains.add(attempt, tokens)
                self._pending.append(Piece(attempt, tokens))
        self._wake.set()

    def ended(self, rollouts: Sequence[str]) -> None:
        """These rollouts are accepted: nothing of them is needed any more."""
        gone = [completion for rollout in rollouts for completion in self._completions.pop(rollout, ())]
        for completion in gone:
            del self._attempts[completion]
            self._chains.drop(completion)
        self._files.ended(gone)

    async def run(self) -> None:
        """Write what was collected, for ever."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            await self.turn()

    async def turn(self) -> None:
        """Write what was collected so far, and remove what is not needed any more."""
        await self._write(self._take_pending())
        await self._write(self._whole(self._files.crowding()))
        await asyncio.to_thread(self._log.remove, self._files.take_free())

    def close(self) -> None:
        """Write the rest, end the file, and leave only what is needed."""
        rest = self._take_pending()
        if rest:
            self._log.append(rest)
        self._log.close()
        if not rest:
            self._log.remove(self._files.take_free(closed=True))

    async def go_on(
        self, requests: list[GenerationRequest], issued: Mapping[str, Issued], serving: Callable[[], Version]
    ) -> list[GenerationRequest]:
        """The requests, those that another process had begun with the tokens that they may go on from. serving: what
        the replica serves; asked last, since reading the journals takes a while."""
        again = {one.request_id for one in requests if issued[one.request_id].ticket.attempt > 0}
        if not again or not self.every:
            return requests
        chains, now = await self.earlier(again), serving()
        return [
            self._with_tokens(one, issued[one.request_id], chains, now) if one.request_id in again else one
            for one in requests
        ]

    async def earlier(self, rollouts: Collection[str]) -> PartialChains:
        """What other processes wrote down of these rollouts; nothing where there is no journal."""
        chains = PartialChains()
        if rollouts and self.every:
            own = f"{self._replica}-{self._epoch}"
            found = await asyncio.to_thread(read_partials, self._run_folder, self._folder, rollouts, self._tell, own)
            for piece in found:
                chains.add(piece.attempt, piece.tokens)
        return chains

    def usable(self, completion: str, issued: Issued, chains: PartialChains, serving: Version) -> PartialTokens | None:
        """What a rollout that was issued again may go on from in one of its completions; None: that starts anew."""
        found = chains.newest(completion, issued.ticket.attempt)
        return None if found is None else usable(found, issued.ticket, serving, self._max_staleness, self._one_version)

    def count(self, so_far: PartialTokens | None, *, first: bool) -> None:
        """Count what a completion goes on from. first: it is the first one of a rollout that was issued again."""
        self.figures.rollouts_begun_anew += first and so_far is None
        self.figures.rollouts_continued += first and so_far is not None
        self.figures.tokens_continued += 0 if so_far is None else len(so_far.token_ids)

    async def serves(self, version: Version) -> None:
        """The replica serves `version`: journals of its predecessors that are too old to go on from are removed."""
        if self.every:
            await asyncio.to_thread(self._remove_earlier, version.step - self._max_staleness)

    def _remove_earlier(self, oldest_step: int) -> None:
        if self._earlier is None:
            self._earlier = EarlierJournals(self._run_folder, self._folder, self._replica, self._epoch, self._tell)
        self._earlier.remove_before(oldest_step)

    def _with_tokens(
        self, request: GenerationRequest, issued: Issued, chains: PartialChains, serving: Version
    ) -> GenerationRequest:
        so_far = self.usable(request.request_id, issued, chains, serving)
        self.count(so_far, first=True)
        return replace(request, so_far=so_far)

    def _take_pending(self) -> list[Piece]:
        pending, self._pending = self._pending, []
        return [piece for piece in pending if piece.tokens.request_id in self._attempts]

    def _whole(self, rollouts: set[str]) -> list[Piece]:
        """All that is known of these rollouts, to be written anew."""
        attempts = {rollout: self._attempts[rollout] for rollout in sorted(rollouts)}
        chains = {rollout: self._chains.newest(rollout, attempt + 1) for rollout, attempt in attempts.items()}
        return [Piece(attempts[rollout], chain) for rollout, chain in chains.items() if chain is not None]

    async def _write(self, pieces: Sequence[Piece]) -> None:
        if not pieces:
            return
        for frame, future in await asyncio.to_thread(self._log.append, pieces):
            written = await self._durably("the write of the journal", asyncio.wrap_future(future))
            # Some may have ended meanwhile.
            there = [piece.tokens for piece in frame if piece.tokens.request_id in self._attempts]
            anew = [tokens.request_id for tokens in there if tokens.start == 0]
            self._files.wrote(written.path, [tokens.request_id for tokens in there], anew)
            self.figures.tokens_journalled += sum(len(piece.tokens.token_ids) for piece in frame)
