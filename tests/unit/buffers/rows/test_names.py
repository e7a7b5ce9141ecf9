"""The byte-wise look at names says what the patterns say, on any slice of any column."""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrl.buffers.rows.names import NUMBERED, PLAIN, all_numbered, all_plain

PIECES = st.sampled_from(
    ["g", "Z", "_", ".", "-", "@", "+", "=", ":", "/", "0", "9", "12", "\n", "\0", " ", "é", "\x7f"]
)
TEXTS = st.lists(PIECES, max_size=5).map("".join) | st.sampled_from(["g1/0", "a.b/17", "w-0", "_"])


@given(st.lists(TEXTS, min_size=1, max_size=6), st.data())
def test_they_agree_with_the_patterns(texts: list[str], data: st.DataObject) -> None:
    first = data.draw(st.integers(0, len(texts) - 1))
    column, kept = pa.array(texts, pa.string()).slice(first), texts[first:]
    assert all_plain(column) == all(PLAIN.fullmatch(text) for text in kept)
    assert all_numbered(column) == all(NUMBERED.fullmatch(text) for text in kept)


@pytest.mark.parametrize(
    "texts", [["g1/0", "g/2/3"], ["g1", "2/3/4"], ["/1", "g/1"], ["g/", "g/1"], ["g/1", "h2"], [""]]
)
def test_as_many_slashes_as_rows_are_not_enough(texts: list[str]) -> None:
    assert not all_numbered(pa.array(texts, pa.string()))


def test_a_column_of_empty_texts_without_any_bytes_is_no_row_of_names() -> None:
    assert not all_plain(pa.array(["", ""], pa.string()))
    assert not all_numbered(pa.array(["", ""], pa.string()))


def test_buffers_that_are_longer_than_the_column_needs_change_nothing() -> None:
    """Bytes of an Arrow message may say so; Arrow's own validation lets them pass."""
    _, offsets, data = pa.array(["g1/0", "g1/1"], pa.string()).buffers()
    longer = [pa.py_buffer(buffer.to_pybytes()[:size] + b"?!?") for buffer, size in ((offsets, 12), (data, 8))]
    column = pa.Array.from_buffers(pa.string(), 2, [None, *longer])
    column.validate(full=True)
    assert all_numbered(column)
    assert not all_plain(column)
