"""The ways in which a parameter is cut over ranks: what is merged is what was cut, to the bit."""

import pytest
import torch

from streamrl.learner.megatron.cuts import COLUMNS, FUSED_GATE_UP, GATE_UP, HEADS, ROWS, VOCABULARY, WHOLE, Cut, Sizes

GROUPS, QUERIES, HEAD, HIDDEN, VOCAB = 4, 3, 5, 7, 67
SIZES = Sizes(GROUPS, QUERIES, VOCAB)
WAYS: dict[str, tuple[Cut, list[tuple[int, ...]]]] = {
    "whole": (WHOLE, [(HIDDEN,)]),
    "rows": (ROWS, [(8, HIDDEN)]),
    "columns": (COLUMNS, [(HIDDEN, 8)]),
    "vocabulary": (VOCABULARY, [(VOCAB, HIDDEN)]),
    "heads": (HEADS, [(GROUPS * QUERIES * HEAD, HIDDEN), (GROUPS * HEAD, HIDDEN), (GROUPS * HEAD, HIDDEN)]),
    "biases of heads": (HEADS, [(GROUPS * QUERIES * HEAD,), (GROUPS * HEAD,), (GROUPS * HEAD,)]),
    "gate and up": (GATE_UP, [(12, HIDDEN), (12, HIDDEN)]),
    "gate and up in one": (FUSED_GATE_UP, [(24, HIDDEN)]),
}


def numbered(shapes: list[tuple[int, ...]]) -> list[torch.Tensor]:
    """Tensors of which no two elements are equal."""
    start, found = 0, []
    for shape in shapes:
        count = torch.Size(shape).numel()
        found.append(torch.arange(start, start + count, dtype=torch.float32).view(shape))
        start += count
    return found


@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("way", WAYS)
def test_parts_of_all_ranks_are_the_tensors_that_they_were_cut_from(way: str, ranks: int) -> None:
    cut, shapes = WAYS[way]
    wholes = numbered(shapes)
    parts = [cut.part(wholes, SIZES, rank, ranks) for rank in range(ranks)]
    assert {part.shape for part in parts} == {parts[0].shape}, "ranks have parts of one shape"
    merged = cut.merge(parts, SIZES)
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(merged, wholes, strict=True))


def test_a_rank_has_whole_groups_of_heads_each_with_its_key_and_value_behind_its_queries() -> None:
    query, key, value = numbered([(GROUPS * QUERIES * HEAD, 1), (GROUPS * HEAD, 1), (GROUPS * HEAD, 1)])
    second = HEADS.part([query, key, value], SIZES, 1, 4)[:, 0].tolist()
    mine = slice(QUERIES * HEAD, 2 * QUERIES * HEAD), slice(HEAD, 2 * HEAD)
    assert second == [*query[mine[0], 0].tolist(), *key[mine[1], 0].tolist(), *value[mine[1], 0].tolist()]


def test_a_rank_has_its_part_of_the_gate_before_its_part_of_the_up() -> None:
    gate, up = numbered([(4, 1), (4, 1)])
    assert GATE_UP.part([gate, up], SIZES, 1, 2)[:, 0].tolist() == [2, 3, 6, 7]


def test_rows_behind_the_vocabulary_are_zeros() -> None:
    (whole,) = numbered([(VOCAB, HIDDEN)])
    last = VOCABULARY.part([whole + 1], SIZES, 3, 4)
    assert last.shape == (17, HIDDEN)
    assert torch.equal(last[:16], whole[51:] + 1)
    assert not last[16:].any()
