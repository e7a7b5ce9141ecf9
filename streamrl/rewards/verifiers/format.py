"""Whether a completion has a form, said by a regular expression."""

import regex

DEFAULT = r"(?s)<think>(?!.*<think>).*?</think>\s*<answer>(?!.*<answer>).*?</answer>\s*"
"""Reasoning, then an answer, once each: the form of DeepSeek-R1's recipe."""


def format_match(completion: str, *, pattern: str = DEFAULT, timeout_s: float = 1.0, whole: bool = True) -> float:
    """1.0 when the pattern matches; else 0.0. whole: the completion from end to end, or anywhere in it.

    Raises TimeoutError for a pattern that takes longer than `timeout_s`, as patterns that backtrack may, and ValueError
    for one that is none."""
    try:
        look = regex.fullmatch if whole else regex.search
        return float(look(pattern, completion, timeout=timeout_s) is not None)
    except regex.error as error:
        raise ValueError(f"reward.options.format.pattern = {pattern!r} is no regular expression: {error}") from error
    except TimeoutError as error:
        raise TimeoutError(f"the pattern {pattern!r} takes longer than timeout_s = {timeout_s:g}") from error
