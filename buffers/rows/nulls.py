"""Where a batch of a schema may hold no null, at any depth.

The places are found once for a schema; a batch is passed by their counts of nulls. Keys of a map are Arrow's to check.
"""

from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from streamrl.buffers.rows.columns import flat, list_offsets

_VALUES: Final = -1
"""A step of a path into the values of a list; other steps are numbers of struct fields."""


class _Place(NamedTuple):
    column: int
    path: tuple[int, ...]


class FoundNull(NamedTuple):
    """A null that may not be. inside: not the row's value itself, but something in it."""

    row: int
    column: str
    inside: bool


class NullRule:
    """A field that is not nullable holds no null.

    Example:
        found = NullRule(COMPLETIONS).first(batch)
    """

    def __init__(self, schema: pa.Schema) -> None:
        self._names = schema.names
        self._places = [_Place(column, path) for column, field in enumerate(schema) for path in _never_null(field)]

    def first(self, batch: pa.RecordBatch) -> FoundNull | None:
        """The first in the order of the columns, or None."""
        columns = batch.columns
        for column, path in self._places:
            array = columns[column]
            for step in path:
                array = array.values if step == _VALUES else array.field(step)
            # The values of a list may go beyond what its rows own, which tells only a closer look.
            if array.null_count and _owned(columns[column], path).null_count:
                return FoundNull(_row(columns[column], path), self._names[column], bool(path))
        return None


def _never_null(field: pa.Field) -> Iterator[tuple[int, ...]]:
    """Paths from a field's array to each part that may hold no null."""
    if not field.nullable:
        yield ()
    if pa.types.is_list(field.type):
        yield from ((_VALUES, *path) for path in _never_null(field.type.value_field))
    elif pa.types.is_struct(field.type):
        for number in range(field.type.num_fields):
            yield from ((number, *path) for path in _never_null(field.type.field(number)))


def _owned(array: pa.Array, path: tuple[int, ...]) -> pa.Array:
    """What the rows of a column own at the end of `path`."""
    for step in path:
        array = _into(array, step)
    return array


def _into(array: pa.Array, step: int) -> pa.Array:
    return flat(array) if step == _VALUES else array.field(step)


def _row(array: pa.Array, path: tuple[int, ...]) -> int:
    """The row that owns the first null at the end of `path`."""
    lists = []
    for step in path:
        if step == _VALUES:
            lists.append(list_offsets(array))
        array = _into(array, step)
    place = int(np.argmax(array.is_null().to_numpy(zero_copy_only=False)))
    for offsets in reversed(lists):
        place = int(np.searchsorted(offsets, place, side="right")) - 1
    return place
