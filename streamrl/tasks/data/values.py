"""Values of a row as JSON has them, whatever library they come from. Pure."""

import datetime
import decimal
import json
import math
import uuid
from collections.abc import Mapping
from typing import Any

import numpy as np

REPLACEMENT = "\ufffd"


def plain(value: Any) -> Any:
    """The value in JSON's own types.

    NaN and infinities become None, as missing values do. Numpy scalars and arrays become numbers and lists, dates and
    UUIDs text, decimals numbers: those without a fraction whole ones, and text where no float is that number. Bytes
    become the text that they are in UTF-8, and None where they are none. Half a surrogate pair in a text becomes
    U+FFFD. Keys become text."""
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, str):
        return value if whole_text(value) else value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(plain(key)): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item) for item in value]
    if isinstance(value, np.generic | np.ndarray):
        return plain(value.tolist())
    if isinstance(value, decimal.Decimal):
        return _number_of(value)
    if isinstance(value, bytes):
        return _text_of(value)
    if isinstance(value, datetime.date | datetime.time | datetime.timedelta | uuid.UUID):
        return str(value)
    return None


def _number_of(value: decimal.Decimal) -> int | float | str | None:
    """Digits that a float lacks are a part of an answer, so they are kept."""
    if not value.is_finite():
        return None
    if value.as_tuple().exponent == 0:
        return int(value)
    nearest = float(value)
    return nearest if decimal.Decimal(repr(nearest)) == value else str(value)


def _text_of(value: bytes) -> str | None:
    """Some writers of Parquet say of no column that it is text. What is an image or the like is not in UTF-8."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return None


def whole_text(text: str) -> bool:
    """Whether a text can be written as UTF-8: it holds no half of a surrogate pair."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def as_json(value: Any) -> str:
    """One line of JSON of a plain value."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def shown(value: Any) -> str:
    """A value for a message: one line of ASCII, of bounded length."""
    text = ascii(value)
    return text if len(text) <= 60 else text[:57] + "..."
