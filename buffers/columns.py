"""Views of Arrow columns as numpy arrays, without a copy and whatever slice of a buffer a column is."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

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


def text_bytes(column: pa.StringArray) -> tuple[npt.NDArray[np.uint8], IntArray]:
    """The UTF-8 bytes of a text column without nulls, uint8 [B], and where its texts begin and end, int32 [N + 1].

    N is 1 or more. The buffers of a valid column may be longer than what it needs of them, by any number of bytes.
    """
    _, offset_buffer, data_buffer = column.buffers()
    offsets = np.frombuffer(offset_buffer, np.int32, len(column) + 1, column.offset * np.dtype(np.int32).itemsize)
    data = np.frombuffer(data_buffer if data_buffer is not None else b"", np.uint8)
    return data[offsets[0] : offsets[-1]], offsets - offsets[0]
