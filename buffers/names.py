"""Which texts are plain names: no path, no NUL, nothing that a terminal or a shell would take for something else.

A plain name is a letter, a digit or `_`, and then any of these and of `.:@+=-`. A numbered one has `/` and a number
behind it. Looked at as bytes, a column at once: a regular expression takes ten times as long.
"""

import re
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from buffers.columns import text_bytes

_NAME: Final = "[A-Za-z0-9_][A-Za-z0-9_.:@+=-]*"
PLAIN: Final = re.compile(_NAME)
NUMBERED: Final = re.compile(f"{_NAME}/[0-9]+")
ALLOWED: Final = "letters, digits and any of '_.:@+=-'"

_FIRST, _LATER, _DIGIT = 1, 2, 4
"""What a byte may be: the first of a name, a later one, one of a number."""
_SLASH: Final = ord("/")


def _kinds() -> npt.NDArray[np.uint8]:
    kinds = np.zeros(256, np.uint8)
    for byte in range(128):
        one = chr(byte)
        kinds[byte] |= _FIRST * bool(PLAIN.fullmatch(one))
        kinds[byte] |= _LATER * bool(PLAIN.fullmatch(f"_{one}"))
        kinds[byte] |= _DIGIT * one.isdigit()
    return kinds


_KINDS: Final = _kinds()


def all_plain(column: pa.StringArray) -> bool:
    """Whether each text, of one row or more, is a plain name."""
    data, offsets = text_bytes(column)
    return _all_names(_KINDS[data], offsets[:-1], offsets[1:])


def all_numbered(column: pa.StringArray) -> bool:
    """Whether each text, of one row or more, is a plain name, `/` and a number."""
    data, offsets = text_bytes(column)
    begin, end = offsets[:-1], offsets[1:]
    slash = np.flatnonzero(data == _SLASH)
    # As many as rows, and the i-th within the i-th row (behind its begin: see the last line): one in each.
    if len(slash) != len(column) or (slash + 1 >= end).any():
        return False
    kinds = _KINDS[data]
    digits = np.concatenate((np.zeros(1, np.int64), np.cumsum(kinds & _DIGIT != 0)))
    if (digits[end] - digits[slash + 1] != end - slash - 1).any():
        return False
    kinds[slash] = _LATER
    return _all_names(kinds, begin, slash)


def _all_names(kinds: npt.NDArray[np.uint8], begin: npt.NDArray[np.integer], end: npt.NDArray[np.integer]) -> bool:
    """kinds: of each byte; begin, end: int [N], where the names lie. What is behind a name is only looked at as if it
    went on."""
    if (begin >= end).any():
        return False
    return bool((kinds & _LATER).all() and (kinds[begin] & _FIRST).all())
