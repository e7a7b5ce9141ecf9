"""Tokens of completions that have not ended: cut, joined, and judged whether generation may go on behind them. Pure.

Of a rollout of several turns each turn is a completion, named by what it was asked (`turn_id`): so nobody goes on from
tokens that stood behind another prompt.

Guaranteed: a chain holds tokens without a gap from the completion's first one on; of several attempts at a rollout the
newest counts; what `usable` gives may be continued under a ticket without breaking the bound of staleness, and without
a version that goes back. Nothing here knows of files or engines.
"""

from collections.abc import Iterable, Sequence
from itertools import pairwise

import numpy as np
import xxhash

from streamrl.types import (
    FinishReason,
    GenerationRequest,
    GenerationResult,
    PartialTokens,
    RouteArray,
    Ticket,
    Version,
    VersionSpan,
)

_NO_IDS = np.empty(0, np.int32)
_NO_LOGPROBS = np.empty(0, np.float32)


_TURN = "#"
"""Stands between a rollout's id and what a turn of it was asked."""


def turn_id(rollout: str, request: GenerationRequest) -> str:
    """What a turn of a rollout is called: the same for the same prompt under the same seed, and for no other."""
    asked = xxhash.xxh3_128(request.prompt_ids.tobytes(), seed=request.seed)
    return completion_of(rollout, asked.hexdigest())


def parts_of(completion: str) -> tuple[str, str]:
    """(rollout, turn) that a completion is of; the turn is "" where it is the whole rollout."""
    rollout, _, turn = completion.partition(_TURN)
    return rollout, turn


def completion_of(rollout: str, turn: str) -> str:
    """The inverse of `parts_of`."""
    return f"{rollout}{_TURN}{turn}" if turn else rollout


def cut_spans(spans: Sequence[VersionSpan], start: int, stop: int) -> tuple[VersionSpan, ...]:
    """The versions of the tokens `start` to `stop` - 1 of a completion, the first span starting at `start`."""
    kept = [
        VersionSpan(max(span.start, start), span.version)
        for place, span in enumerate(spans)
        if span.start < stop and (place + 1 == len(spans) or spans[place + 1].start > start)
    ]
    return tuple(kept) if start < stop else ()


def join_spans(before: Sequence[VersionSpan], after: Iterable[VersionSpan]) -> tuple[VersionSpan, ...]:
    """Spans of tokens that follow one another, a version that goes on in one span."""
    joined = list(before)
    for span in after:
        if not joined or joined[-1].version != span.version:
            joined.append(span)
    return tuple(joined)


def cut(partial: PartialTokens, stop: int) -> PartialTokens | None:
    """The piece's tokens before the completion's token `stop`; None when there are none."""
    count = min(stop, partial.end) - partial.start
    if count < 1:
        return None
    spans = cut_spans(partial.version_spans, partial.start, partial.start + count)
    ids, logprobs = partial.token_ids[:count], partial.logprobs[:count]
    routes = None if partial.routes is None else partial.routes[:count]
    return PartialTokens(partial.request_id, partial.start, ids, logprobs, spans, routes=routes)


def cut_from(partial: PartialTokens, start: int) -> PartialTokens:
    """The piece's tokens from the completion's token `start` on, of which there are some."""
    skipped = start - partial.start
    spans = cut_spans(partial.version_spans, start, partial.end)
    ids, logprobs = partial.token_ids[skipped:], partial.logprobs[skipped:]
    routes = None if partial.routes is None else partial.routes[skipped:]
    return PartialTokens(partial.request_id, start, ids, logprobs, spans, routes=routes)


def join(before: PartialTokens, piece: PartialTokens) -> PartialTokens | None:
    """`before` up to where `piece` starts, then `piece`; None when tokens between the two are missing."""
    if piece.start > before.end or piece.start < before.start:
        return None
    head = cut(before, piece.start)
    if head is None:
        return piece
    return PartialTokens(
        before.request_id,
        before.start,
        np.concatenate((head.token_ids, piece.token_ids)),
        np.concatenate((head.logprobs, piece.logprobs)),
        join_spans(head.version_spans, piece.version_spans),
        routes=_joined_routes(head, piece),
    )


def _joined_routes(head: PartialTokens, piece: PartialTokens) -> RouteArray | None:
    """Of both; -1 for the tokens of one that has none."""
    known = [one.routes for one in (head, piece) if one.routes is not None]
    if not known:
        return None
    size = known[0].shape[1:]
    return np.concatenate(
        [
            np.full((len(one.token_ids), *size), -1, np.int16) if one.routes is None else one.routes
            for one in (head, piece)
        ]
    )


def whole_completion(result: GenerationResult, completion: str) -> PartialTokens:
    """All tokens of a result, under the id of its completion."""
    routes = result.routes
    if routes is not None:
        # The token before each; the last one has none behind it.
        routes = routes[len(routes) - len(result.token_ids) - 1 : -1]
    return PartialTokens(completion, 0, result.token_ids, result.logprobs, result.version_spans, routes=routes)


class PartialChains:
    """What is known of each rollout's tokens so far, put together from pieces in the order of their writing."""

    def __init__(self) -> None:
        self._chains: dict[str, dict[int, PartialTokens]] = {}

    def add(self, attempt: int, piece: PartialTokens) -> None:
        """Take a piece in. One behind a gap is of no use and left out, and so is all that follows it."""
        attempts = self._chains.setdefault(piece.request_id, {})
        before = attempts.get(attempt)
        if piece.start == 0:
            attempts[attempt] = piece
        elif before is not None:
            attempts[attempt] = join(before, piece) or before

    def newest(self, rollout: str, before_attempt: int) -> PartialTokens | None:
        """The tokens of the newest attempt at a rollout before this one; None when there are none."""
        attempts = self._chains.get(rollout, {})
        earlier = [attempt for attempt in attempts if attempt < before_attempt]
        return attempts[max(earlier)] if earlier else None

    def drop(self, rollout: str) -> None:
        """Forget a rollout."""
        self._chains.pop(rollout, None)


def usable(
    partial: PartialTokens, ticket: Ticket, serving: Version, max_staleness: int, one_version: bool
) -> PartialTokens | None:
    """What of `partial` a replica that serves `serving` may go on from under `ticket`; None: it starts anew.

    Tokens of a version newer than that are left out, since versions never go back within a rollout. None is usable
    when the oldest would be more than `max_staleness` steps old at the ticket's last step; and where rollouts are of
    `one_version` each, only what `serving` itself sampled is.
    """
    newer = [span.start for span in partial.version_spans if span.version > serving]
    kept = cut(partial, newer[0]) if newer else partial
    if kept is None:
        return None
    if min(span.version.step for span in kept.version_spans) + max_staleness < ticket.last_step:
        return None
    if one_version and any(span.version != serving for span in kept.version_spans):
        return None
    return kept


def fault_of(so_far: PartialTokens, request: GenerationRequest, vocab_size: int) -> str:
    """Why an engine cannot go on behind these tokens; "" when it can."""
    ids, logprobs, spans = so_far.token_ids, so_far.logprobs, so_far.version_spans
    if so_far.start != 0 or not len(ids) or len(logprobs) != len(ids):
        return f"{len(ids)} tokens so far, from token {so_far.start}, with {len(logprobs)} log-probs"
    back = any(later.start <= span.start or later.version < span.version for span, later in pairwise(spans))
    if not spans or spans[0].start != 0 or spans[-1].start >= len(ids) or back:
        return f"the versions of its tokens so far, {spans}, do not cover them in order"
    if ids.min() < 0 or ids.max() >= vocab_size or not np.isfinite(logprobs).all():
        return f"its tokens so far have an id outside the vocabulary of {vocab_size}, or a log-prob that is not finite"
    if len(ids) > request.sampling.max_new_tokens or np.isin(ids[:-1], request.stop_token_ids).any():
        return f"its {len(ids)} tokens so far go on behind its end"
    if so_far.routes is not None and len(so_far.routes) != len(ids):
        return f"its {len(ids)} tokens so far have routes of {len(so_far.routes)}"
    return ""


def ended_as(request: GenerationRequest) -> FinishReason | None:
    """How a completion ended already with the tokens that its request came with; None while it goes on."""
    so_far = request.so_far
    if so_far is None:
        return None
    if int(so_far.token_ids[-1]) in request.stop_token_ids:
        return FinishReason.STOP
    return FinishReason.LENGTH if so_far.end >= request.sampling.max_new_tokens else None


def unstarted(request: GenerationRequest, reason: FinishReason, error: str = "") -> GenerationResult:
    """The result of a request that an engine samples nothing for: the tokens that it came with, unless it is an
    ERROR."""
    so_far = request.so_far
    if so_far is None or reason is FinishReason.ERROR:
        return GenerationResult(request.request_id, _NO_IDS, _NO_LOGPROBS, (), reason, error)
    spans = so_far.version_spans
    return GenerationResult(request.request_id, so_far.token_ids, so_far.logprobs, spans, reason, error)
