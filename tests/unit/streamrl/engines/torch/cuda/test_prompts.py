"""Prompts laid out in passes of fixed sizes: every token is read once, at its place, by its row."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from streamrl.engines.torch.admission import Segment
from streamrl.engines.torch.cuda.prompts import PIECES, SIZES, lay_out

BLOCK = 16


def segments_of(lengths: list[int]) -> list[Segment]:
    """Token ids count on from one row to the next."""
    ends = np.cumsum(lengths).tolist()
    return [
        Segment(np.arange(end - length, end), (row,))
        for row, (end, length) in enumerate(zip(ends, lengths, strict=True))
    ]


@given(st.lists(st.integers(0, 5000), min_size=1, max_size=150))
def test_every_token_is_read_once_and_after_those_before_it(lengths: list[int]) -> None:
    segments, read = segments_of(lengths), {row: [] for row in range(len(lengths))}
    for packed in lay_out(segments, BLOCK):
        assert len(packed.token_ids) in SIZES
        there = packed.positions >= 0
        for row, position, token in zip(
            packed.rows[there], packed.positions[there], packed.token_ids[there], strict=True
        ):
            assert position == len(read[row])
            read[row].append(token)
    assert all(read[row] == segment.token_ids.tolist() for row, segment in enumerate(segments))


@given(st.lists(st.integers(1, 300), min_size=1, max_size=2 * PIECES))
def test_blocks_cover_the_tokens_of_one_row_each(lengths: list[int]) -> None:
    for packed in lay_out(segments_of(lengths), BLOCK):
        covered = np.zeros(len(packed.token_ids), dtype=int)
        for row, first, position, count in packed.blocks.tolist():
            part = slice(first, first + count)
            assert count <= BLOCK
            assert (packed.rows[part] == row).all()
            assert packed.positions[part].tolist() == list(range(position, position + count))
            covered[part] += 1
        assert covered.tolist() == (packed.positions >= 0).astype(int).tolist()


def test_the_smallest_pass_that_holds_the_prompts_is_taken() -> None:
    for tokens, size in ((1, SIZES[0]), (SIZES[0], SIZES[0]), (SIZES[0] + 1, SIZES[1]), (SIZES[1] + 1, SIZES[2])):
        (packed,) = lay_out(segments_of([tokens]), BLOCK)
        assert len(packed.token_ids) == size
