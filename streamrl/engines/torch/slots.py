"""The books of the running requests: one row for each slot, in numpy, on the host.

Guaranteed: rows 0..num_rows-1 hold the running requests and the holes that ended ones left; a move carries a row's
whole state. There is no Python per token: `append` works on all rows at once, and only rows that end, or that
take a new version, are touched one by one. Tokens that a request came with are kept as they are, log-probs and versions
too, whatever is drawn in their places. The table knows no tensors and computes no probabilities.
"""

from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from streamrl.engines.torch.sampling import mix
from streamrl.scheduling.partial_rollouts import cut_spans, join_spans
from streamrl.types import (
    FinishReason,
    FloatArray,
    GenerationRequest,
    GenerationResult,
    IntArray,
    LongArray,
    PartialTokens,
    RouteArray,
    Version,
    VersionSpan,
)

NO_STOP = -1
"""Fills the stop columns of a row with fewer stop tokens than another; no token has this id."""


class ReadRoutes(NamedTuple):
    """Experts that tokens went to as a pass read them. slots, places: int64 [W], of which row, and where in it. routes:
    int16 [W, layers, K]."""

    slots: LongArray
    places: LongArray
    routes: RouteArray


class SlotTable:
    """State of `slots` rows of at most `max_length` tokens.

    token_ids int64 and logprobs float32 [slots, max_length], prompt first; length: tokens so far, those that are known
    and still to be read not counted; start: tokens of the prompt; opening: of these, those of the first request of the
    conversation; known: the length up to which tokens came with the request; told: the length up to which `partials`
    told them; limit: the length at which the row ends; top_logprobs: of the likeliest tokens so many are told;
    adjusts: whether its request changes logits. Slots without a request hold leftovers.

    routes: layers and experts of a token, where they are recorded.
    """

    def __init__(self, slots: int, max_length: int, routes: tuple[int, int] | None = None) -> None:
        self.num_rows = 0
        self.token_ids = np.zeros((slots, max_length), dtype=np.int64)
        self.logprobs = np.zeros((slots, max_length), dtype=np.float32)
        self.length, self.start, self.limit, self.top_k = (np.zeros(slots, dtype=np.int64) for _ in range(4))
        self.known, self.told, self.opening, self.top_logprobs = (np.zeros(slots, dtype=np.int64) for _ in range(4))
        self.temperature, self.top_p, self.min_p = (np.ones(slots, dtype=np.float32) for _ in range(3))
        self.stream = np.zeros(slots, dtype=np.uint64)
        self.adjusts = np.zeros(slots, dtype=np.bool_)
        self._stop = np.full((slots, 1), NO_STOP, dtype=np.int64)
        self._requests: list[GenerationRequest | None] = [None] * slots
        self._spans: list[list[VersionSpan]] = [[] for _ in range(slots)]
        self._conversations = [""] * slots
        self._holes: list[int] = []
        self._taken: npt.NDArray[np.bool_] | None = None
        self._rows = np.arange(slots)
        self._routes = None if routes is None else np.full((slots, max_length, *routes), -1, dtype=np.int16)

    @property
    def slots(self) -> int:
        return len(self._requests)

    def last_tokens(self) -> tuple[LongArray, LongArray]:
        """Ids and positions, int64 [num_rows] each, of the token that each row reads next."""
        position = self.length[: self.num_rows] - 1
        return self.token_ids[np.arange(self.num_rows), position], position

    def token_index(self) -> LongArray:
        """int64 [num_rows], which of its tokens, from 0, each row takes next."""
        return self.length[: self.num_rows] - self.start[: self.num_rows]

    def assign(
        self, index: LongArray, requests: Sequence[GenerationRequest], lengths: LongArray, version: Version
    ) -> None:
        """Put requests into free slots, as `arrange` placed them: afterwards no slot before the last is free.

        lengths: int64, tokens of each that are read at once; what else is known of it is read token by token.
        """
        sizes = np.array([len(request.prompt_ids) for request in requests])
        block = np.zeros((len(requests), int(sizes.max())), dtype=np.int64)
        block[np.arange(block.shape[1]) < sizes[:, None]] = np.concatenate([r.prompt_ids for r in requests])
        self.token_ids[index, : block.shape[1]] = block
        self.start[index] = self.told[index] = self.known[index] = sizes
        self.opening[index] = [request.opening or len(request.prompt_ids) for request in requests]
        self.length[index] = lengths
        self.top_logprobs[index] = [request.top_logprobs for request in requests]
        self.adjusts[index] = [request.adjustments is not None for request in requests]
        sampling = [request.sampling for request in requests]
        self.limit[index] = sizes + [s.max_new_tokens for s in sampling]
        self.temperature[index] = [s.temperature for s in sampling]
        self.top_k[index] = [s.top_k for s in sampling]
        self.top_p[index] = [s.top_p for s in sampling]
        self.min_p[index] = [s.min_p for s in sampling]
        if self._routes is not None:
            self._routes[index] = -1
        self.stream[index] = mix(np.array([request.seed for request in requests], dtype=np.uint64))
        self._assign_stops(index, requests)
        for row, request in zip(index.tolist(), requests, strict=True):
            self._requests[row], self._conversations[row] = request, request.conversation
            self._spans[row] = [VersionSpan(0, version)]
            if request.so_far is not None:
                self._go_on(row, request.so_far)
        self._holes = [row for row in self._holes if self._requests[row] is None]
        self._taken = None
        self.num_rows = max(self.num_rows, int(index.max()) + 1)

    def _go_on(self, row: int, so_far: PartialTokens) -> None:
        """Put the tokens that a request came with behind its prompt; what serves now samples what is to come."""
        first = int(self.start[row])
        last = first + so_far.end
        self.token_ids[row, first:last] = so_far.token_ids
        self.logprobs[row, first:last] = so_far.logprobs
        self.known[row] = last
        if self._routes is not None and so_far.routes is not None:
            self._routes[row, first - 1 : last - 1] = so_far.routes
        serving = self._spans[row][-1].version
        self._spans[row] = list(join_spans(so_far.version_spans, [VersionSpan(so_far.end, serving)]))

    def _assign_stops(self, index: LongArray, requests: Sequence[GenerationRequest]) -> None:
        width = max(len(request.stop_token_ids) for request in requests)
        if width > self._stop.shape[1]:
            extra = np.full((self.slots, width - self._stop.shape[1]), NO_STOP, dtype=np.int64)
            self._stop = np.concatenate((self._stop, extra), axis=1)
        self._stop[index] = NO_STOP
        for column in range(width):
            self._stop[index, column] = [
                r.stop_token_ids[column] if column < len(r.stop_token_ids) else NO_STOP for r in requests
            ]

    def note_routes(self, read: ReadRoutes | None) -> None:
        """Where a pass sent what it read, before its tokens are appended. What gave a token that came with a
        request stays as it was recorded then, if it was."""
        if self._routes is None or read is None:
            return
        slots, places = read.slots, read.places
        own = (places < self.start[slots] - 1) | (places >= self.known[slots] - 1)
        self._routes[slots[own], places[own]] = read.routes[own]

    def append(self, token_ids: LongArray, logprobs: FloatArray) -> list[GenerationResult]:
        """Add one sampled token (int64, float32 [num_rows]) to each running row, in whose place one that is known
        stays. Returns the results of the rows that end with it and frees those rows; a row whose log-prob is not finite
        ends as ERROR without that token."""
        rows = self._rows[: self.num_rows]
        at: slice | LongArray = slice(self.num_rows)
        if self._holes:
            rows = at = np.flatnonzero(self.taken())
            token_ids, logprobs = token_ids[rows], logprobs[rows]
        place = self.length[at]
        finite = np.isfinite(logprobs)
        known = place < self.known[at]
        if known.any():
            token_ids = np.where(known, self.token_ids[rows, place], token_ids)
            logprobs = np.where(known, self.logprobs[rows, place], logprobs)
        self.token_ids[rows, place] = token_ids
        self.logprobs[rows, place] = logprobs
        # A prompt may have the stop tokens of its earlier turns.
        stopped = (token_ids[:, None] == self._stop[at]).any(axis=1) & (place >= self.start[at])
        self.length[at] = place = place + 1
        ended = np.flatnonzero(stopped | ~finite | (place >= self.limit[at]))
        if not len(ended):
            return []
        reasons = [FinishReason.STOP if stop else FinishReason.LENGTH for stop in stopped[ended].tolist()]
        errors = [""] * len(ended)
        for place_ended in np.flatnonzero(~finite[ended]).tolist():
            reasons[place_ended] = FinishReason.ERROR
            errors[place_ended] = self._drop_last(int(rows[ended[place_ended]]))
        return self.take(rows[ended].tolist(), reasons, errors)

    def reading(self) -> npt.NDArray[np.bool_]:
        """bool [num_rows]: which rows take a token next that is known already."""
        return np.asarray(self.length[: self.num_rows] < self.known[: self.num_rows])

    def outlasts(self) -> bool:
        """Whether some running row goes on after its next token, unless that is a stop token."""
        lasts = self.length[: self.num_rows] + 1 < self.limit[: self.num_rows]
        return bool((lasts & self.taken()).any())

    def _drop_last(self, row: int) -> str:
        """Take back a token whose log-prob is not finite. Returns what to say of it."""
        self.length[row] -= 1
        count, version = self.length[row] - self.start[row], self._spans[row][-1].version
        return f"non-finite log-prob at token {count}, version {version}"

    def take(
        self, rows: Sequence[int], reasons: Sequence[FinishReason], errors: Sequence[str]
    ) -> list[GenerationResult]:
        """Results of running rows, whose slots are free afterwards."""
        index = np.asarray(rows)
        ends = np.maximum(self.length[index], self.known[index])
        first, last = int(self.start[index].min()), int(ends.max())
        token_ids = self.token_ids[index, first:last].astype(np.int32)
        logprobs = self.logprobs[index, first:last]
        starts, counts = self.start[index] - first, ends - self.start[index]
        bounds = zip(starts.tolist(), counts.tolist(), strict=True)
        self._holes += rows
        self._taken = None
        return [
            self._result(row, token_ids[i, a : a + n], logprobs[i, a : a + n], reasons[i], errors[i])
            for i, (row, (a, n)) in enumerate(zip(rows, bounds, strict=True))
        ]

    def _result(
        self, row: int, token_ids: IntArray, logprobs: FloatArray, reason: FinishReason, error: str
    ) -> GenerationResult:
        request, spans = self._requests[row], self._spans[row]
        assert request is not None, f"slot {row} has no request"
        self._requests[row] = None
        if spans[-1].start >= len(token_ids):
            # A version that began after the last token sampled nothing.
            spans = [span for span in spans if span.start < len(token_ids)]
        routes = None
        if self._routes is not None:
            routes = self._routes[row, : int(self.start[row]) + len(token_ids)].copy()
        return GenerationResult(request.request_id, token_ids, logprobs, tuple(spans), reason, error, routes=routes)

    def partials(self, least: int, among: Collection[str] | None = None) -> list[PartialTokens]:
        """What each running row, or each of the requests `among` them, got since it was last told, where that is
        `least` tokens or more."""
        ends = np.maximum(self.length[: self.num_rows], self.known[: self.num_rows])
        due = np.flatnonzero(self.taken() & (ends - self.told[: self.num_rows] >= max(1, least)))
        if among is not None:
            due = due[np.isin(due, self.find(set(among)))]
        pieces = [self._partial(row, int(self.told[row]), int(ends[row])) for row in due.tolist()]
        self.told[due] = ends[due]
        return pieces

    def _partial(self, row: int, first: int, last: int) -> PartialTokens:
        request, start = self._requests[row], int(self.start[row])
        assert request is not None, f"slot {row} has no request"
        routes = None if self._routes is None else self._routes[row, first - 1 : last - 1].copy()
        return PartialTokens(
            request.request_id,
            first - start,
            self.token_ids[row, first:last].astype(np.int32),
            self.logprobs[row, first:last].copy(),
            cut_spans(self._spans[row], first - start, last - start),
            routes=routes,
        )

    def left_by(self, row: int) -> tuple[str, LongArray, int]:
        """(conversation, ids in the cache, opening) of a row, also of one whose request has just ended: its last token
        was never read."""
        return self._conversations[row], self.token_ids[row, : self.length[row] - 1].copy(), int(self.opening[row])

    def request_ids(self) -> dict[int, str]:
        """Of the running rows."""
        rows = enumerate(self._requests[: self.num_rows])
        return {row: request.request_id for row, request in rows if request is not None}

    def sampling(self) -> tuple[FloatArray, LongArray, FloatArray, FloatArray]:
        """Temperature, top-k, top-p and min-p, [num_rows] each."""
        rows = slice(self.num_rows)
        return self.temperature[rows], self.top_k[rows], self.top_p[rows], self.min_p[rows]

    def asking(self) -> LongArray:
        """int64 [num_rows]: of the likeliest tokens, how many each row is told."""
        return np.where(self.taken(), self.top_logprobs[: self.num_rows], 0)

    def adjusted(self) -> list[tuple[int, GenerationRequest, LongArray, LongArray]]:
        """Of running rows whose requests change logits: row, request, ids of the prompt, and of what came so far."""
        found: list[tuple[int, GenerationRequest, LongArray, LongArray]] = []
        if not self.adjusts[: self.num_rows].any():
            return found
        for row in np.flatnonzero(self.adjusts[: self.num_rows] & self.taken()).tolist():
            request, start, end = self._requests[row], int(self.start[row]), int(self.length[row])
            assert request is not None, f"slot {row} has no request"
            found.append((row, request, self.token_ids[row, :start], self.token_ids[row, start:end]))
        return found

    def find(self, request_ids: set[str]) -> list[int]:
        """Rows of the running requests among `request_ids`, in order."""
        running = enumerate(self._requests[: self.num_rows])
        return [row for row, request in running if request is not None and request.request_id in request_ids]

    @property
    def running(self) -> int:
        return self.num_rows - len(self._holes)

    def running_rows(self) -> list[int]:
        return [row for row in range(self.num_rows) if self._requests[row] is not None]

    def used_tokens(self) -> int:
        """Tokens of all running requests, prompts included."""
        return int(self.length[: self.num_rows].sum() - self.length[self._holes].sum())

    def taken(self) -> npt.NDArray[np.bool_]:
        """bool [num_rows]: which rows hold a request. Not to be written to."""
        if self._taken is None:
            self._taken = np.ones(self.num_rows, dtype=np.bool_)
            self._taken[self._holes] = False
        return self._taken

    def move(self, sources: LongArray, targets: LongArray) -> None:
        """Move rows, all at once, with their whole state. Afterwards the rows end at the last request."""
        for column in self._columns():
            column[targets] = column[sources]
        moved = [(self._requests[row], self._spans[row], self._conversations[row]) for row in sources.tolist()]
        for row in sources.tolist():
            self._requests[row] = None
        for row, (request, spans, conversation) in zip(targets.tolist(), moved, strict=True):
            self._requests[row], self._spans[row], self._conversations[row] = request, spans, conversation
        taken = [row for row, request in enumerate(self._requests) if request is not None]
        self.num_rows = taken[-1] + 1 if taken else 0
        self._holes = sorted(set(range(self.num_rows)) - set(taken))
        self._taken = None

    def _columns(self) -> Iterable[npt.NDArray[np.generic]]:
        return (
            *(self.token_ids, self.logprobs, self.length, self.start, self.known, self.told, self.opening),
            *(self.limit, self.top_logprobs, self.adjusts, self._stop),
            *(self.temperature, self.top_k, self.top_p, self.min_p, self.stream),
            *(() if self._routes is None else (self._routes,)),
        )

    def begin_version(self, version: Version) -> None:
        """From here on `version` samples: note it in every running row, at the exact token."""
        ends = np.maximum(self.length[: self.num_rows], self.known[: self.num_rows])
        counts = (ends - self.start[: self.num_rows]).tolist()
        for row in self.running_rows():
            count, spans = counts[row], self._spans[row]
            if spans[-1].start == count:
                spans.pop()
            spans.append(VersionSpan(count, version))
