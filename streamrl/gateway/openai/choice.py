"""One completion on its way to a client: from a replica's news to deltas of text, ids, log-probs and versions. Pure.

Guarantees: each token is taken once and in order, whatever is told twice; when a request is made anew elsewhere before
any of it was shown, nothing of its first attempt stays.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from streamrl.conversations.text import TextStream
from streamrl.gateway.token_updates import TokenUpdate
from streamrl.models.tokenizer import TextTokenizer
from streamrl.types import FinishReason, PromptLogprobs, RouteArray, TopLogprobs

Span = tuple[int, int, int]
"""(start, incarnation, step): the version that sampled the tokens from `start` on, counted from the first sampled."""


class Delta(NamedTuple):
    """What one message adds to a choice. start: the number of its first token. offsets: for each token, the length of
    the text before it. spans: those of the tokens here, the first one starting at `start`. finish_reason: "" unless it
    is the last. stop: the stop string that ended it, "" where none did. top_logprobs: in the places of the tokens
    here, where they were asked for. prompt: with the first of a choice, where its log-probs were asked for. routes: of
    the prompt and all tokens of the choice, with its last, where they are told."""

    text: str
    start: int
    token_ids: list[int]
    logprobs: list[float]
    offsets: list[int]
    spans: list[Span]
    finish_reason: str = ""
    stop: str = ""
    top_logprobs: TopLogprobs | None = None
    prompt: PromptLogprobs | None = None
    routes: RouteArray | None = None


class Choice:
    """One of the completions of a request.

    Example:
        choice = Choice(0, tokenizer, stops=["\\n"])
        delta = choice.take(news)
        if choice.finish_reason: ...        # "stop" or "length"; there is no more
    """

    def __init__(
        self,
        index: int,
        tokenizer: TextTokenizer,
        stops: Sequence[str],
        completes: bool = True,
        written: frozenset[int] = frozenset(),
    ) -> None:
        """completes: whether what was sampled is shown; else the choice is its prompt alone. written: ids of special
        tokens that its text shows."""
        self.index = index
        self._written = written
        self._completes = completes
        self._tokenizer = tokenizer
        self._stops = stops
        self.begin()

    def begin(self) -> None:
        """Begin anew, as if nothing had come."""
        self._stream = TextStream(self._tokenizer, self._stops, self._written)
        self._prompt_told = False
        self.num_tokens = 0
        self.finish_reason = ""
        self.error = ""
        """What the engine says, when it could not complete it."""

    @property
    def ended(self) -> bool:
        return bool(self.finish_reason or self.error)

    @property
    def cut(self) -> bool:
        """Whether a stop string ended it while the engine goes on."""
        return self._stream.stopped

    def take(self, news: TokenUpdate) -> Delta:
        """What is new in it."""
        if self.ended:
            return Delta("", self.num_tokens, [], [], [], [])
        self.error = _fault_of(news)
        if self.error:
            return Delta("", self.num_tokens, [], [], [], [])
        prompt, self._prompt_told = None if self._prompt_told else news.prompt, True
        if not self._completes:
            self.finish_reason = FinishReason.LENGTH.value
            return Delta("", 0, [], [], [], [], self.finish_reason, prompt=prompt)
        start, skipped = self.num_tokens, self.num_tokens - news.start
        taken = self._stream.feed(news.token_ids[skipped:])
        self.num_tokens += taken.num_tokens
        text = taken.text
        if self._stream.stopped:
            self.finish_reason = FinishReason.STOP.value
        elif news.finish_reason:
            self.finish_reason = news.finish_reason
            text += self._stream.flush()
        stop = skipped + taken.num_tokens
        spans = self._new_spans(news.spans, start)
        ids, logprobs = news.token_ids[skipped:stop], news.logprobs[skipped:stop]
        top_logprobs, ended = _cut(news.top_logprobs, skipped, stop), (self.finish_reason, self._stream.stop)
        routes = None if news.routes is None else news.routes[: len(news.routes) - len(news.token_ids) + stop]
        return Delta(text, start, ids, logprobs, taken.offsets, spans, *ended, top_logprobs, prompt, routes)

    def _new_spans(self, spans: Sequence[Span], start: int) -> list[Span]:
        """Of the tokens `start` to `num_tokens` - 1."""
        ends = [*(span[0] for span in spans[1:]), self.num_tokens]
        pairs = zip(spans, ends, strict=False)
        return [(max(span[0], start), *span[1:]) for span, end in pairs if end > start and span[0] < self.num_tokens]


def pieces(news: TokenUpdate, most: int) -> list[TokenUpdate]:
    """The same, in parts of at most `most` tokens; what ends it and its routes are in the last one, the prompt in the
    first."""
    count = len(news.token_ids)
    if count <= most or news.finish_reason in (FinishReason.ERROR, FinishReason.ABORT):
        return [news]
    parts = []
    for first in range(0, count, most):
        ids, logprobs = news.token_ids[first : first + most], news.logprobs[first : first + most]
        last = first + most >= count
        reason = news.finish_reason if last else ""
        top_logprobs, prompt = _cut(news.top_logprobs, first, first + most), None if first else news.prompt
        start, routes = news.start + first, news.routes if last else None
        ended = (reason, "", top_logprobs, prompt, routes)
        parts.append(TokenUpdate(news.request_id, start, ids, logprobs, news.spans, *ended))
    return parts


def _fault_of(news: TokenUpdate) -> str:
    """Why nothing can be shown of it; "" where it can."""
    if news.finish_reason in (FinishReason.ERROR, FinishReason.ABORT):
        return news.error or f"the replica ended it ({news.finish_reason})"
    if news.prompt is not None and np.isnan(news.prompt.logprobs).any():
        return "a log-prob of the prompt is not a number"
    return ""


def _cut(told: TopLogprobs | None, start: int, stop: int) -> TopLogprobs | None:
    """In the places of some tokens alone."""
    return None if told is None else TopLogprobs(told.token_ids[start:stop], told.logprobs[start:stop])


def _joined_top(deltas: Sequence[Delta]) -> TopLogprobs | None:
    told = [delta.top_logprobs for delta in deltas if delta.top_logprobs is not None]
    if not told:
        return None
    return TopLogprobs(np.concatenate([one.token_ids for one in told]), np.concatenate([one.logprobs for one in told]))


def joined(deltas: Sequence[Delta]) -> Delta:
    """Deltas that follow one another, as one."""
    spans: list[Span] = []
    for span in (span for delta in deltas for span in delta.spans):
        if not spans or spans[-1][1:] != span[1:]:
            spans.append(span)
    return Delta(
        "".join(delta.text for delta in deltas),
        deltas[0].start if deltas else 0,
        [token_id for delta in deltas for token_id in delta.token_ids],
        [logprob for delta in deltas for logprob in delta.logprobs],
        [offset for delta in deltas for offset in delta.offsets],
        spans,
        deltas[-1].finish_reason if deltas else "",
        deltas[-1].stop if deltas else "",
        _joined_top(deltas),
        next((delta.prompt for delta in deltas if delta.prompt is not None), None),
        deltas[-1].routes if deltas else None,
    )
