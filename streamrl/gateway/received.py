"""What the gateway was told of a completion so far: enough to have another replica go on behind it. Pure.

Guarantees: each token is kept once and in order, whatever is told twice.
"""

from array import array

import numpy as np

from streamrl.gateway.token_updates import TokenUpdate
from streamrl.scheduling.partial_rollouts import cut_spans, join_spans
from streamrl.types import PartialTokens, Version, VersionSpan


class ReceivedTokens:
    """Of one completion. Compact: an answer may have many thousands of tokens, and there are many answers.

    Example:
        heard.take(news)
        request = msgspec.structs.replace(request, so_far=heard.tokens(request.request_id))
    """

    def __init__(self) -> None:
        self._ids = array("i")
        self._logprobs = array("f")
        self._spans: tuple[VersionSpan, ...] = ()

    def __len__(self) -> int:
        return len(self._ids)

    @property
    def newest(self) -> Version | None:
        """The version that sampled the last token; None before the first."""
        return self._spans[-1].version if self._spans else None

    def take(self, news: TokenUpdate) -> int:
        """How many further tokens there are."""
        before, skipped = len(self), len(self) - news.start
        self._ids.extend(news.token_ids[skipped:])
        self._logprobs.extend(news.logprobs[skipped:])
        spans = [VersionSpan(start, Version(*version)) for start, *version in news.spans]
        self._spans = join_spans(self._spans, cut_spans(spans, before, len(self)))
        return len(self) - before

    def tokens(self, request_id: str) -> PartialTokens | None:
        """All of them; None before the first."""
        if not self._ids:
            return None
        ids, logprobs = np.array(self._ids, np.int32), np.array(self._logprobs, np.float32)
        return PartialTokens(request_id, 0, ids, logprobs, self._spans)
