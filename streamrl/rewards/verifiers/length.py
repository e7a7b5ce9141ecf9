"""Rewards of a completion's length, in tokens."""


def length(completion: str, *, completion_ids: list[int], target: int, tolerance: int = 0) -> float:
    """1.0 for `target` tokens give or take `tolerance`; from there it falls by 1 for each further `target` tokens, to
    0.

    Raises ValueError for a target below 1."""
    if target < 1:
        raise ValueError(f"reward.options.length.target = {target} tokens; give 1 or more")
    off = max(0, abs(len(completion_ids) - target) - tolerance)
    return max(0.0, 1.0 - off / target)


def overlong(
    completion: str, *, completion_ids: list[int], max_tokens: int, buffer: int, penalty: float = 1.0
) -> float:
    """DAPO's soft punishment of overlong answers (Yu et al. 2025, section 3.4), to be added to another reward.

    0.0 up to `max_tokens` - `buffer` tokens, then down linearly to -`penalty` at `max_tokens`, and that beyond. Raises
    ValueError for a buffer that is not within 1 to `max_tokens`."""
    if not 1 <= buffer <= max_tokens:
        raise ValueError(f"reward.options.overlong.buffer = {buffer}: give 1 to max_tokens = {max_tokens}")
    over = len(completion_ids) - (max_tokens - buffer)
    return -penalty * min(1.0, max(0.0, over / buffer))
