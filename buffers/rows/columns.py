"""Views of Arrow columns as numpy arrays, without a copy and whatever slice of a buffer a column is."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from streamrl.types import IntArray, LongArray


def list_offsets(column: pa.ListArray) -> LongArray:
    """int64 [N + 1], offsets of a list column counted from 0."""
    offsets = column.offsets.to_numpy()
    return np.asarray(np.subtract(offsets, offsets[0], dtype=np.int64))


def list_values(column: pa.ListArray) -> npt.NDArray[Any]:
    """The flat values of a list column of numbers without nulls."""
    values = column.values
    if values.null_count:  # in what its rows do not own
        return np.asarray(flat(column).to_numpy())
    offsets = column.offsets.to_numpy()
    return np.asarray(values.to_numpy()[offsets[0] : offsets[-1]])


def flat(column: pa.ListArray) -> pa.Array:
    """The values of a list column that its rows own."""
    offsets = column.offsets
    start = offsets[0].as_py()
    return column.values.slice(start, offsets[-1].as_py() - start)


def map_columns(column: pa.MapArray, names: Sequence[str]) -> npt.NDArray[np.float64]:
    """float64 [N, C]: the values under each of `names` in a column of maps from texts to numbers; NaN where a map has
    no such name, or is null."""
    columns = np.full((len(column), len(names)), np.nan)
    if not names or not len(column):
        return columns
    entries, row = flat(column), np.repeat(np.arange(len(column)), np.diff(list_offsets(column)))
    keys, values = entries.field(0), entries.field(1).to_numpy(zero_copy_only=False)
    for place, name in enumerate(names):
        found = pc.equal(keys, name).to_numpy(zero_copy_only=False)
        columns[row[found], place] = values[found]
    return columns


def text_bytes(column: pa.StringArray) -> tuple[npt.NDArray[np.uint8], IntArray]:
    """The UTF-8 bytes of a text column without nulls, uint8 [B], and where its texts begin and end, int32 [N + 1].

    N is 1 or more. The buffers of a valid column may be longer than what it needs of them, by any number of bytes.
    """
    _, offset_buffer, data_buffer = column.buffers()
    offsets = np.frombuffer(offset_buffer, np.int32, len(column) + 1, column.offset * np.dtype(np.int32).itemsize)
    data = np.frombuffer(data_buffer if data_buffer is not None else b"", np.uint8)
    return data[offsets[0] : offsets[-1]], offsets - offsets[0]
