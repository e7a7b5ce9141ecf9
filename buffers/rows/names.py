"""Which texts are plain names: no path, no NUL, nothing that a terminal or a shell would take for something else.

A plain name is a letter, a digit or `_`, and then any of these and of `.:@+=-`. A numbered one has `/` and a number
behind it. Looked at as bytes, a column at once: a regular expression takes ten times as long.
"""

import re
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from streamrl.buffers.rows.columns import text_bytes

_NAME: Final = "[A-Za-z0-9_][A-Za-z0-9_.:@+=-]*"
PLAIN: Final = re.compile(_NAME)
NUMBERED: Final = re.compile(f"{_NAME}/[0-9]+")
ALLOWED: Final = "letters, digits and any of '_.:@+=-'"

_SLASH: Final = ord("/")


def _bytes_that(may: Callable[[str], Any]) -> bytes:
    return bytes(byte for byte in range(128) if may(chr(byte)))


_FIRST: Final = _bytes_that(PLAIN.fullmatch)
_LATER: Final = _bytes_that(lambda one: PLAIN.fullmatch(f"_{one}"))
_LATER_OR_SLASH: Final = _LATER + b"/"
_IS_DIGIT: Final = np.isin(np.arange(256), np.frombuffer(_bytes_that(str.isdigit), np.uint8))


def all_plain(column: pa.StringArray) -> bool:
    """Whether each text, of one row or more, is a plain name."""
    data, offsets = text_bytes(column)
    return _all_names(data, offsets[:-1], offsets[1:], _LATER)


def all_numbered(column: pa.StringArray) -> bool:
    """Whether each text, of one row or more, is a plain name, `/` and a number."""
    data, offsets = text_bytes(column)
    begin, end = offsets[:-1], offsets[1:]
    slash = np.flatnonzero(data == _SLASH)
    # As many as rows, and the i-th within the i-th row (behind its begin: see the last line): one in each.
    if len(slash) != len(column) or (slash + 1 >= end).any():
        return False
    digits = np.zeros(len(data) + 1, np.int32)
    np.cumsum(_IS_DIGIT[data], out=digits[1:])
    if (digits[end] - digits[slash + 1] != end - slash - 1).any():
        return False
    return _all_names(data, begin, slash, _LATER_OR_SLASH)


def _all_names(
    data: npt.NDArray[np.uint8], begin: npt.NDArray[np.integer], end: npt.NDArray[np.integer], later: bytes
) -> bool:
    """Whether a name begins at each `begin`, int [N], and all bytes of the texts are some of `later`. end: int [N]."""
    if (begin >= end).any():
        return False
    return not data.tobytes().translate(None, later) and not data[begin].tobytes().translate(None, _FIRST)
