"""The journal of unfinished rollouts on disk: what is written is read, damage costs what it hits, and nothing stays."""

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.queue.run_files import COMPLETIONS_FOLDER, write_segment

from streamrl.buffers.rows.partial_rows import Piece, partials_batch, pieces_of
from streamrl.buffers.rows.schema import PARTIALS
from streamrl.buffers.segments.partial_log import SEALED_KEPT, EarlierJournals, PartialFiles, PartialLog, read_partials
from streamrl.buffers.segments.reader import SegmentReader
from streamrl.errors import DataError, NonFiniteError
from streamrl.types import PartialTokens, Version, VersionSpan

FOLDER = "queue/partials"


def piece(
    rollout: int, *, start: int = 0, count: int = 4, attempt: int = 0, step: int = 3, later: int | None = None
) -> Piece:
    """later: the step of a second version, that sampled the last token."""
    ids = np.arange(start, start + count, dtype=np.int32) + 100 * rollout
    spans = [VersionSpan(start, Version(0, step))]
    if later is not None:
        spans.append(VersionSpan(start + count - 1, Version(1, later)))
    tokens = PartialTokens(f"g.0/{rollout}", start, ids, (-ids / 7).astype(np.float32), tuple(spans))
    return Piece(attempt, tokens)


def told(pieces: Sequence[Piece]) -> list[tuple[object, ...]]:
    """Everything in pieces, to compare."""
    return [
        (one.attempt, t.request_id, t.start, t.token_ids.tolist(), t.logprobs.tobytes(), t.version_spans)
        for one in pieces
        for t in [one.tokens]
    ]


def log(folder: Path, *, epoch: int = 0, segment_bytes: int = 2**16) -> PartialLog:
    return PartialLog(folder, FOLDER, "rollout-0", epoch, segment_bytes, "memory", 0.0)


def write(journal: PartialLog, pieces: Sequence[Piece]) -> list[str]:
    """Write pieces; the segments that they went to."""
    return [future.result().path for _, future in journal.append(pieces)]


def read(folder: Path, *rollouts: int, but_of: str = "") -> tuple[list[Piece], list[str]]:
    """What there is of rollouts, and what was told."""
    words: list[str] = []
    return read_partials(folder, FOLDER, [f"g.0/{one}" for one in rollouts], words.append, but_of), words


@given(
    shapes=st.lists(
        st.tuples(st.integers(0, 5), st.integers(0, 50), st.integers(2, 9), st.integers(0, 3), st.booleans()),
        min_size=1,
        max_size=8,
    )
)
def test_pieces_come_back_as_they_were_and_only_those_that_are_wanted(shapes) -> None:
    pieces = [
        piece(rollout, start=start, count=count, attempt=attempt, later=9 if two else None)
        for rollout, start, count, attempt, two in shapes
    ]
    batch = partials_batch(pieces)
    batch.validate(full=True)
    wanted = {"g.0/0", "g.0/3"}
    expected = [one for one in pieces if one.tokens.request_id in wanted]
    assert told(list(pieces_of(batch, wanted))) == told(expected)


def turn(rollout: int, name: str, **settings: int) -> Piece:
    one = piece(rollout, **settings)
    return one._replace(tokens=replace(one.tokens, request_id=f"g.0/{rollout}#{name}"))


def test_turns_come_back_under_their_own_names_with_their_rollout(tmp_path: Path) -> None:
    pieces = [turn(0, "a"), turn(0, "b"), piece(1), turn(10, "a")]
    journal = log(tmp_path)
    write(journal, pieces)
    journal.close()
    assert told(read(tmp_path, 0)[0]) == told(pieces[:2])
    assert told(read(tmp_path, 1, 10)[0]) == told(pieces[2:])


def test_a_journal_of_before_there_were_turns_is_read() -> None:
    batch = partials_batch([piece(0)]).drop_columns(["turn"])
    assert told(list(pieces_of(batch, ["g.0/0"]))) == told([piece(0)])


def test_what_one_process_wrote_another_reads_in_order(tmp_path: Path) -> None:
    pieces = [piece(1), piece(2), piece(1, start=4), piece(3, attempt=2)]
    journal = log(tmp_path)
    for one in pieces:
        write(journal, [one])
    # Its process is killed: nothing seals the file.
    found, words = read(tmp_path, 1, 3)
    assert told(found) == told([pieces[0], pieces[2], pieces[3]])
    assert words == []
    journal.close()


def test_a_journal_without_pieces_leaves_no_file(tmp_path: Path) -> None:
    log(tmp_path).close()
    assert list(tmp_path.iterdir()) == []
    assert read(tmp_path, 1) == ([], [])


def test_pieces_that_are_too_many_for_a_frame_go_into_several(tmp_path: Path) -> None:
    pieces = [piece(i, count=200) for i in range(64)]
    with closing(log(tmp_path)) as journal:
        write(journal, pieces)
    found, _ = read(tmp_path, *range(64))
    assert told(found) == told(pieces)


def test_segments_are_read_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    pieces = [piece(1, start=50 * i, count=50) for i in range(400)]
    with closing(log(tmp_path, segment_bytes=2**13)) as journal:
        for one in pieces:
            write(journal, [one])
    assert (tmp_path / FOLDER / "rollout-0-0-10.arrow").exists()
    found, _ = read(tmp_path, 1)
    assert [one.tokens.start for one in found] == [one.tokens.start for one in pieces]


def test_ones_own_journal_is_left_out(tmp_path: Path) -> None:
    for epoch in (1, 10):
        with closing(log(tmp_path, epoch=epoch)) as journal:
            write(journal, [piece(1, attempt=epoch)])
    found, _ = read(tmp_path, 1, but_of="rollout-0-1")
    assert [one.attempt for one in found] == [10]


def damaged(folder: Path, offset: int) -> None:
    """Flip a byte of the journal's only segment."""
    with (folder / FOLDER / "rollout-0-0-0.arrow").open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 1]))


def test_damage_costs_what_lies_behind_it_and_is_told(tmp_path: Path) -> None:
    pieces = [piece(1), piece(1, start=4), piece(1, start=8)]
    with closing(log(tmp_path)) as journal:
        for one in pieces:
            write(journal, [one])
    second = list(SegmentReader(tmp_path).scan(f"{FOLDER}/rollout-0-0-0.arrow"))[1]
    damaged(tmp_path, second.offset + second.length - 1)
    found, words = read(tmp_path, 1)
    assert told(found) == told(pieces[:1])
    assert len(words) == 1
    assert f"offset {second.offset}" in words[0]


def test_a_torn_tail_costs_what_was_not_acknowledged_and_is_not_told(tmp_path: Path) -> None:
    journal = log(tmp_path)
    write(journal, [piece(1)])
    index = tmp_path / FOLDER / "rollout-0-0-0.idx"
    with index.open("r+b") as file:
        # The next entry, half written.
        end = len(index.read_bytes().rstrip(b"\0"))
        file.seek(end)
        file.write(b"\xa5E\x01")
    found, words = read(tmp_path, 1)
    assert told(found) == told([piece(1)])
    assert words == []
    journal.close()


def test_a_foreign_file_and_a_file_without_an_index_are_no_journals(tmp_path: Path) -> None:
    with closing(log(tmp_path)) as journal:
        write(journal, [piece(1)])
    write_segment(tmp_path, COMPLETIONS_FOLDER, alone=1, seal=True)
    for path in (tmp_path / COMPLETIONS_FOLDER).iterdir():
        path.rename(tmp_path / FOLDER / path.name)
    (tmp_path / FOLDER / "z-0-0.arrow").write_bytes(b"half made")
    found, words = read(tmp_path, 1)
    assert told(found) == told([piece(1)])
    assert len(words) == 1
    assert "w-0-0.arrow: it has completions" in words[0]


@pytest.mark.parametrize(
    ("column", "value", "error", "message"),
    [
        ("rollout_id", ["../1"], DataError, "no plain name"),
        ("attempt", [-1], DataError, "negative attempt"),
        ("start", [1], DataError, "outside the row's tokens"),
        ("token_ids", [[]], DataError, "without tokens"),
        ("rollout_logprobs", [[-1.0]], DataError, "differ in length"),
        ("rollout_logprobs", [[-1.0, -1.0, -1.0, float("nan")]], NonFiniteError, "NaN or infinite"),
        ("version_spans", [[]], DataError, "without a version span"),
        ("version_spans", [[{"start": 1, "incarnation": 0, "step": 1}]], DataError, "where the piece does"),
        ("version_spans", [[{"start": 4, "incarnation": 0, "step": 1}]], DataError, "outside the row's tokens"),
    ],
)
def test_a_row_that_is_no_piece_is_not_written(tmp_path: Path, column: str, value, error, message: str) -> None:
    from streamrl.buffers.rows.checks import RowGate

    batch = partials_batch([piece(1)])
    place = PARTIALS.get_field_index(column)
    broken = batch.set_column(place, PARTIALS.field(column), pa.array(value, PARTIALS.field(column).type))
    with pytest.raises(error, match=message):
        RowGate(PARTIALS).check(broken)


# ---- which segments are needed


def test_a_segment_goes_when_all_in_it_has_ended_but_not_while_it_is_written() -> None:
    files = PartialFiles()
    files.wrote("a", ["1", "2"])
    files.ended(["1", "2"])
    assert files.take_free() == []
    files.wrote("b", ["3"])
    assert files.take_free() == ["a"]
    assert files.take_free() == []
    files.ended(["3"])
    assert files.take_free() == []
    assert files.take_free(closed=True) == ["b"]


def test_a_rollout_needs_every_segment_with_a_piece_of_it() -> None:
    files = PartialFiles()
    files.wrote("a", ["1", "2"])
    files.wrote("b", ["1"])
    files.wrote("c", ["4"])
    files.ended(["2"])
    assert files.take_free() == []
    files.ended(["1"])
    assert files.take_free() == ["a", "b"]


def test_a_rollout_written_anew_needs_only_what_was_written_then() -> None:
    files = PartialFiles()
    files.wrote("a", ["1"])
    files.wrote("b", ["1"])
    files.wrote("c", ["1", "2"], anew=["1", "2"])
    assert files.take_free() == ["a", "b"]


def test_what_keeps_the_oldest_of_too_many_segments_is_to_be_written_anew() -> None:
    files = PartialFiles()
    for name in "abcd"[: SEALED_KEPT + 1]:
        files.wrote(name, ["long", name])
        assert files.crowding() == set()
    files.ended(["a"])
    files.wrote("z", ["z"])
    assert files.crowding() == {"long"}
    files.wrote("z", ["long"], anew=["long"])
    assert "a" in files.take_free()
    assert files.crowding() == set()


# ---- journals of those that died


@pytest.fixture
def earlier(tmp_path: Path) -> Iterator[Path]:
    """Journals of epochs 0 (tokens up to step 7) and 1 (step 3) of rollout-0, and of another replica."""
    for epoch, later in ((0, 7), (1, None)):
        with closing(log(tmp_path, epoch=epoch)) as journal:
            write(journal, [piece(1), piece(2, later=later)])
    with closing(PartialLog(tmp_path, FOLDER, "rollout-01", 0, 2**16, "memory", 0.0)) as journal:
        write(journal, [piece(1)])
    return tmp_path


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / FOLDER).glob("*.arrow"))


def test_an_earlier_journal_goes_when_all_its_tokens_are_too_old_to_go_on_from(earlier: Path) -> None:
    words: list[str] = []
    journals = EarlierJournals(earlier, FOLDER, "rollout-0", 2, words.append)
    journals.remove_before(3)
    assert len(names(earlier)) == 3
    journals.remove_before(4)
    assert names(earlier) == ["rollout-0-0-0.arrow", "rollout-01-0-0.arrow"]
    journals.remove_before(7)
    assert len(names(earlier)) == 2
    journals.remove_before(8)
    assert names(earlier) == ["rollout-01-0-0.arrow"]
    assert words == []


def test_a_journal_of_the_present_or_a_later_epoch_is_not_an_earlier_one(earlier: Path) -> None:
    EarlierJournals(earlier, FOLDER, "rollout-0", 1, print).remove_before(100)
    assert names(earlier) == ["rollout-0-1-0.arrow", "rollout-01-0-0.arrow"]


def test_an_earlier_journal_that_cannot_be_read_is_told_and_goes(earlier: Path) -> None:
    words: list[str] = []
    damaged(earlier, 8)
    EarlierJournals(earlier, FOLDER, "rollout-0", 1, words.append).remove_before(0)
    assert len(words) == 1
    assert "rollout-0-0-0.arrow" in words[0]
    assert names(earlier) == ["rollout-0-1-0.arrow", "rollout-01-0-0.arrow"]
