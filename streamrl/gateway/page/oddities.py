"""Signs that a rollout is no sensible text, for people who look for such. Pure.

They are signs and no proof: what they are called says what was seen.
"""

from collections.abc import Sequence
from typing import Final

LEAST_TOKENS: Final = 16
"""Shorter ones repeat themselves, or are unlikely, without a reason to look."""
LONGEST_PERIOD: Final = 16
REPEATS: Final = 4
"""Times in a row, and `LEAST_TOKENS` or more in all."""
UNLIKELY_NATS: Final = 4.0
"""Mean of -log-prob: as if each token were one of 55 that are equally likely."""
BROKEN: Final = "\ufffd"


def oddities(sampled_ids: Sequence[int], completion: str, logprobs: Sequence[float]) -> list[str]:
    """sampled_ids, logprobs: of the sampled tokens. completion: their text. Returns any of `broken characters`,
    `ends in repetition`, `unlikely tokens`."""
    found = []
    if BROKEN in completion:
        found.append("broken characters")
    if _repeats(sampled_ids):
        found.append("ends in repetition")
    if len(logprobs) >= LEAST_TOKENS and -sum(logprobs) / len(logprobs) >= UNLIKELY_NATS:
        found.append("unlikely tokens")
    return found


def _repeats(ids: Sequence[int]) -> bool:
    """Whether the last tokens are the same few, again and again. The end token, which ends any text, is passed over."""
    for end in (len(ids), len(ids) - 1):
        for period in range(1, LONGEST_PERIOD + 1):
            length = max(LEAST_TOKENS, REPEATS * period)
            if end >= length and all(ids[place] == ids[place - period] for place in range(end - length + period, end)):
                return True
    return False
