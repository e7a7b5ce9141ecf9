"""Runs passes at once, by torch's own operators: each is done when it was begun. The way of every CPU.

Guaranteed: KV memory is allocated once; a number that is not finite reaches no other row.
"""

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch

from streamrl.engines.torch.admission import PREFILL_TOKENS, Admission, Budget, Rest, Segment, SlotBudget
from streamrl.engines.torch.eager.attention import round_up
from streamrl.engines.torch.eager.decoder import Outcome
from streamrl.engines.torch.eager.passes import to_device
from streamrl.engines.torch.eager.plan import Plan, plan_pass
from streamrl.engines.torch.logits_processors.constrained import NO_CHANGES, RowChanges
from streamrl.engines.torch.logprobs.asked import Drawn
from streamrl.engines.torch.logprobs.measured import AskingRows, Looked, ScoredSegments
from streamrl.engines.torch.sampling import Draws, SamplingRows, sampling_rows
from streamrl.engines.torch.slots import ReadRoutes, SlotTable
from streamrl.types import LongArray


class AnyCache(Protocol):
    """Keys and values by slot: `eager.kv.KvCache`, or `general.cache.LayeredCache`."""

    slots: int
    token_bytes: int
    total_bytes: int

    def move(self, sources: torch.Tensor, targets: torch.Tensor, length: int) -> None: ...

    def clear(self, slots: torch.Tensor) -> None: ...


class AnyDecoder(Protocol):
    """What runs a pass: `eager.decoder.Decoder`, or `general.decoder.GeneralDecoder`."""

    sorts_rows: bool
    reads_rests: bool
    short: int

    def begin(self, plan: Plan, cache: Any) -> Any: ...

    def advance(self, current: Any, token_ids: torch.Tensor) -> None: ...

    def forward(self, weights: Any, shared: Any, cache: Any) -> Outcome: ...

    def head(self, weights: Any, rows: torch.Tensor) -> torch.Tensor: ...

    def choose(
        self, logits_NV: torch.Tensor, rows: SamplingRows, uniform_N: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]: ...


class EagerRunner:
    """A `Runner` on any device."""

    prefill_tokens = PREFILL_TOKENS
    runs_ahead = False

    def __init__(self, decoder: AnyDecoder, cache: AnyCache, *, min_rows: int, device: torch.device) -> None:
        """min_rows: of a pass, so that its numbers do not depend on what shares it."""
        self._device = device
        self._decoder, self._cache = decoder, cache
        self.slots, self.token_bytes = cache.slots, cache.token_bytes
        self.total_bytes = cache.total_bytes
        self._min_rows = min_rows
        self.sorts_rows, self.reads_rests = decoder.sorts_rows, decoder.reads_rests
        # What stays as long as the same rows run.
        self._sampling: SamplingRows | None = None
        self._draws: Draws | None = None
        self._asking: AskingRows | None = None
        self._pass: Any = None
        self._chosen = torch.zeros(0, dtype=torch.long, device=device)
        self._drawn: torch.Tensor | None = None
        self._looked: Looked | None = None
        self._scored: ScoredSegments | None = None
        self._written: tuple[LongArray, LongArray, LongArray | None] | None = None
        self._read: ReadRoutes | None = None

    @property
    def in_flight(self) -> int:
        return 0 if self._drawn is None else 1

    def budget(self) -> Budget:
        return SlotBudget()

    def starts(self, free: int, waiting: int, tokens: int) -> bool:
        return free > 0 and waiting > 0

    def packs(self, running: int, rows: int) -> bool:
        return running < rows

    def move(
        self,
        table: SlotTable,
        sources: LongArray,
        targets: LongArray,
        kept: Sequence[tuple[int, int, int]] = (),
    ) -> None:
        longest = [*table.length[sources].tolist(), *(tokens for _, _, tokens in kept)]
        if longest:
            sources = np.concatenate((sources, np.array([slot for slot, _, _ in kept], np.int64)))
            targets = np.concatenate((targets, np.array([slot for _, slot, _ in kept], np.int64)))
            self._move(sources, targets, max(longest))
        self._sampling = self._draws = self._asking = self._pass = None

    def keep(self, row: int, slot: int, tokens: int) -> None:
        self._move(np.array([row]), np.array([slot]), tokens)

    def forget(self, slots: Sequence[int]) -> None:
        """Nothing: what a slot holds is written over."""

    def lacks(self, tokens: int) -> bool:
        return False

    def _move(self, sources: LongArray, targets: LongArray, tokens: int) -> None:
        self._cache.move(to_device(sources, self._device), to_device(targets, self._device), round_up(tokens))

    def assign(self, admission: Admission, places: LongArray) -> None:
        """Nothing: each row has memory of its own."""

    def prefill(self, weights: Any, segments: Sequence[Segment]) -> None:
        batch: list[Segment] = []
        tokens = 0
        for segment in segments:
            if batch and tokens + len(segment.token_ids) > self.prefill_tokens:
                self._prefill(weights, batch)
                batch, tokens = [], 0
            batch.append(segment)
            tokens += len(segment.token_ids)
        if batch:
            self._prefill(weights, batch)

    def _prefill(self, weights: Any, segments: Sequence[Segment]) -> None:
        none: LongArray = np.zeros(0, dtype=np.int64)
        plan = plan_pass(none, none, segments, (), self._min_rows, self._decoder.short)
        self._decoder.forward(weights, self._decoder.begin(plan, self._cache), self._cache)

    def begin(
        self,
        weights: Any,
        table: SlotTable,
        segments: Sequence[Segment],
        rests: Sequence[Rest] = (),
        changes: RowChanges = NO_CHANGES,
    ) -> None:
        if self._pass is None or not self._pass.decodes_only:
            plan = plan_pass(*table.last_tokens(), segments, rests, self._min_rows, self._decoder.short)
            self._pass = self._decoder.begin(plan, self._cache)
            self._written = plan.slots, plan.places, plan.source
        else:
            self._decoder.advance(self._pass, self._chosen)
            assert self._written is not None, "a pass was begun before one is advanced"
            slots, places, source = self._written
            self._written = slots, places + 1, source
        logits, scored, routes = self._decoder.forward(weights, self._pass, self._cache)
        self._read = None if routes is None else _read(self._written, routes)
        assert logits is not None, "a pass with rows gives logits"
        if scored is not None:
            self._scored = ScoredSegments(segments, scored, lambda rows: self._decoder.head(weights, rows))
        if self._sampling is None or self._draws is None or self._asking is None:
            self._sampling = sampling_rows(*table.sampling(), self._device)
            self._asking = AskingRows(table, self._device)
            self._draws = Draws(table.stream[: table.num_rows], table.token_index(), self._device)
        if changes:
            logits = changes.applied(logits)
        self._looked = self._asking.look(logits)
        self._chosen, self._drawn = self._decoder.choose(logits, self._sampling, self._draws.next())

    def go_on(self, weights: Any) -> None:
        raise NotImplementedError("a pass that is done at once has none behind it")

    def collect(self, table: SlotTable) -> Drawn:
        assert self._drawn is not None, "no pass was begun"
        chosen, logprobs = self._chosen.cpu().numpy(), self._drawn.cpu().numpy()
        self._drawn = None
        finite = np.isfinite(logprobs)
        if not finite.all():
            # A masked read of what is not finite would not be zero.
            self._cache.clear(to_device(np.flatnonzero(~finite), self._device))
        looked, self._looked, scored, self._scored = self._looked, None, self._scored, None
        top_logprobs = None if looked is None else looked.fetch()
        return Drawn(chosen, logprobs, top_logprobs, () if scored is None else scored.fetch(), self._read)

    def drop(self, table: SlotTable) -> None:
        """Nothing: a row that ended keeps its memory until another takes it."""

    def restart(self) -> None:
        self._pass = None

    def used_bytes(self, table: SlotTable) -> int:
        return table.used_tokens() * self.token_bytes

    def close(self) -> None:
        del self._cache


def _read(written: tuple[LongArray, LongArray, LongArray | None], routes: torch.Tensor) -> ReadRoutes:
    """written: slots, places and packed tokens of what a pass put into the cache, which is what it read."""
    slots, places, source = written
    found = routes.numpy().astype(np.int16)
    # Places go on with the pass, and the engine keeps what it was told.
    return ReadRoutes(slots, places.copy(), found[: len(slots)] if source is None else found[source])
