"""The rows of a frame, those of a group together."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from streamrl.buffers.rows.by_group import ByGroup


@given(st.lists(st.integers(-(2**63), 2**63 - 1) | st.integers(0, 5), min_size=1, max_size=30))
def test_each_group_has_the_places_of_its_rows_in_the_frames_order(numbers) -> None:
    by_group = ByGroup.of(np.array(numbers, np.int64))
    expected = {one: [place for place, number in enumerate(numbers) if number == one] for one in sorted(set(numbers))}
    assert dict(zip(by_group.numbers, by_group.places(), strict=True)) == expected
    assert [numbers[by_group.order[start]] for start in by_group.starts] == list(expected)
