"""Runs passes at once, by torch's own operators: each is done when it was begun. The way of every CPU.

Guaranteed: KV memory is allocated once; a number that is not finite reaches no other row.
"""

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch

from streamrl.engines.torch.admission import PREFILL_TOKENS, Admission, Budget, Rest, Segment, SlotBudget
from streamrl.engines.torch.eager.attention import round_up
from streamrl.engines.torch.eager.passes import to_device
from streamrl.engines.torch.eager.plan import Plan, plan_pass
from streamrl.engines.torch.sampling import PLAIN, Draws, SamplingRows, Truncation
from streamrl.engines.torch.slots import SlotTable
from streamrl.types import FloatArray, LongArray


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

    def begin(self, plan: Plan, cache: Any) -> Any: ...

    def advance(self, current: Any, token_ids: torch.Tensor) -> None: ...

    def forward(self, weights: Any, shared: Any, cache: Any) -> torch.Tensor | None: ...

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
        self._pass: Any = None
        self._chosen = torch.zeros(0, dtype=torch.long, device=device)
        self._drawn: torch.Tensor | None = None

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
        self._sampling = self._draws = self._pass = None

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
        plan = plan_pass(none, none, segments, (), self._min_rows)
        self._decoder.forward(weights, self._decoder.begin(plan, self._cache), self._cache)

    def begin(self, weights: Any, table: SlotTable, segments: Sequence[Segment], rests: Sequence[Rest] = ()) -> None:
        if self._pass is None or not self._pass.decodes_only:
            plan = plan_pass(*table.last_tokens(), segments, rests, self._min_rows)
            self._pass = self._decoder.begin(plan, self._cache)
        else:
            self._decoder.advance(self._pass, self._chosen)
        logits = self._decoder.forward(weights, self._pass, self._cache)
        assert logits is not None, "a pass with rows gives logits"
        if self._sampling is None or self._draws is None:
            self._sampling = _sampling_rows(table, self._device)
            self._draws = Draws(table.stream[: table.num_rows], table.token_index(), self._device)
        self._chosen, self._drawn = self._decoder.choose(logits, self._sampling, self._draws.next())

    def go_on(self, weights: Any) -> None:
        raise NotImplementedError("a pass that is done at once has none behind it")

    def collect(self, table: SlotTable) -> tuple[LongArray, FloatArray]:
        assert self._drawn is not None, "no pass was begun"
        chosen, logprobs = self._chosen.cpu().numpy(), self._drawn.cpu().numpy()
        self._drawn = None
        broken = np.flatnonzero(~np.isfinite(logprobs))
        if broken.size:
            # A masked read of what is not finite would not be zero.
            self._cache.clear(to_device(broken, self._device))
        return chosen, logprobs

    def drop(self, table: SlotTable) -> None:
        """Nothing: a row that ended keeps its memory until another takes it."""

    def restart(self) -> None:
        self._pass = None

    def used_bytes(self, table: SlotTable) -> int:
        return table.used_tokens() * self.token_bytes

    def close(self) -> None:
        del self._cache


def _sampling_rows(table: SlotTable, device: torch.device) -> SamplingRows:
    rows = slice(table.num_rows)
    if table.plain[rows].all():
        return PLAIN
    temperature, top_k = table.temperature[rows], table.top_k[rows]
    top_p, min_p = table.top_p[rows], table.min_p[rows]
    greedy = temperature == 0
    cut = np.flatnonzero(~greedy & ((top_k > 0) | (top_p < 1) | (min_p > 0)))
    divisor = np.where(greedy, np.float32(1), temperature)
    return SamplingRows(
        temperature=to_device(divisor, device) if (divisor != 1).any() else None,
        greedy=to_device(greedy, device) if greedy.any() else None,
        all_greedy=bool(greedy.all()),
        truncation=Truncation(
            rows=to_device(cut, device),
            top_k=to_device(top_k[cut], device) if top_k[cut].any() else None,
            top_p=to_device(top_p[cut], device) if (top_p[cut] < 1).any() else None,
            min_p=to_device(min_p[cut], device) if min_p[cut].any() else None,
        )
        if cut.size
        else None,
    )
