"""Prompts as packed passes of fixed sizes, laid out on the host. Pure.

A pass takes at most so many tokens and so many pieces; a long prompt goes on in the next pass, where its tokens attend
to those that the cache holds already. The sizes are fixed, so that a graph can be captured for each.

Shapes: T packed tokens, N blocks.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from streamrl.engines.torch.admission import Rest, Segment
from streamrl.types import LongArray

SIZES = (128, 512, 2048)
"""Tokens of a pass; the smallest that holds what is to be read is taken."""

PIECES = 64
"""Prompts, or parts of one, of a pass."""


class PromptPass(NamedTuple):
    """token_ids, positions, rows: int64 [T], position -1 for padding. blocks: int64 [N, 4], see
    `PagedAttention.prompts`."""

    token_ids: LongArray
    positions: LongArray
    rows: LongArray
    blocks: LongArray


class _Piece(NamedTuple):
    row: int
    position: int
    token_ids: LongArray


def num_blocks(tokens: int, block_tokens: int) -> int:
    """Blocks that a pass of so many tokens has, most of them empty."""
    return -(-tokens // block_tokens) + PIECES


def lay_out(segments: Sequence[Segment], block_tokens: int, rests: Sequence[Rest] = ()) -> Iterator[PromptPass]:
    """The passes that read `segments`, each into its first slot, and `rests` behind what their slots hold.
    block_tokens: tokens of a block of queries."""
    pieces: list[_Piece] = []
    left = SIZES[-1]
    whole = [(segment.slots[0], 0, segment.token_ids) for segment in segments]
    for slot, start, token_ids in (*whole, *((rest.slot, rest.start, rest.token_ids) for rest in rests)):
        done = 0
        while done < len(token_ids):
            if not left or len(pieces) == PIECES:
                yield _pack(pieces, block_tokens)
                pieces, left = [], SIZES[-1]
            taken = token_ids[done : done + left]
            pieces.append(_Piece(slot, start + done, taken))
            done += len(taken)
            left -= len(taken)
    if pieces:
        yield _pack(pieces, block_tokens)


def _pack(pieces: Sequence[_Piece], block_tokens: int) -> PromptPass:
    total = sum(len(piece.token_ids) for piece in pieces)
    size = next(size for size in SIZES if size >= total)
    token_ids, rows = np.zeros(size, dtype=np.int64), np.zeros(size, dtype=np.int64)
    positions = np.full(size, -1, dtype=np.int64)
    blocks = np.zeros((num_blocks(size, block_tokens), 4), dtype=np.int64)
    at = block = 0
    for row, position, ids in pieces:
        count = len(ids)
        part = slice(at, at + count)
        token_ids[part], rows[part] = ids, row
        positions[part] = np.arange(position, position + count)
        starts = np.arange(0, count, block_tokens)
        block_part = blocks[block : block + len(starts)]
        block_part[:, 0], block_part[:, 1], block_part[:, 2] = row, at + starts, position + starts
        block_part[:, 3] = np.minimum(block_tokens, count - starts)
        at += count
        block += len(starts)
    return PromptPass(token_ids, positions, rows, blocks)
