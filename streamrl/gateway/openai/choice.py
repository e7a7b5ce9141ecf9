"""One completion on its way to a client: from a replica's news to deltas of text, ids, log-probs and versions. Pure.

Guarantees: each token is taken once and in order, whatever is told twice; when a request is made anew elsewhere before
any of it was shown, nothing of its first attempt stays.
"""

from collections.abc import Sequence
from typing import NamedTuple

from streamrl.conversations.text import TextStream
from streamrl.gateway.token_updates import TokenUpdate
from streamrl.models.tokenizer import TextTokenizer
from streamrl.types import FinishReason

Span = tuple[int, int, int]
"""(start, incarnation, step): the version that sampled the tokens from `start` on, counted from the first sampled."""


class Delta(NamedTuple):
    """What one message adds to a choice. start: the number of its first token. offsets: for each token, the length of
    the text before it. spans: those of the tokens here, the first one starting at `start`. finish_reason: "" unless it
    is the last. stop: the stop string that ended it, "" where none did."""

    text: str
    start: int
    token_ids: list[int]
    logprobs: list[float]
    offsets: list[int]
    spans: list[Span]
    finish_reason: str = ""
    stop: str = ""


class Choice:
    """One of the completions of a request.

    Example:
        choice = Choice(0, tokenizer, stops=["\\n"])
        delta = choice.take(news)
        if choice.finish_reason: ...        # "stop" or "length"; there is no more
    """

    def __init__(self, index: int, tokenizer: TextTokenizer, stops: Sequence[str]) -> None:
        self.index = index
        self._tokenizer = tokenizer
        self._stops = stops
        self.begin()

    def begin(self) -> None:
        """Begin anew, as if nothing had come."""
        self._stream = TextStream(self._tokenizer, self._stops)
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
        if news.finish_reason in (FinishReason.ERROR, FinishReason.ABORT):
            self.error = news.error or f"the replica ended it ({news.finish_reason})"
            return Delta("", self.num_tokens, [], [], [], [])
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
        return Delta(text, start, ids, logprobs, taken.offsets, spans, self.finish_reason, self._stream.stop)

    def _new_spans(self, spans: Sequence[Span], start: int) -> list[Span]:
        """Of the tokens `start` to `num_tokens` - 1."""
        ends = [*(span[0] for span in spans[1:]), self.num_tokens]
        pairs = zip(spans, ends, strict=False)
        return [(max(span[0], start), *span[1:]) for span, end in pairs if end > start and span[0] < self.num_tokens]


def pieces(news: TokenUpdate, most: int) -> list[TokenUpdate]:
    """The same, in parts of at most `most` tokens; what ends it is in the last one."""
    count = len(news.token_ids)
    if count <= most or news.finish_reason in (FinishReason.ERROR, FinishReason.ABORT):
        return [news]
    parts = []
    for first in range(0, count, most):
        ids, logprobs = news.token_ids[first : first + most], news.logprobs[first : first + most]
        last = first + most >= count
        reason = news.finish_reason if last else ""
        parts.append(TokenUpdate(news.request_id, news.start + first, ids, logprobs, news.spans, reason))
    return parts


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
    )
