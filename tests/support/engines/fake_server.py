"""What the fake servers have in common: a completion that says by itself whether it is whole, and its versions."""

from typing import Any


class Reset(Exception):
    """Breaks the connection in the middle of an answer."""


def token(index: int) -> int:
    """The id of a completion's i-th token, whatever the prompt."""
    return 10 + index


def logprob(index: int) -> float:
    return -0.5 - index / 8


def likeliest(index: int, most: int) -> list[tuple[int, float]]:
    """(id, log-prob) of the `most` likeliest tokens in the place of the i-th: at even places it is the first of them,
    at odd ones it is none."""
    others = [(200 + rank, (logprob(index) - 1 if index % 2 == 0 else -0.125) - rank / 64) for rank in range(most)]
    return [(token(index), logprob(index)), *others][:most] if index % 2 == 0 else others


def spans_of(labels: list[str]) -> list[dict[str, Any]]:
    """As both servers tell them: the label of the weights, from which token to which."""
    spans: list[dict[str, Any]] = []
    for place, label in enumerate(labels):
        if spans and spans[-1]["version"] == label:
            spans[-1]["end"] = place + 1
        else:
            spans.append({"version": label, "start": place, "end": place + 1})
    return spans
