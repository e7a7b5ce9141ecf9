"""The rewards that come with streamrl. Each compares a completion with the `answer` of its prompt's
payload.
"""

from collections.abc import Callable, Mapping


def exact_match(completion: str, *, answer: object, finish_reason: str) -> float:
    """1.0 when the completion is the answer, character for character, and ended by itself; else 0.0.

    A completion cut off at the length limit never matches: the model has not said that it was done.
    """
    return float(finish_reason == "stop" and completion == str(answer))


def contains(completion: str, *, answer: object) -> float:
    """1.0 when the answer occurs anywhere in the completion; else 0.0."""
    return float(str(answer) in completion)


BUILT_IN: Mapping[str, Callable[..., float]] = {"exact_match": exact_match, "contains": contains}
