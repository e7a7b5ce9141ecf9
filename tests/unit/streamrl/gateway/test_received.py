"""What was heard of a completion: each token once, whatever is told twice, and the versions that sampled them."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from streamrl.gateway.received import ReceivedTokens
from streamrl.gateway.token_updates import TokenUpdate
from streamrl.types import PartialTokens, Version, VersionSpan

IDS = list(range(100, 140))
SPANS = [(0, 0, 1), (10, 0, 2), (25, 1, 3)]


def news(start: int, stop: int) -> TokenUpdate:
    """Tokens `start` to `stop` - 1, with the versions that sampled them, as a replica tells of them."""
    spans = [(max(first, start), *version) for (first, *version), end in zip(SPANS, (10, 25, 40), strict=True)]
    inside = [span for span, end in zip(spans, (10, 25, 40), strict=True) if span[0] < stop and end > start]
    return TokenUpdate("r", start, IDS[start:stop], [-one / 8 for one in IDS[start:stop]], inside)


@given(cuts=st.lists(st.tuples(st.integers(0, 39), st.integers(0, 12)), max_size=12))
def test_tokens_are_kept_once_and_in_order_whatever_is_told_again(cuts: list[tuple[int, int]]) -> None:
    heard, known = ReceivedTokens(), 0
    for start, more in cuts:
        first = min(start, known)
        stop = min(40, max(first, known + more))
        assert heard.take(news(first, stop)) == max(0, stop - known)
        known = max(known, stop)
    whole = heard.tokens("r")
    assert len(heard) == known
    if not known:
        assert (whole, heard.newest) == (None, None)
        return
    assert isinstance(whole, PartialTokens)
    assert whole.token_ids.tolist() == IDS[:known]
    assert whole.logprobs.tolist() == [-one / 8 for one in IDS[:known]]
    assert (whole.token_ids.dtype, whole.logprobs.dtype) == (np.int32, np.float32)
    wanted = tuple(VersionSpan(start, Version(*version)) for start, *version in SPANS if start < known)
    assert whole.version_spans == wanted
    assert heard.newest == wanted[-1].version
