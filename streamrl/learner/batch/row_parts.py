"""Rows cut into parts, and what was found for the parts put together again. Nothing is padded, and order is restored.

A *part* is int64 [n], indices of rows; n may be 0. A *column* has a value for each row: an array (any shape behind the
first dimension) or a list. Pure functions.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from streamrl.errors import ComponentError
from streamrl.types import LongArray

Column = Sequence[Any] | npt.NDArray[Any]


def require_partition(parts: Sequence[LongArray], num_rows: int) -> None:
    """Raise ValueError unless each of `num_rows` rows is in one part, once."""
    rows = np.concatenate([np.zeros(0, np.int64), *parts])
    strange = rows[(rows < 0) | (rows >= num_rows)]
    if len(strange):
        raise ValueError(f"a part has row {strange[0]}, and there are {num_rows} rows, from 0")
    count_N = np.bincount(rows, minlength=num_rows)
    wrong = np.flatnonzero(count_N != 1)
    if len(wrong):
        raise ValueError(
            f"row {wrong[0]} is in the parts {count_N[wrong[0]]} times, and {len(wrong)} of {num_rows} rows are not "
            "there once; cut the rows by streamrl.learner.batch.balance.split_rows"
        )


def take(column: Column, part: LongArray) -> Column:
    """The values of the rows of a part, in its order: an array of an array, a list of a list."""
    if isinstance(column, np.ndarray):
        return column[part]
    return [column[row] for row in part.tolist()]


def is_column(values: Any) -> bool:
    return values.ndim > 0 if isinstance(values, np.ndarray) else isinstance(values, list | tuple)


def put_back(found: Sequence[Column], parts: Sequence[LongArray], names: Sequence[str]) -> Column:
    """The column of which `found` has the values of each part: the inverse of `take` over all parts.

    parts: a partition of the rows (`require_partition`), one part at least. names: who found which, for errors. Arrays
    make an array, lists a list. Raises ComponentError, by name, for something that is no column, for more or fewer
    values than the part has rows, and for values of another kind than the first one found.
    """
    for values, part, name in zip(found, parts, names, strict=True):
        _require_count(values, part, name)
        if (kind := _kind(values)) != (first := _kind(found[0])):
            raise ComponentError(f"{name} answered {kind} for each row, and {names[0]} {first}; answer alike")
    num_rows = sum(map(len, parts))
    if not isinstance(found[0], np.ndarray):
        return _listed(found, parts, num_rows)
    whole = np.empty((num_rows, *found[0].shape[1:]), found[0].dtype)
    for values, part in zip(found, parts, strict=True):
        whole[part] = values
    return whole


def in_place(
    found: Sequence[npt.NDArray[np.float64]], parts: Sequence[LongArray], num_rows: int
) -> npt.NDArray[np.float64]:
    """float64 [N], what was found in the place of its row, and 0 for a row that is in none of these parts.

    It is what one rank knows of a column: summed over ranks that have different rows it is what `put_back` makes of all
    parts, exactly, since only zeros are added to a value (a -0.0 becomes 0.0). Raises as `put_back`.
    """
    whole_N = np.zeros(num_rows)
    for number, (values, part) in enumerate(zip(found, parts, strict=True)):
        _require_count(values, part, f"part {number}")
        whole_N[part] = values
    return whole_N


def _listed(found: Sequence[Column], parts: Sequence[LongArray], num_rows: int) -> list[Any]:
    whole: list[Any] = [None] * num_rows
    for values, part in zip(found, parts, strict=True):
        for row, value in zip(part.tolist(), values, strict=True):
            whole[row] = value
    return whole


def _require_count(values: Any, part: LongArray, name: str) -> None:
    if not is_column(values):
        raise ComponentError(f"{name} answered a {type(values).__name__} for its rows; answer an array or a list")
    if len(values) != len(part):
        raise ComponentError(f"{name} answered {len(values)} values for {len(part)} rows; answer one for each row")


def _kind(values: Column) -> str:
    """In words. numpy would cast or broadcast values of another kind, and nobody would be told."""
    return f"{values.dtype} of shape {values.shape[1:]}" if isinstance(values, np.ndarray) else "an entry of a list"
