"""The tree of what rows have in common at their beginning, so that it is computed once: the prompt of a group, the
turns before an episode forked, a system prompt. Pure.

    row 0: p p p a a          segments: p p p | a a | b b | c | d d          parents: none, 0, 0, 2, 2
    row 1: p p p b b c        (row 1's tokens are those of segments 0, 2 and 3)
    row 2: p p p b b d d

Ids decide what is common, not what anybody promises of a group. What is too short to be worth a segment of its own
stays with each row.
"""

from typing import NamedTuple

import numpy as np

from streamrl.learner.batch.rows import prompt_lengths, ragged_arange
from streamrl.types import LongArray, RolloutRows

SHARED_FROM = 64
"""Tokens in common from which on a stretch is a segment of its own, where it is not just the prompt of a group. Rows
that happen to begin with the same few tokens would break up calls of equal shape, and save nothing."""


class PrefixTree(NamedTuple):
    """S segments. row: int64 [S], a row whose tokens they are; start, length: int64 [S], where in that row, 1 token at
    least. parent: int64 [S], the segment before it, -1 for none. leaf: int64 [N], where each row ends."""

    row: LongArray
    start: LongArray
    length: LongArray
    parent: LongArray
    leaf: LongArray

    def sorted_by_shape(self) -> "PrefixTree":
        """The same segments, those of equal shape side by side."""
        order = np.lexsort((self.start, self.length))
        place = np.empty_like(order)
        place[order] = np.arange(len(order))
        parent = self.parent[order]
        parent = np.where(parent < 0, -1, place[parent])
        return PrefixTree(self.row[order], self.start[order], self.length[order], parent, place[self.leaf])


def segments_on_path(parent: LongArray, start: LongArray, segments: LongArray, positions: LongArray) -> LongArray:
    """int64, of each of these segments itself or the one before it that has the position."""
    found = segments.copy()
    above = np.flatnonzero(positions < start[found])
    while len(above):
        found[above] = parent[found[above]]
        above = above[positions[above] < start[found[above]]]
    return found


def group_prompts(rows: RolloutRows) -> LongArray:
    """int64 [N], tokens of the shortest prompt in each row's group. rows: in `training_order`."""
    first = np.flatnonzero(np.diff(rows.group, prepend=rows.group[:1] - 1))
    size = np.diff(np.append(first, rows.num_rows))
    return np.repeat(np.minimum.reduceat(prompt_lengths(rows), first), size) if len(first) else first


def shared_with_previous(
    rows: RolloutRows, index: LongArray, used_N: LongArray, prompt_N: LongArray, share_from: int
) -> LongArray:
    """int64 [n], tokens that each of the rows `index` shares with the one before it there; 0 for the first.

    used_N: int64 [N], a row's tokens that are looked at. prompt_N: as `group_prompts` has it; so much is shared within
    a group whatever its length. Of everything else what is `share_from` tokens or longer. Within a group this depends
    on nothing but how many tokens two rows have in common, so sorting rows by ids loses none of it.
    """
    if len(index) < 2:
        return np.zeros(len(index), np.int64)
    one, other = index[:-1], index[1:]
    common = _common(rows, one, other, np.minimum(used_N[one], used_N[other]))
    prompt = np.where(rows.group[one] == rows.group[other], prompt_N[other], 0)
    base = np.where(common >= prompt, prompt, 0)
    return np.concatenate([np.zeros(1, np.int64), np.where(common - base < share_from, base, common)])


def _common(rows: RolloutRows, one: LongArray, other: LongArray, most: LongArray) -> LongArray:
    """int64 [n], with how many equal tokens the rows of each pair begin, `most` at most."""
    differ = (
        rows.token_ids[ragged_arange(rows.offsets[one], most)]
        != (rows.token_ids[ragged_arange(rows.offsets[other], most)])
    )
    found, first = most.copy(), np.cumsum(most) - most
    places = np.flatnonzero(differ)[::-1]
    pair = np.repeat(np.arange(len(most)), most)[places]
    # Where an index repeats the last assignment stays: reversed, that is the first difference.
    found[pair] = places - first[pair]
    return found


def prefix_tree(
    rows: RolloutRows, index: LongArray, used_N: LongArray, prompt_N: LongArray, share_from: int | None
) -> PrefixTree:
    """The tree of the rows `index`, as `shared_with_previous` has them; with `share_from = None` each row is a segment.

    The same rows give the same tree. A row whose tokens others have too ends in a segment of theirs. `row` and `leaf`
    count rows as `index` does.
    """
    used = used_N[index].tolist()
    if share_from is None:
        order, shared = list(range(len(index))), [0] * len(index)
    else:
        starts = rows.offsets[index].tolist()
        keys = [rows.token_ids[start : start + length].tobytes() for start, length in zip(starts, used, strict=True)]
        # By bytes, not by ids: rows of a group that begin alike are side by side all the same.
        groups = rows.group[index].tolist()
        order = sorted(range(len(index)), key=lambda row: (groups[row], keys[row]))
        shared = shared_with_previous(rows, index[order], used_N, prompt_N, share_from).tolist()
    nodes = _joined(order, shared, used)
    return _segments(nodes, len(index))


class _Node(NamedTuple):
    """row: one that has its tokens. depth: tokens of this row that end with it. members: nodes right behind it."""

    row: int
    depth: int
    members: list[int]


def _joined(order: list[int], shared: list[int], used: list[int]) -> list[_Node]:
    """Every node, members before what they are members of: the rows as they are counted, what they share, the root.

    shared: tokens in common with the row before, in the given order, as in a suffix array's list of common prefixes.
    """
    found = [_Node(row, depth, []) for row, depth in enumerate(used)]
    still_open = [_Node(-1, 0, [])]
    for row, following in zip(order, [*shared[1:], 0], strict=True):
        child = row
        while still_open[-1].depth > following:
            closed = still_open.pop()
            closed.members.append(child)
            child = len(found)
            found.append(closed)
        if still_open[-1].depth < following:
            still_open.append(_Node(row, following, []))
        still_open[-1].members.append(child)
    return found + still_open


def _segments(nodes: list[_Node], count: int) -> PrefixTree:
    """The segments of the nodes, of which the first `count` are the rows."""
    above = [-1] * len(nodes)
    start = [0] * len(nodes)
    parts: list[tuple[int, int, int, int]] = []
    for number in range(len(nodes) - 1, -1, -1):
        node, segment = nodes[number], above[number]
        if node.depth > start[number]:
            parts.append((node.row, start[number], node.depth - start[number], segment))
            segment = len(parts) - 1
        above[number] = segment
        for member in node.members:
            above[member], start[member] = segment, node.depth
    row, start_S, length_S, parent = np.array(parts, np.int64).reshape(-1, 4).T
    return PrefixTree(row, start_S, length_S, parent, np.array(above[:count], np.int64))
