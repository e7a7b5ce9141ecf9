"""What a reward function gets, and how what it gives back becomes a `Score`.

Guarantees that a failure is never a number: only a finite number becomes an `ok` score, and everything else
(NaN, None, text, an exception, too few values) becomes a failed one whose reason names what came back.
"""

import json
import math
from collections.abc import Mapping, Sequence
from decimal import Decimal
from numbers import Real

import msgspec
import numpy as np
import numpy.typing as npt

from streamrl.types import Score, ScoreStatus

REASON_LENGTH = 300  # a reason is one line in a table, not a report
INFO_LENGTH = 200  # characters of one entry that is information
TOTALS = ("reward", "score")
"""Entries of a dict that are the reward itself, the first that is there."""
_NOT_FINITE = ("nan", "inf", "-inf")


class RewardItem(msgspec.Struct, frozen=True, array_like=True):
    """One completion to score.

    completion: its text without special tokens. prompt: the prompt's text. payload: the prompt's JSON object.
    finish_reason: a value of `streamrl.types.FinishReason`. token_ids: little-endian int32 bytes of the
    sampled tokens, for functions that ask for `completion_ids` and for a reward model; prompt_ids: the same of the
    prompt's, for a reward model. Both may be left empty where nothing asks for them."""

    completion: str
    prompt: str = ""
    payload: str = "{}"
    finish_reason: str = "stop"
    token_ids: bytes = b""
    prompt_ids: bytes = b""


def to_score(value: object) -> Score:
    """The score that a returned value means.

    A finite number is the reward: any scalar of Python, numpy or torch without dimensions, `bool` included. A dict, as
    verl's `compute_score` returns it, is its `reward` or `score` entry, else the sum of its numbers; numbers are
    components, everything else is kept as information. An exception in the place of a value is a failure with its type
    and text. So is an object that raises when it is looked at."""
    if type(value) is float:  # the common case first: this runs once for each rollout
        return Score.ok(value) if math.isfinite(value) else Score.failed(f"returned {value}")
    try:
        return _read(value)
    except Exception as error:  # noqa: BLE001 - a stranger's object may raise anything; it must cost its item alone
        return Score.failed(f"returned {type(value).__name__}, which raises {type(error).__name__} when it is read")


def _read(value: object) -> Score:
    if isinstance(value, BaseException):
        return Score.failed(shorten(f"{type(value).__name__}: {value}"))
    if isinstance(value, Mapping):
        return _from_parts(value)
    number = _number(value)
    return Score.failed(f"returned {number}") if isinstance(number, str) else Score.ok(number)


def with_components(score: Score, names: Sequence[str]) -> Score:
    """The score itself, or a failed one where it is valid and lacks a finite number under one of `names`."""
    if score.status is not ScoreStatus.OK:
        return score
    for name in names:
        value = score.components.get(name)
        if value is None:
            there = ", ".join(map(repr, score.components)) or "none"
            return Score.failed(shorten(f"no component {name!r}; the reward function gave {there}"))
        if not math.isfinite(value):
            return Score.failed(shorten(f"component {name!r} is {value}"))
    return score


def component_columns(scores: Sequence[Score], names: Sequence[str]) -> npt.NDArray[np.float64]:
    """float64 [N, C], the components of that name of each score; NaN for all of a failed one."""
    failed = [math.nan] * len(names)
    rows = [
        [score.components[name] for name in names] if score.status is ScoreStatus.OK else failed for score in scores
    ]
    return np.array(rows, np.float64).reshape(len(scores), len(names))


def shorten(reason: str) -> str:
    """`reason` on one line, of bounded length, in UTF-8: what a model wrote may be in it."""
    line = writable(" ".join(reason.split()))
    return line if len(line) <= REASON_LENGTH else line[: REASON_LENGTH - 3] + "..."


def writable(text: str) -> str:
    """A text with `?` for each half of a surrogate pair, which no frame and no file holds."""
    return text.encode("utf-8", "replace").decode()


def _from_parts(value: Mapping[object, object]) -> Score:
    if not value:
        return Score.failed("returned an empty dict")
    total_key = next((key for key in TOTALS if key in value), None)
    components: dict[str, float] = {}
    more: dict[str, str] = {}
    for key, part in value.items():
        number = _number(part)
        if not isinstance(number, str):
            components[writable(str(key))] = number
        elif key == total_key or (part is None and total_key is None) or number in _NOT_FINITE:
            return Score.failed(shorten(f"component {key!r} is {number}"))
        else:
            more[str(key)[:INFO_LENGTH]] = _shown(part)
    if not components:
        return Score.failed(shorten(f"returned a dict without a number: {', '.join(map(repr, value))}"))
    total = components[str(total_key)] if total_key is not None else sum(components.values())
    if not math.isfinite(total):
        return Score.failed(f"components add up to {total}")
    return Score.ok(total, components, json.dumps(more, ensure_ascii=True) if more else "")


def _shown(part: object) -> str:
    """What is no number, as text of bounded length; no `repr` of a stranger's object, which may raise."""
    if isinstance(part, str | bytes | bool | int | float | type(None)):
        text = part if isinstance(part, str) else repr(part)
    elif isinstance(part, list | tuple | dict):
        try:
            text = json.dumps(part, default=lambda other: type(other).__name__)
        except (TypeError, ValueError, RecursionError):
            text = type(part).__name__
    else:
        text = type(part).__name__
    return text[:INFO_LENGTH]


def _number(value: object) -> float | str:
    """A finite number as a float; for anything else, words for what it is.

    The words hold no `repr` of a stranger's object, which may be long, or raise.
    """
    if value is None:
        return "None"
    if isinstance(value, str):
        return f"str, not a number: {value[:80]!r}"
    if value is np.ma.masked:
        return "a masked value, not a number"
    shape = getattr(value, "shape", None)
    if shape is not None:  # of numpy or torch, or what is like them
        if tuple(shape) != ():
            return f"{type(value).__name__} of shape {tuple(shape)}, not a number"
        value = value.item()  # type: ignore[attr-defined]
    if not isinstance(value, Real | Decimal):
        return f"{type(value).__name__}, not a number"
    try:
        number = float(value)
    except OverflowError:
        return f"{type(value).__name__} beyond the range of a float"
    return number if math.isfinite(number) else str(number)
