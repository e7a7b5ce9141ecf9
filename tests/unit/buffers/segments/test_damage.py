"""Segments: damage is found and named, a torn end is cut."""

import os

import numpy as np
import pyarrow as pa
import pytest
from support.queue.segment_files import FOLDER, flip, scores, write, writer

from streamrl.buffers.rows.columns import flat
from streamrl.buffers.rows.schema import SCORES
from streamrl.buffers.segments.format import END_OF_STREAM, ENTRY_BYTES, MAGIC
from streamrl.buffers.segments.reader import SegmentReader
from streamrl.buffers.segments.writer import SegmentWriter
from streamrl.errors import DataError
from streamrl.types import FrameRef


def test_a_flip_of_any_byte_of_a_frame_is_found(tmp_path):
    refs = write(tmp_path)
    path = tmp_path / refs[1].path
    data = path.read_bytes()
    for offset in range(refs[1].offset, refs[1].offset + refs[1].length, 7):
        flip(path, offset)
        with pytest.raises(DataError, match=rf"offset {refs[1].offset}: "):
            SegmentReader(tmp_path).read(refs[1])
        path.write_bytes(data)
    assert SegmentReader(tmp_path).read(refs[1]).num_rows == 4


def test_a_look_at_every_byte_counts_the_frames_and_finds_a_damaged_end(tmp_path):
    refs = write(tmp_path)
    live = write(tmp_path, name="live", seal=False)
    assert SegmentReader(tmp_path).verify(refs[0].path) == SegmentReader(tmp_path).verify(live[0].path) == 3
    path = tmp_path / refs[0].path
    data = path.read_bytes()
    for offset in range(len(data) - len(END_OF_STREAM), len(data)):
        flip(path, offset)
        with pytest.raises(DataError, match=rf"s-0-0-0.arrow: offset {len(data) - len(END_OF_STREAM)}: "):
            SegmentReader(tmp_path).verify(refs[0].path)
        path.write_bytes(data)
    for wrong in (data + b"\0", data[:-1]):
        path.write_bytes(wrong)
        with pytest.raises(DataError, match=r"s-0-0-0.arrow: "):
            SegmentReader(tmp_path).verify(refs[0].path)


def test_an_index_entry_that_is_gone_with_a_later_commit_behind_it_is_loud(tmp_path):
    refs = write(tmp_path, seal=False)
    index = (tmp_path / refs[0].path).with_suffix(".idx")
    data = index.read_bytes()
    for place in range(3):
        start = len(MAGIC) + place * ENTRY_BYTES
        index.write_bytes(data[:start] + bytes(ENTRY_BYTES) + data[start + ENTRY_BYTES :])
        with pytest.raises(DataError, match=rf"s-0-0-0.idx: offset {start}: .*a later commit behind it"):
            list(SegmentReader(tmp_path).scan(refs[0].path))


def test_a_damaged_schema_is_found_before_arrow_sees_it(tmp_path):
    refs = write(tmp_path)
    flip(tmp_path / refs[0].path, 40)
    with pytest.raises(DataError, match="offset 0: the schema does not have its checksum"):
        SegmentReader(tmp_path).read(refs[0])


def test_a_frame_of_another_place_or_life_is_not_taken_for_the_one_that_was_meant(tmp_path):
    refs = write(tmp_path)
    reader = SegmentReader(tmp_path)
    moved = FrameRef(refs[0].path, refs[1].offset, refs[1].length, 4, refs[0].checksum, refs[0].salt)
    salted = FrameRef(refs[0].path, refs[0].offset, refs[0].length, 4, refs[0].checksum, refs[0].salt + 1)
    counted = FrameRef(refs[0].path, refs[0].offset, refs[0].length, 5, refs[0].checksum, refs[0].salt)
    for wrong in (moved, salted, counted):
        reader.read(refs[0])
        with pytest.raises(DataError, match="offset"):
            reader.read(wrong)


def test_every_write_that_stopped_in_the_index_yields_a_prefix_of_the_frames(tmp_path):
    refs = write(tmp_path, seal=False)
    index = (tmp_path / refs[0].path).with_suffix(".idx")
    data = index.read_bytes()
    for size in range(len(MAGIC) + 4 * ENTRY_BYTES + 1):
        index.write_bytes(data[:size] + bytes(len(data) - size))
        whole = max(0, (size - len(MAGIC)) // ENTRY_BYTES - 1)
        assert list(SegmentReader(tmp_path).scan(refs[0].path)) == refs[:whole]


@pytest.mark.parametrize("seal", [True, False])
def test_every_cut_that_takes_a_byte_of_an_index_entry_is_loud(tmp_path, seal):
    """An index that was not sealed keeps room for the entry that seals it, so its end is no place to stop."""
    refs = write(tmp_path, seal=seal)
    index = (tmp_path / refs[0].path).with_suffix(".idx")
    data = index.read_bytes()
    end = len(MAGIC) + (5 if seal else 4) * ENTRY_BYTES
    for size in range(len(MAGIC), end + (not seal)):
        index.write_bytes(data[:size])
        place = (size - len(MAGIC)) // ENTRY_BYTES
        with pytest.raises(DataError, match=rf"s-0-0-0.idx: offset {len(MAGIC) + place * ENTRY_BYTES}: .*cut"):
            list(SegmentReader(tmp_path).scan(refs[0].path))
    index.write_bytes(data[: end + ENTRY_BYTES])
    assert list(SegmentReader(tmp_path).scan(refs[0].path)) == refs


def test_a_flip_of_any_byte_of_an_index_entry_is_loud_and_in_the_room_behind_harmless(tmp_path):
    refs = write(tmp_path, seal=False)
    index = (tmp_path / refs[0].path).with_suffix(".idx")
    data = index.read_bytes()
    for entry in range(6):
        offset = len(MAGIC) + entry * ENTRY_BYTES
        for byte in range(ENTRY_BYTES):
            flip(index, offset + byte)
            if entry < 4:
                with pytest.raises(DataError, match=rf"s-0-0-0.idx: offset {offset}: damaged entry"):
                    list(SegmentReader(tmp_path).scan(refs[0].path))
            else:
                assert list(SegmentReader(tmp_path).scan(refs[0].path)) == refs
            index.write_bytes(data)


def test_any_flip_in_a_sealed_index_is_loud_up_to_its_seal(tmp_path):
    refs = write(tmp_path)
    index = (tmp_path / refs[0].path).with_suffix(".idx")
    flip(index, len(MAGIC) + 3 * ENTRY_BYTES + 1)
    with pytest.raises(DataError, match="damaged entry"):
        list(SegmentReader(tmp_path).scan(refs[0].path))


def test_a_commit_of_many_frames_whose_blocks_arrived_out_of_order_is_a_torn_end(tmp_path):
    segments = SegmentWriter(tmp_path, FOLDER, "s", 0, SCORES, 2**20, "disk", 60.0)
    first = segments.append(scores()).result()
    futures = [segments.append(scores(start=i)) for i in range(1, 6)]
    segments._committer.close()
    refs = [first, *(future.result() for future in futures)]
    index = (tmp_path / refs[0].path).with_suffix(".idx")
    data = bytearray(index.read_bytes())
    lost = len(MAGIC) + 3 * ENTRY_BYTES
    data[lost : lost + ENTRY_BYTES] = bytes(ENTRY_BYTES)
    index.write_bytes(data)
    read = list(SegmentReader(tmp_path).scan(refs[0].path))
    assert read == refs[:2]


def test_an_index_of_another_release_is_refused(tmp_path):
    refs = write(tmp_path)
    flip((tmp_path / refs[0].path).with_suffix(".idx"), 6)
    with pytest.raises(DataError, match="offset 0: "):
        SegmentReader(tmp_path).read(refs[0])


def test_a_segment_of_a_newer_major_is_refused(tmp_path):
    newer = SCORES.with_metadata({"streamrl.schema": "2.0", "streamrl.table": "scores"})
    segments = writer(tmp_path, schema=newer)
    batch = scores()
    ref = segments.append(pa.RecordBatch.from_arrays(batch.columns, schema=newer)).result()
    segments.close()
    with pytest.raises(DataError, match=r"version 2\.0, this release reads 1\.x"):
        SegmentReader(tmp_path).read(ref)


@pytest.mark.parametrize("path", ["../outside/s-0-0.arrow", "/etc/passwd", "queue/link/s-0-0.arrow"])
def test_a_path_that_leaves_the_run_folder_is_refused(tmp_path, path):
    run, outside = tmp_path / "run", tmp_path / "outside"
    (run / "queue").mkdir(parents=True)
    outside.mkdir()
    (run / "queue" / "link").symlink_to(outside)
    reader = SegmentReader(run)
    with pytest.raises(DataError, match="out of the run folder"):
        reader.read(FrameRef(path, 0, 8, 1, 0, 0))
    with pytest.raises(DataError, match="out of the run folder"):
        list(reader.scan(path))


def test_a_file_that_was_cut_or_is_missing_is_an_error_and_not_a_bus_error(tmp_path):
    refs = write(tmp_path)
    reader = SegmentReader(tmp_path)
    reader.read(refs[0])
    path = tmp_path / refs[0].path
    os.truncate(path, refs[2].offset + 8)
    for opened in (reader, SegmentReader(tmp_path)):
        with pytest.raises(DataError, match="the file was cut"):
            opened.read(refs[2])
    path.unlink()
    with pytest.raises(DataError, match="cannot be mapped"):
        SegmentReader(tmp_path).read(refs[0])
    path.with_suffix(".idx").unlink()
    with pytest.raises(DataError, match="cannot be read"):
        SegmentReader(tmp_path).read(refs[0])


def test_invalid_arrow_under_a_good_checksum_is_refused_by_validation(tmp_path):
    """Arrow from another process is validated even when its bytes are those that were written."""
    segments = writer(tmp_path)
    batch = scores()
    bad = pa.StringArray.from_buffers(4, pa.py_buffer(np.array([0, 900, 2, 3, 4], np.int32)), pa.py_buffer(b"abcd"))
    place = SCORES.get_field_index("reason")
    columns = [bad if i == place else column for i, column in enumerate(batch.columns)]
    ref = segments.append(pa.RecordBatch.from_arrays(columns, schema=SCORES)).result()
    segments.close()
    with pytest.raises(DataError, match="not a valid record batch"):
        SegmentReader(tmp_path).read(ref)


def test_flat_values_of_a_slice_are_its_own():
    column = pa.array([[1], [2, 3], [4]])
    assert flat(column.slice(1, 1)).to_pylist() == [2, 3]
