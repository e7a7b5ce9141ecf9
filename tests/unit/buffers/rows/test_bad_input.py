"""Bad input to the segments, the ledger and the queue: refused by name, with nothing of it taken."""

import dataclasses

import numpy as np
import pyarrow as pa
import pytest
from support.queue.run_files import (
    COMPLETIONS_FOLDER,
    SCORES_FOLDER,
    completion_rows,
    completions,
    ledger_records,
    scores,
    write_ledger,
    write_segment,
)

from streamrl.buffers.index.fence import WriterFence
from streamrl.buffers.ledger.ledger import read_ledger
from streamrl.buffers.queue.replay_queue import ReplayQueue
from streamrl.buffers.rows.checks import RowGate
from streamrl.buffers.rows.records import AcceptedRows, QueueSettings, ScoredRows
from streamrl.buffers.rows.schema import COMPLETIONS, SCORES
from streamrl.buffers.segments.reader import SegmentReader
from streamrl.buffers.segments.writer import SegmentWriter
from streamrl.clock import VirtualClock
from streamrl.errors import ConfigError, DataError, NonFiniteError
from streamrl.types import FrameRef, Version

BAD_NAMES = ["", "../up", "a/b", "/root", ".hidden", "a\0b", "a\nb", "a b", "a\x1b[2J", "\N{GREEK SMALL LETTER PI}"]


class Order:
    def at(self, n: int, /) -> tuple[int, int]:
        return 0, n


def with_column(batch: pa.RecordBatch, name: str, values: list) -> pa.RecordBatch:
    place = batch.schema.get_field_index(name)
    field = batch.schema.field(place)
    return batch.set_column(place, field, pa.array(values, field.type))


# Rows


@pytest.mark.parametrize("value", BAD_NAMES)
@pytest.mark.parametrize("name", ["group_id", "prompt_id", "stream", "replica"])
def test_a_name_with_path_characters_or_nuls_is_refused_by_its_row(name, value):
    batch = with_column(completions(), name, ["p", value, "p"])
    with pytest.raises(DataError, match=rf"row 1 \(rollout '0/1'\) is refused: {name} is no plain name"):
        RowGate(COMPLETIONS).check(batch)


@pytest.mark.parametrize("value", ["g", "g/", "g/one", "../g/1", "g/1/2", "g/1\0", "/1"])
def test_a_rollout_id_that_is_not_group_and_number_is_refused(value):
    for batch, schema in ((completions(), COMPLETIONS), (scores(), SCORES)):
        with pytest.raises(DataError, match=r"row 2 .*rollout_id is no plain name"):
            RowGate(schema).check(with_column(batch, "rollout_id", ["0/0", "0/1", value]))


def test_an_unknown_word_is_refused_by_its_row():
    with pytest.raises(DataError, match=r"row 1 .*a finish_reason that is none of stop, length, abort, error"):
        RowGate(COMPLETIONS).check(with_column(completions(), "finish_reason", ["stop", "tired", "stop"]))
    with pytest.raises(DataError, match=r"row 0 .*a status that is none of ok, failed"):
        RowGate(SCORES).check(with_column(scores(), "status", ["maybe", "failed", "ok"]))


@pytest.mark.parametrize(
    ("rewards", "error", "message"),
    [
        ([None, None, 0.2], DataError, "row 0 .*a valid score without a reward"),
        ([0.0, 0.5, 0.2], DataError, "row 1 .*a failed score with a reward"),
        ([0.0, None, float("nan")], NonFiniteError, "row 2 .*NaN or infinite"),
        ([float("-inf"), None, 0.2], NonFiniteError, "row 0 .*NaN or infinite"),
    ],
)
def test_a_verdict_that_contradicts_itself_is_refused_by_its_row(rewards, error, message):
    with pytest.raises(error, match=message):
        RowGate(SCORES).check(with_column(scores(), "reward", rewards))


def test_a_null_deep_inside_a_row_is_refused_by_its_row():
    batch = completions()
    sampling = batch.column("sampling").to_pylist()
    sampling[1]["top_k"] = None
    spans = batch.column("version_spans").to_pylist()
    spans[2][0]["step"] = None
    for name, values, row in (("sampling", sampling, 1), ("version_spans", spans, 2)):
        with pytest.raises(DataError, match=rf"row {row} .*null inside column '{name}'"):
            RowGate(COMPLETIONS).check(with_column(batch, name, values))


def test_the_reader_refuses_a_row_that_the_writer_would_have_refused(tmp_path, monkeypatch):
    """Bytes under a good checksum may come from another program, or from a release with a hole in its gate."""
    writer = SegmentWriter(tmp_path, COMPLETIONS_FOLDER, "w", 0, COMPLETIONS, 2**16, "memory", 0.0)
    short = with_column(completions(), "token_origin", [[0, 0, 1], [0, 0, 1], [0]])
    with monkeypatch.context() as patch:
        patch.setattr(RowGate, "check", lambda gate, batch: None)
        ref = writer.append(short).result()
    writer.close()
    with pytest.raises(DataError, match=rf"w-0-0.arrow: offset {ref.offset}: row 1 .*differ in length"):
        SegmentReader(tmp_path).read(ref)


# Files


@pytest.mark.parametrize("name", BAD_NAMES)
def test_a_writer_name_that_is_no_file_name_makes_no_file(tmp_path, name):
    with pytest.raises(ConfigError, match="cannot be part of a file name"):
        SegmentWriter(tmp_path, SCORES_FOLDER, name, 0, SCORES, 2**16, "memory", 0.0)
    assert not list(tmp_path.rglob("*.arrow"))


def test_a_segment_path_with_a_nul_is_refused(tmp_path):
    with pytest.raises(DataError, match="out of the run folder"):
        SegmentReader(tmp_path).read(FrameRef("queue/\0.arrow", 0, 8, 1, 0, 0))


def test_a_foreign_file_in_place_of_a_segment_is_refused_by_its_name(tmp_path):
    refs = write_segment(tmp_path, SCORES_FOLDER, alone=2, seal=True)
    index = (tmp_path / refs[0].path).with_suffix(".idx")
    index.write_bytes(b"a foreign file of some length, and no index")
    with pytest.raises(DataError, match=r"w-0-0.idx: offset 0: .*no index file of this release"):
        SegmentReader(tmp_path).read(refs[0])
    with pytest.raises(DataError, match=r"other.arrow: its index other.idx cannot be read"):
        SegmentReader(tmp_path).read(FrameRef(f"{SCORES_FOLDER}/other.arrow", 0, 8, 1, 0, 0))


@pytest.mark.parametrize("name", ["notes.log", "000001.log.log", "1.log", "-00001.log"])
def test_a_foreign_file_in_the_ledgers_folder_is_refused_by_its_name(tmp_path, name):
    write_ledger(tmp_path, ledger_records(groups=1), close=True)
    (tmp_path / name).write_text("not ours")
    with pytest.raises(DataError, match=rf"{name}: no ledger file has such a name"):
        read_ledger(tmp_path)


def test_a_folder_in_place_of_a_ledger_file_is_refused_by_its_name(tmp_path):
    (tmp_path / "000000.log").mkdir()
    with pytest.raises(DataError, match=r"000000.log: cannot be read"):
        read_ledger(tmp_path)


def test_a_ledger_of_another_framing_is_refused_and_not_called_damaged(tmp_path):
    path = write_ledger(tmp_path, ledger_records(groups=1), close=True)
    path.write_bytes(b"SRL\x01" + path.read_bytes()[4:])
    with pytest.raises(DataError, match="offset 3: framing version 01, this release reads 02"):
        read_ledger(tmp_path)


def test_a_truncated_ledger_does_not_open_and_is_left_as_it_was(tmp_path):
    settings = QueueSettings(
        group_size=2, groups_per_step=2, max_staleness=1, byte_budget=10**9, rollout_bytes=1000, commit_interval_s=0.0
    )
    ReplayQueue.open(tmp_path, settings, Order(), VirtualClock()).close()
    (path,) = (tmp_path / "queue/ledger").iterdir()
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(DataError, match=r"000000.log: offset \d+: the file was cut"):
        ReplayQueue.open(tmp_path, settings, Order(), VirtualClock())
    assert [path] == list((tmp_path / "queue/ledger").iterdir())


# The queue


async def open_queue(run) -> ReplayQueue:
    """A queue that has issued groups 0 and 1 to replica r."""
    settings = QueueSettings(
        group_size=3, groups_per_step=2, max_staleness=1, byte_budget=10**9, rollout_bytes=10**5, commit_interval_s=0.0
    )
    queue = ReplayQueue.open(run, settings, Order(), VirtualClock())
    await queue.take("r", 0, Version(0, 0), 2)
    return queue


def accepted(number: int = 0, **changes) -> AcceptedRows:
    rows = AcceptedRows.of(completion_rows(first=0), np.full(3, number, np.int64))
    return dataclasses.replace(rows, **changes)


def frame(rows: int = 3, place: int = 0) -> FrameRef:
    return FrameRef(f"{COMPLETIONS_FOLDER}/r-0-0.arrow", 1000 * place, 900, rows, 7, 9)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"attempt": np.zeros(2, np.int32)}, "column attempt has 2 entries, column number has 3"),
        ({"finish": np.zeros(4, np.uint8)}, "column finish has 4 entries"),
        ({"finish": np.array([0, 0, 4], np.uint8)}, "group 0, sample 2: .*finish code 4"),
        ({"sampled_tokens": np.array([1, -1, 1], np.int32)}, "group 0, sample 1: .*none may be negative"),
        ({"branch": np.array([-1, 0, 0], np.int32)}, "group 0, sample 0: branch -1"),
        ({"attempt": np.array([0, 1, 0], np.int32)}, "group 0, sample 1: attempt 1 was never issued"),
    ],
)
async def test_rows_that_cannot_be_are_refused_whole_and_the_call_may_come_again(tmp_path, changes, message):
    queue = await open_queue(tmp_path)
    before = queue.counts()
    with pytest.raises(DataError, match=message):
        await queue.accept("r", 0, 0, frame(), accepted(**changes))
    assert queue.counts() == before
    await queue.accept("r", 0, 0, frame(), accepted())
    assert queue.counts().rows_complete == 3
    queue.close()


@pytest.mark.parametrize(
    "changes",
    [
        {"valid": np.ones(1, np.bool_)},
        {"valid": np.ones(1, np.bool_), "reward": np.ones(1)},
        {"reward": np.ones(4)},
        {"attempt": np.zeros(2, np.int32)},
        {"reward": np.array([1.0, np.nan, 1.0])},
    ],
)
async def test_verdicts_that_cannot_be_are_refused_whole(tmp_path, changes):
    queue = await open_queue(tmp_path)
    await queue.accept("r", 0, 0, frame(), accepted())
    (part,) = await queue.unscored("s", 0, 10)
    names = part.number, part.sample_index, part.branch, part.attempt
    verdicts = ScoredRows(*names, np.ones(3, np.bool_), np.ones(3))
    before = queue.counts()
    with pytest.raises(DataError):
        await queue.add_scores("s", 0, 0, frame(), dataclasses.replace(verdicts, **changes))
    assert queue.counts() == before
    await queue.add_scores("s", 0, 0, frame(), verdicts)
    assert queue.counts().groups_ready == 1
    queue.close()


async def test_a_negative_sequence_number_is_no_repeated_call(tmp_path):
    """It lies below every number that was seen, and what came with it would be acknowledged and lost."""
    queue = await open_queue(tmp_path)
    with pytest.raises(DataError, match="r counts from 0, and says -1"):
        await queue.accept("r", 0, -1, frame(), accepted())
    assert queue.counts().rows_complete == 0
    queue.close()
    fence = WriterFence()
    fence.raise_epoch("r", 0)
    assert not fence.seen("r", 0)
