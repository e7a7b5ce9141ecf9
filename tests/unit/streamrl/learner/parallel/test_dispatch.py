"""Which rank of a worker group is called with what, and what the answers make: exact, for any mesh and any rows."""

from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamrl.errors import ComponentError
from streamrl.learner.batch.balance import split_rows, workload
from streamrl.learner.batch.row_parts import in_place, put_back, take
from streamrl.learner.parallel.dispatch import Dispatch, DispatchTable
from streamrl.learner.parallel.rank_mesh import RankMesh, own_parts

TABLE = DispatchTable("learner", {mode.value: mode for mode in Dispatch})
HIDDEN = 64

MESHES = st.builds(RankMesh, st.integers(1, 6), st.integers(1, 3), st.integers(1, 3))
LENGTHS = st.lists(st.one_of(st.integers(0, 40), st.integers(2000, 9000)), max_size=30)
any_rows = settings(deadline=None, max_examples=150)


class Rows(NamedTuple):
    """Columns over N rows, and the rows of each data rank."""

    lengths: np.ndarray
    numbers: np.ndarray
    words: list[str]
    parts: list[np.ndarray]


def rows_of(lengths: list[int], mesh: RankMesh, per_group: int = 1) -> Rows:
    lengths_N = np.array(lengths, np.int64)
    group_N = np.arange(len(lengths)) // per_group
    numbers = np.random.default_rng(len(lengths)).integers(0, 2**63, (len(lengths), 2)).view(np.float64)
    words = [f"row {row}" for row in range(len(lengths))]
    return Rows(lengths_N, numbers, words, split_rows(lengths_N, group_N, mesh.data_size, HIDDEN))


def some_rows(mesh: RankMesh) -> Rows:
    return rows_of([5, 1, 9, 2, 2, 7, 3], mesh)


# ---- rows over data ranks


@any_rows
@given(mesh=MESHES, lengths=LENGTHS, per_group=st.integers(1, 4))
def test_what_data_ranks_are_given_comes_back_in_the_order_of_the_rows_to_the_bit(
    mesh: RankMesh, lengths: list[int], per_group: int
) -> None:
    rows = rows_of(lengths, mesh, per_group)
    call = TABLE.plan("data_parallel", mesh, (rows.numbers, rows.words), rows.parts)
    numbers = call.gather({rank: own[0] for rank, own in call.arguments.items()})
    assert (numbers.dtype, numbers.shape) == (rows.numbers.dtype, rows.numbers.shape)
    assert numbers.tobytes() == rows.numbers.tobytes()
    assert call.gather({rank: own[1] for rank, own in call.arguments.items()}) == rows.words


@any_rows
@given(mesh=MESHES, lengths=LENGTHS)
def test_each_row_goes_to_one_data_rank_unpadded_and_every_rank_is_called(mesh: RankMesh, lengths: list[int]) -> None:
    rows = rows_of(lengths, mesh)
    call = TABLE.plan("data_parallel", mesh, (rows.words,), rows.parts)
    assert list(call.arguments) == list(range(mesh.world_size))
    dealt = [word for rank in mesh.answering for word in call.arguments[rank][0]]
    assert sorted(dealt) == sorted(rows.words)
    for rank, (own,) in call.arguments.items():
        first = rank - rank % mesh.same_rows
        assert own == call.arguments[first][0], "ranks of a group have the same rows"


@any_rows
@given(mesh=MESHES, lengths=LENGTHS)
def test_only_the_first_of_the_ranks_with_the_same_rows_answers_for_them(mesh: RankMesh, lengths: list[int]) -> None:
    rows = rows_of(lengths, mesh)
    call = TABLE.plan("data_parallel", mesh, (rows.words,), rows.parts)
    answers: dict[int, Any] = dict.fromkeys(range(mesh.world_size), "what nobody looks at")
    for data_rank in range(mesh.data_size):
        rank = data_rank * mesh.same_rows
        answers[rank] = [word.upper() for word in call.arguments[rank][0]]
    assert call.gather(answers) == [word.upper() for word in rows.words]


@any_rows
@given(mesh=MESHES, lengths=LENGTHS)
def test_the_heaviest_share_is_at_most_the_mean_and_the_heaviest_row(mesh: RankMesh, lengths: list[int]) -> None:
    rows = rows_of(lengths, mesh)
    work_N = workload(rows.lengths, HIDDEN)
    mean, heaviest = work_N.sum() / mesh.data_size, work_N.max(initial=0.0)
    loads = [work_N[part].sum() for part in rows.parts]
    # Each row is a group of its own here, so no slack is spent on whole groups.
    assert max(loads) <= mean + (1.0 - 1.0 / mesh.data_size) * heaviest + 1e-6 * mean


def test_work_grows_with_the_square_of_the_length_so_one_long_row_outweighs_many_short_ones() -> None:
    lengths_N = np.array([4000, *[100] * 40])
    long, short = split_rows(lengths_N, np.arange(41), 2, HIDDEN)
    assert lengths_N[long].tolist() == [4000]
    assert len(short) == 40


def test_fewer_rows_than_ranks_leave_ranks_that_are_called_with_empty_columns() -> None:
    mesh = RankMesh(4, 2)
    call = TABLE.plan("data_parallel", mesh, (np.arange(2.0), ["a", "b"]), rows_of([3, 8], mesh).parts)
    assert len(call.arguments) == 8
    assert sorted(len(call.arguments[rank][1]) for rank in mesh.answering) == [0, 0, 1, 1]
    assert all(own[0].dtype == np.float64 for own in call.arguments.values())
    assert call.gather({rank: own[1] for rank, own in call.arguments.items()}) == ["a", "b"]


@any_rows
@given(mesh=MESHES, lengths=LENGTHS)
def test_the_sum_over_data_ranks_of_what_each_has_in_place_is_the_column_put_back(
    mesh: RankMesh, lengths: list[int]
) -> None:
    rows = rows_of(lengths, mesh)
    column_N = np.random.default_rng(1).normal(size=len(lengths))
    found = [take(column_N, part) for part in rows.parts]
    held = [in_place([one], [part], len(lengths)) for one, part in zip(found, rows.parts, strict=True)]
    assert np.sum(held, axis=0).tobytes() == column_N.tobytes()
    assert np.asarray(put_back(found, rows.parts, list("abcdef")[: mesh.data_size])).tobytes() == column_N.tobytes()


# ---- the other modes


def test_rank_zero_is_called_alone_and_its_answer_is_the_answer() -> None:
    call = TABLE.plan("rank_zero", RankMesh(3, 2), (7, "x"))
    assert call.arguments == {0: (7, "x")}
    assert call.gather({0: [1, 2]}) == [1, 2]


def test_one_to_all_calls_every_rank_alike_and_lists_the_answers_by_rank() -> None:
    call = TABLE.plan("one_to_all", RankMesh(2, 2), ([1, 2, 3],))
    assert call.arguments == dict.fromkeys(range(4), ([1, 2, 3],))
    assert call.gather({3: "d", 1: "b", 0: "a", 2: None}) == ["a", "b", None, "d"]


def test_all_to_all_gives_each_rank_its_own_entries_and_lists_the_answers_by_rank() -> None:
    call = TABLE.plan("all_to_all", RankMesh(3), (["a", "b", "c"], np.array([4, 5, 6])))
    assert call.arguments == {0: ("a", 4), 1: ("b", 5), 2: ("c", 6)}
    assert call.gather({rank: own[0] for rank, own in call.arguments.items()}) == ["a", "b", "c"]


# ---- what is refused


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (np.zeros(3), r"learner-2\.data_parallel answered 3 values for \d rows; answer one for each row"),
        (np.zeros(1), r"learner-2\.data_parallel answered 1 values for \d rows"),
        (np.float64(0.0), r"learner-2\.data_parallel answered a float64 for its rows; answer an array or a list"),
        (np.array(0.0), r"learner-2\.data_parallel answered a ndarray for its rows"),
        ("four", r"learner-2\.data_parallel answered a str for its rows"),
        (None, r"learner-2\.data_parallel answered a NoneType for its rows"),
    ],
)
def test_what_is_not_one_answer_for_each_row_is_refused_with_the_ranks_name(answer: Any, says: str) -> None:
    mesh = RankMesh(2, 2)
    rows = rows_of([1] * 8, mesh)
    call = TABLE.plan("data_parallel", mesh, (np.arange(8.0),), rows.parts)
    answers = {rank: own[0] for rank, own in call.arguments.items()}
    with pytest.raises(ComponentError, match=says):
        call.gather({**answers, 2: answer})


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (
            np.zeros(4, np.float32),
            r"learner-1\.\w+ answered float32 of shape \(\) .* and learner-0\.\w+ float64 of shape",
        ),
        (np.zeros((4, 1)), r"learner-1\.\w+ answered float64 of shape \(1,\) for each row"),
        ([0.0] * 4, r"learner-1\.\w+ answered an entry of a list for each row"),
    ],
)
def test_answers_that_numpy_would_cast_or_broadcast_are_refused(answer: Any, says: str) -> None:
    mesh = RankMesh(2)
    rows = rows_of([1] * 8, mesh)
    call = TABLE.plan("data_parallel", mesh, (np.arange(8.0),), rows.parts)
    with pytest.raises(ComponentError, match=says):
        call.gather({0: np.zeros(4), 1: answer})


def test_an_answer_that_is_missing_or_of_a_rank_that_was_not_called_is_refused() -> None:
    with pytest.raises(ComponentError, match=r"learner-1\.one_to_all gave no answer"):
        TABLE.plan("one_to_all", RankMesh(3)).gather({0: 1, 2: 3})
    with pytest.raises(ComponentError, match=r"learner-2\.rank_zero was not called, and answered"):
        TABLE.plan("rank_zero", RankMesh(3)).gather({0: 1, 2: 3})


@pytest.mark.parametrize(
    ("parts", "says"),
    [
        ([[0, 1], [1, 2]], "row 1 is in the parts 2 times"),
        ([[0, 1], [1]], "row 1 is in the parts 2 times, and 2 of 3 rows are not there once"),
        ([[0, 3], [1]], "a part has row 3, and there are 3 rows, from 0"),
        ([[0, -1], [1]], "a part has row -1"),
        ([[0, 1, 2]], "1 parts for 2 data ranks"),
        ([[0], [1]], r"argument 0 is 3 values; give a list or an array, one for each row \(2\)"),
    ],
)
def test_parts_that_are_no_partition_of_the_rows_are_refused(parts: list[list[int]], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        TABLE.plan("data_parallel", RankMesh(2), ([7, 8, 9],), [np.array(part) for part in parts])


@pytest.mark.parametrize("given_", ["abc", 3, None, np.array(3), {0: 1, 1: 2, 2: 3}, [1, 2]])
@pytest.mark.parametrize("mode", ["all_to_all", "data_parallel"])
def test_an_argument_that_cannot_be_cut_is_refused(mode: str, given_: Any) -> None:
    mesh = RankMesh(3)
    parts = [np.array([rank]) for rank in range(3)] if mode == "data_parallel" else None
    with pytest.raises(ValueError, match=rf"learner\.{mode}: argument 1 is .*; give a list or an array, one for each"):
        TABLE.plan(mode, mesh, (["a", "b", "c"], given_), parts)


def test_parts_belong_to_rows_and_to_nothing_else() -> None:
    with pytest.raises(ValueError, match="is data_parallel: it needs the parts that its rows are cut into"):
        TABLE.plan("data_parallel", RankMesh(2), ([1, 2],))
    with pytest.raises(ValueError, match="is one_to_all: it is not cut by rows: give no parts"):
        TABLE.plan("one_to_all", RankMesh(2), (), [np.array([0]), np.array([1])])


def test_unknown_methods_and_modes_are_refused_with_those_that_there_are() -> None:
    says = r"learner has no method 'train' in its table; it has all_to_all, data_parallel, one_to_all, rank_zero"
    with pytest.raises(ValueError, match=says):
        TABLE.plan("train", RankMesh(1))
    says = r"learner\.run: there is no mode 'all'; the modes are rank_zero, one_to_all, all_to_all, data_parallel"
    with pytest.raises(ValueError, match=says):
        DispatchTable("learner", {"run": "all"})


# ---- the mesh


@given(mesh=MESHES)
def test_ranks_with_the_same_rows_are_neighbours_and_of_these_the_ones_with_the_same_tokens(mesh: RankMesh) -> None:
    cube = np.arange(mesh.world_size).reshape(mesh.data_size, mesh.sequence_size, mesh.tensor_size)
    for data_rank, plane in enumerate(cube.tolist()):
        for sequence_rank, group in enumerate(plane):
            assert {mesh.data_rank(rank) for rank in group} == {data_rank}
            assert {mesh.sequence_rank(rank) for rank in group} == {sequence_rank}
    assert list(mesh.answering) == cube[:, 0, 0].tolist()
    assert RankMesh.of(mesh.world_size, mesh.tensor_size, mesh.sequence_size) == mesh


@given(data_size=st.integers(1, 6), each=st.integers(1, 5))
def test_parts_are_dealt_to_data_ranks_in_blocks_in_their_order(data_size: int, each: int) -> None:
    dealt = [own_parts(data_size * each, data_rank, data_size) for data_rank in range(data_size)]
    assert [len(own) for own in dealt] == [each] * data_size
    assert [number for own in dealt for number in own] == list(range(data_size * each))


def test_meshes_and_parts_that_do_not_divide_are_refused() -> None:
    with pytest.raises(ValueError, match="6 ranks cannot be groups of 4; give a divisor of 6"):
        RankMesh.of(6, 4)
    with pytest.raises(ValueError, match="12 ranks cannot be groups of 8; give a divisor of 12"):
        RankMesh.of(12, 2, 4)
    with pytest.raises(ValueError, match="a mesh has one rank at least, got 0 x 1 x 2"):
        RankMesh(0, 2)
    with pytest.raises(ValueError, match="5 parts cannot be dealt evenly to 2 ranks"):
        own_parts(5, 0, 2)
