"""What an engine knows of the requests that a server works on, and what it makes of their ends. Pure.

Guarantees: a result says for every token which version sampled it, from the server's own spans, or, where it gives
none, only for those tokens that were here before any other version could have sampled them. Versions that were never
given to the server, log-probs that are not finite and spans that do not fit are errors of the request, never numbers.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np

from streamrl.engines.server.contract import Piece
from streamrl.scheduling.partial_rollouts import cut_from, cut_spans, join_spans, unstarted
from streamrl.types import (
    FinishReason,
    FloatArray,
    GenerationRequest,
    GenerationResult,
    IntArray,
    PartialTokens,
    PromptLogprobs,
    RouteArray,
    TopLogprobs,
    Version,
    VersionSpan,
)

NO_ROUTES = (
    "the server does not say which experts its tokens went to: start it with --enable-return-routed-experts, or set "
    "learner.router_replay = false"
)
_NO_IDS: IntArray = np.empty(0, np.int32)
_NO_LOGPROBS: FloatArray = np.empty(0, np.float32)


@dataclass(slots=True, eq=False)
class Running:
    """A request that the server works on. `versions`: those that served since it was sent, the first one first.
    `heard`: when it was sent or heard of last, in seconds of a monotonic clock. `told`: tokens that `partial` gave out,
    those that it came with included. `route_size`: layers and experts of a token, of a server that names its experts.
    """

    request: GenerationRequest
    versions: list[Version]
    heard: float
    route_size: tuple[int, int] | None = None
    ids: list[IntArray] = field(default_factory=list)
    logprobs: list[FloatArray] = field(default_factory=list)
    top_logprobs: list[TopLogprobs] = field(default_factory=list)
    prompt: PromptLogprobs | None = None
    num_tokens: int = 0
    certain: int | None = None
    told: int = 0
    aborted: bool = False

    def add(self, piece: Piece) -> None:
        """Take in the next tokens."""
        self.prompt = self.prompt or piece.prompt
        if len(piece.token_ids):
            self.ids.append(piece.token_ids)
            self.logprobs.append(piece.logprobs)
            if piece.top_logprobs is not None:
                self.top_logprobs.append(piece.top_logprobs)
            self.num_tokens += len(piece.token_ids)

    def update_begins(self, version: Version) -> None:
        """What is here was sampled by the versions before; what comes from now on may be of either."""
        # Later tokens never become certain again before the end: the server may hold some of the old version back and
        # send them after those that were asked for here. Only the spans, which come with the end, tell them apart.
        if self.certain is None:
            self.certain = self.num_tokens
        self.versions.append(version)

    @property
    def known(self) -> int:
        """Tokens that it came with."""
        return 0 if self.request.so_far is None else self.request.so_far.end

    def partial(self, least: int) -> PartialTokens | None:
        """The tokens whose version is certain and that were not told yet, when there are `least` of them."""
        certain = self.num_tokens if self.certain is None else self.certain
        end = self.known + certain
        if end - self.told < max(1, least):
            return None
        whole = PartialTokens(self.request.request_id, 0, *self._tokens(certain), self._first_spans(certain))
        prompt = self.prompt if self.told <= self.known else None
        told, self.told = self.told, end
        return replace(cut_from(whole, told), top_logprobs=self._top_logprobs(told, end), prompt=prompt)

    def result(self, last: Piece) -> GenerationResult:
        """What the request ends as; `last` was added before."""
        reason = last.finish_reason
        assert reason is not None, "only the last piece ends a request"
        if reason is FinishReason.ERROR:
            return self._error(last.error or "the server does not say why")
        if not self.num_tokens:
            return unstarted(self.request, reason)
        spans, count = last.version_spans, self.num_tokens
        if not spans and self.certain is None:
            spans = (VersionSpan(0, self.versions[0]),)
        elif not spans and reason is FinishReason.ABORT:
            return self._cut(reason)
        fault = fault_of_spans(spans, count, self.versions)
        ids, logprobs = self._tokens(count)
        if not fault and not np.isfinite(logprobs).all():
            place = int(np.flatnonzero(~np.isfinite(logprobs))[0])
            fault = f"the log-prob of token {place} is {logprobs[place]}"
        if self.route_size is not None and last.routes is None and reason is not FinishReason.ABORT:
            fault = fault or NO_ROUTES
        if fault:
            return self._error(fault)
        return self._ended(ids, logprobs, self._shifted(spans), reason, last.routes)

    def _cut(self, reason: FinishReason) -> GenerationResult:
        """Only the tokens whose version is certain: of an end without spans."""
        certain = self.certain or 0
        if not certain:
            return unstarted(self.request, reason)
        ids, logprobs = self._tokens(certain)
        return self._ended(ids, logprobs, self._first_spans(certain), reason)

    def _ended(
        self,
        ids: IntArray,
        logprobs: FloatArray,
        spans: tuple[VersionSpan, ...],
        reason: FinishReason,
        routes: RouteArray | None = None,
    ) -> GenerationResult:
        """routes: as the server named them."""
        return GenerationResult(
            self.request.request_id,
            ids,
            logprobs,
            spans,
            reason,
            top_logprobs=self._top_logprobs(0, len(ids)),
            prompt=self.prompt,
            routes=self._routes(routes, len(ids)),
        )

    def _routes(self, given: RouteArray | None, count: int) -> RouteArray | None:
        """Of prompt and completion, `count` tokens; -1 where nobody knows. What gave the tokens that it came with stays
        as it was recorded then. Routes of another number of tokens are of none: whose they are cannot be said."""
        if self.route_size is None:
            return None
        prompt, so_far = len(self.request.prompt_ids), self.request.so_far
        routes = np.full((prompt + count, *self.route_size), -1, np.int16)
        if given is not None and given.shape == routes[:-1].shape:
            routes[:-1] = given
        if so_far is not None:
            routes[prompt - 1 : prompt - 1 + self.known] = -1 if so_far.routes is None else so_far.routes
        return routes

    def _top_logprobs(self, start: int, stop: int) -> TopLogprobs | None:
        """In the places of the tokens `start` to stop - 1, those that it came with among them."""
        if not self.request.top_logprobs:
            return None
        size = self.known, self.request.top_logprobs
        ids = [np.full(size, -1, np.int32), *(one.token_ids for one in self.top_logprobs)]
        logprobs = [np.full(size, -np.inf, np.float32), *(one.logprobs for one in self.top_logprobs)]
        return TopLogprobs(np.concatenate(ids)[start:stop], np.concatenate(logprobs)[start:stop])

    def _error(self, fault: str) -> GenerationResult:
        return GenerationResult(self.request.request_id, _NO_IDS, _NO_LOGPROBS, (), FinishReason.ERROR, fault)

    def _tokens(self, count: int) -> tuple[IntArray, FloatArray]:
        """The tokens that it came with and the first `count` of the sampled ones."""
        so_far = self.request.so_far
        before = ([], []) if so_far is None else ([so_far.token_ids], [so_far.logprobs])
        end = self.known + count
        ids = np.concatenate([_NO_IDS, *before[0], *self.ids])[:end]
        return ids, np.concatenate([_NO_LOGPROBS, *before[1], *self.logprobs])[:end]

    def _first_spans(self, count: int) -> tuple[VersionSpan, ...]:
        return self._shifted((VersionSpan(0, self.versions[0]),) if count else ())

    def _shifted(self, spans: Sequence[VersionSpan]) -> tuple[VersionSpan, ...]:
        """The spans of the tokens sampled here, behind those that it came with."""
        so_far = self.request.so_far
        before = () if so_far is None else cut_spans(so_far.version_spans, 0, so_far.end)
        return join_spans(before, (VersionSpan(self.known + span.start, span.version) for span in spans))


def fault_of_spans(spans: Sequence[VersionSpan], count: int, versions: Sequence[Version]) -> str:
    """Why these cannot be the versions of `count` tokens, sampled while `versions` served; "" when they can."""
    told = ", ".join(f"{span.version} from token {span.start}" for span in spans) or "none"
    back = any(later.start <= span.start or later.version < span.version for span, later in pairwise(spans))
    if not spans or spans[0].start != 0 or spans[-1].start >= count or back:
        return f"the versions that the server names ({told}) do not cover its {count} tokens in order"
    foreign = next((span.version for span in spans if span.version not in versions), None)
    if foreign is not None:
        mine = ", ".join(map(str, versions))
        return f"the server says that version {foreign} sampled it, and was only given {mine} meanwhile"
    return ""
