"""Runs passes on a GPU: a graph is replayed for each, and the next one is on its way before the last one is read.

Guaranteed: memory is allocated when it is made, and never after. Rows that ended are told to the device before their
pages are another's. It knows rows and tokens, neither requests' ids nor versions.
"""

from collections import deque
from collections.abc import Callable, Sequence

import numpy as np
import torch
from transformers import PretrainedConfig

from streamrl.engines.torch.admission import Admission, Budget, Rest, Segment, most_length
from streamrl.engines.torch.cuda.cache import PagedCache
from streamrl.engines.torch.cuda.decoder import PagedDecoder
from streamrl.engines.torch.cuda.draw import RowState, draw
from streamrl.engines.torch.cuda.graphs import CudaGraphMaker, DirectCalls, GraphMaker
from streamrl.engines.torch.cuda.logits import LogitChanges
from streamrl.engines.torch.cuda.pages import PAGE, PageBudget, PageTable, pages_for
from streamrl.engines.torch.cuda.prompts import SIZES, PromptPass, lay_out, num_blocks
from streamrl.engines.torch.cuda.readback import Readback
from streamrl.engines.torch.families import ModelShape
from streamrl.engines.torch.logits_processors.constrained import NO_CHANGES, RowChanges
from streamrl.engines.torch.logprobs.asked import Drawn
from streamrl.engines.torch.logprobs.measured import AskingRows, Looked, ScoredSegments
from streamrl.engines.torch.slots import SlotTable
from streamrl.engines.torch.weights import FusedWeights
from streamrl.types import LongArray

SMALL_BATCHES = (1, 2, 4, 8)
BATCH_MULTIPLE = 16
REFILL_SHARE = 32
"""Requests that wait start when a 32nd of those that fit at once is free, or when all of them fit: each start costs a
pass."""


def batch_sizes(slots: int) -> list[int]:
    """Numbers of rows that there is a graph for: 1, 2, 4, 8, then multiples of 16 up to `slots` rounded up."""
    top = -(-slots // BATCH_MULTIPLE) * BATCH_MULTIPLE
    small = [size for size in SMALL_BATCHES if size < slots]
    return [*small, *range(BATCH_MULTIPLE, top + 1, BATCH_MULTIPLE)]


class GraphRunner:
    """A `Runner` on CUDA; on a CPU by direct calls, for tests. Raises ConfigError for `kv_bytes` that do not hold one
    request. weights: the set that always serves, in whose place others are copied."""

    prefill_tokens = 4 * SIZES[-1]
    sorts_rows = False
    runs_ahead = True

    def __init__(
        self,
        config: PretrainedConfig,
        shape: ModelShape,
        weights: FusedWeights,
        *,
        slots: int,
        max_length: int,
        kv_bytes: int,
        dtype: torch.dtype,
        device: torch.device,
        deterministic: bool,
    ) -> None:
        self.slots = slots
        self._device = device
        self._weights = weights
        self._last_position = max_length - 1
        self._cache = PagedCache(
            shape, slots=slots, max_length=max_length, kv_bytes=kv_bytes, dtype=dtype, device=device
        )
        self.token_bytes, self.total_bytes = self._cache.token_bytes, self._cache.total_bytes
        self._sizes = batch_sizes(slots)
        rows = self._sizes[-1]
        self._pages = PageTable(self._cache.pages, rows, self._cache.width)
        self._decoder = PagedDecoder(
            config, shape, rows=rows, max_length=max_length, dtype=dtype, device=device, invariant=deterministic
        )
        self._table = torch.zeros(rows, self._cache.width, dtype=torch.int32, device=device)
        self._state = _empty_state(rows, device)
        self._logits = torch.zeros(rows, shape.vocab_size, dtype=dtype, device=device)
        self._changes = LogitChanges(rows, max_length, shape.vocab_size, device)
        self._readback = Readback(rows, device)
        # What is read at once rounds in another way than what was sampled: exact results never use what was kept.
        self.reads_rests = not deterministic
        self._live = np.zeros(rows, dtype=np.bool_)
        self._asking: AskingRows | None = None
        self._looked: deque[Looked | None] = deque()
        self._scored: ScoredSegments | None = None
        self._rows = 0
        maker: GraphMaker = CudaGraphMaker(device) if device.type == "cuda" else DirectCalls()
        self._prompts = {size: self._empty_prompts(size) for size in SIZES}
        self._readers = {size: maker.capture(self._reader(size)) for size in reversed(SIZES)}
        self._decoders = {size: maker.capture(self._step(size)) for size in reversed(self._sizes)}

    def _empty_prompts(self, size: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        blocks = num_blocks(size, self._decoder.prompt_tokens)
        found = PromptPass(
            np.zeros(size, np.int64), np.full(size, -1), np.zeros(size, np.int64), np.zeros((blocks, 4), np.int64)
        )
        token_ids, positions, rows, of_blocks = (torch.from_numpy(part).to(self._device) for part in found)
        return token_ids, positions, rows, of_blocks

    def _reader(self, size: int) -> Callable[[], None]:
        return lambda: self._decoder.read(self._weights, self._cache, self._table, *self._prompts[size])

    def _step(self, size: int) -> Callable[[], None]:
        part = RowState(*(column[:size] for column in self._state))
        tokens, logprobs = self._readback.tokens[:size], self._readback.logprobs[:size]
        logits = self._logits[:size]

        def run() -> None:
            self._decoder.decode(self._weights, self._cache, self._table, part.token, part.position, logits)
            self._changes.run(logits)
            draw(logits, part, tokens, logprobs, self._last_position)

        return run

    @property
    def in_flight(self) -> int:
        return len(self._readback)

    def budget(self) -> Budget:
        return PageBudget(self._pages.free)

    def starts(self, free: int, waiting: int, tokens: int) -> bool:
        pages = pages_for(tokens)
        most = min(self.slots, self._pages.total // pages)
        fits = min(free, self._pages.free // pages)
        return fits > 0 and fits >= min(waiting, max(1, most // REFILL_SHARE))

    def packs(self, running: int, rows: int) -> bool:
        return running > 0 and self._batch(running) < self._batch(rows)

    def _batch(self, rows: int) -> int:
        return next(size for size in self._sizes if size >= rows)

    def move(
        self,
        table: SlotTable,
        sources: LongArray,
        targets: LongArray,
        kept: Sequence[tuple[int, int, int]] = (),
    ) -> None:
        slots, places, _ = np.array(kept, np.int64).reshape(-1, 3).T
        self._pages.move(np.concatenate((sources, slots)), np.concatenate((targets, places)))

    def keep(self, row: int, slot: int, tokens: int) -> None:
        # A pass in flight may still write behind them: before whoever has those pages next does, in the stream's order.
        self._pages.keep(row, slot, tokens)

    def forget(self, slots: Sequence[int]) -> None:
        self._pages.release(slots)

    def lacks(self, tokens: int) -> bool:
        return self._pages.free < pages_for(tokens)

    def assign(self, admission: Admission, places: LongArray) -> None:
        for members in admission.members:
            leader, *others = (int(places[member]) for member in members)
            if admission.starts[members[0]].kept is not None:
                self._pages.grow(leader, most_length(admission.requests[members[0]]))
                continue
            self._pages.reserve(leader, most_length(admission.requests[members[0]]))
            shared = (len(admission.starts[members[0]].head) - 1) // PAGE
            for row, member in zip(others, members[1:], strict=True):
                self._pages.share(row, leader, shared, most_length(admission.requests[member]))

    def prefill(self, weights: FusedWeights, segments: Sequence[Segment]) -> None:
        self._upload_table()
        self._read(segments)

    def _read(self, segments: Sequence[Segment], rests: Sequence[Rest] = ()) -> None:
        scored = [segment for segment in segments if segment.targets is not None]
        others = [segment for segment in segments if segment.targets is None]
        for laid_out in lay_out(others, self._decoder.prompt_tokens, rests):
            self._upload_prompts(laid_out)
            self._readers[len(laid_out.token_ids)]()
        if scored:
            self._scored = ScoredSegments(scored, self._read_through(scored), self._head)
        self._copy_last_pages(segments)

    def _upload_prompts(self, laid_out: PromptPass) -> None:
        for room, part in zip(self._prompts[len(laid_out.token_ids)], laid_out, strict=True):
            room.copy_(torch.from_numpy(part), non_blocking=True)

    def _read_through(self, segments: Sequence[Segment]) -> torch.Tensor:
        """The same for prompts of which log-probs are told, by no graph: what the last layer gives for their scored
        tokens, [S, E]."""
        wanted = {one.slots[0]: len(one.targets.token_ids) for one in segments if one.targets is not None}
        parts = []
        for laid_out in lay_out(segments, self._decoder.prompt_tokens):
            self._upload_prompts(laid_out)
            prompts = self._prompts[len(laid_out.token_ids)]
            hidden = self._decoder.read(self._weights, self._cache, self._table, *prompts, through=True)
            assert hidden is not None, "it was asked for"
            ends = np.array([wanted.get(row, 0) for row in laid_out.rows.tolist()])
            found = np.flatnonzero((laid_out.positions >= 0) & (laid_out.positions < ends))
            parts.append(hidden.index_select(0, torch.from_numpy(found).to(self._device)))
        return torch.cat(parts)

    def _head(self, rows_SE: torch.Tensor) -> torch.Tensor:
        return self._decoder.head(self._weights, rows_SE)

    def _copy_last_pages(self, segments: Sequence[Segment]) -> None:
        """A prompt that ends inside a page: each of its rows has its own copy of that one."""
        sources, targets = [], []
        for segment in segments:
            page, rest = divmod(len(segment.token_ids), PAGE)
            if rest:
                leader, *others = segment.slots
                sources += [int(self._pages.table[leader, page])] * len(others)
                targets += [int(self._pages.table[row, page]) for row in others]
        self._cache.copy_pages(sources, targets)

    def begin(
        self,
        weights: FusedWeights,
        table: SlotTable,
        segments: Sequence[Segment],
        rests: Sequence[Rest] = (),
        changes: RowChanges = NO_CHANGES,
    ) -> None:
        assert not self.in_flight, "a pass is in flight"
        self._upload_table()
        self._read(segments, rests)
        self._upload_rows(table)
        self._changes.bind(changes)
        self._asking = AskingRows(table, self._device)
        self.go_on(weights)

    def go_on(self, weights: FusedWeights) -> None:
        assert weights is self._weights, "the graphs read the weights that they were captured with"
        self._decoders[self._batch(self._rows)]()
        self._readback.send()
        self._looked.append(None if self._asking is None else self._asking.look(self._logits[: self._rows]))

    def collect(self, table: SlotTable) -> Drawn:
        looked, scored, self._scored = self._looked.popleft(), self._scored, None
        tokens, logprobs = self._readback.take(self._rows)
        top_logprobs = None if looked is None else looked.fetch()
        return Drawn(tokens, logprobs, top_logprobs, () if scored is None else scored.fetch())

    def drop(self, table: SlotTable) -> None:
        live = np.zeros_like(self._live)
        live[: table.num_rows] = table.taken()
        gone = np.flatnonzero(self._live & ~live)
        if len(gone):
            self._live = live
            # In the order of the stream: before any pass that another row's prompt is read by.
            self._state.position.index_fill_(0, torch.from_numpy(gone).to(self._device, non_blocking=True), -1)
            self._pages.release(gone)

    def restart(self) -> None:
        """Nothing: a pass that is begun takes what the rows hold."""

    def used_bytes(self, table: SlotTable) -> int:
        return self._pages.used * self._cache.page_bytes

    def close(self) -> None:
        self._readers.clear()
        self._decoders.clear()
        self.__dict__.pop("_cache", None)

    def _upload_table(self) -> None:
        self._table.copy_(torch.from_numpy(self._pages.table), non_blocking=True)

    def _upload_rows(self, table: SlotTable) -> None:
        self._rows, rows = table.num_rows, slice(table.num_rows)
        taken = table.taken()
        self._live[:] = False
        self._live[rows] = taken
        token_ids, positions = table.last_tokens()
        columns = RowState(
            token_ids,
            np.where(taken, positions, -1),
            table.token_index(),
            table.stream[rows].view(np.int64),
            table.temperature[rows],
            table.top_k[rows].astype(np.int32),
            table.top_p[rows],
            table.min_p[rows],
        )
        for room, column in zip(self._state, columns, strict=True):
            room[rows].copy_(torch.from_numpy(np.ascontiguousarray(column)), non_blocking=True)
        self._state.position[table.num_rows :].fill_(-1)


def _empty_state(rows: int, device: torch.device) -> RowState:
    def filled(value: float, dtype: torch.dtype) -> torch.Tensor:
        return torch.full((rows,), value, dtype=dtype, device=device)

    return RowState(
        token=filled(0, torch.int64),
        position=filled(-1, torch.int64),
        index=filled(0, torch.int64),
        stream=filled(0, torch.int64),
        temperature=filled(1, torch.float32),
        top_k=filled(0, torch.int32),
        top_p=filled(1, torch.float32),
        min_p=filled(0, torch.float32),
    )
