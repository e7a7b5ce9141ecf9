"""Copies of segments of other nodes: read as if they were written here, or not there at all."""

import os
from pathlib import Path

import pytest
from support.queue.run_files import completions, write_far_segment

from streamrl.buffers.segments.copies import SegmentCopies, SegmentHead, read_head, read_range
from streamrl.buffers.segments.format import MAGIC
from streamrl.buffers.segments.places import HOME, node_of, on_node, resolve
from streamrl.buffers.segments.reader import SegmentReader
from streamrl.errors import DataError
from streamrl.types import FrameRef

NODE = "0123456789ab"


@pytest.fixture
def written(tmp_path: Path) -> tuple[Path, list[FrameRef]]:
    """A segment of four frames on another node, still open; its references."""
    far = tmp_path / "far"
    return far, write_far_segment(far, NODE)


def copy(far: Path, here: Path, refs: list[FrameRef]) -> None:
    start, end = refs[0].offset, refs[-1].offset + refs[-1].length
    data = read_range(far, refs[0].path, start, end - start)
    SegmentCopies(here).write(refs, read_head(far, refs[0].path), data)


def test_frames_that_were_copied_out_of_order_are_read_as_they_were_written(tmp_path, written):
    far, refs = written
    here = tmp_path / "here"
    here.mkdir()
    reader = SegmentReader(here)
    for part in (refs[2:3], refs[0:2], refs[3:4]):
        copy(far, here, part)
        for ref in part:
            assert reader.read(ref).equals(completions(first=refs.index(ref)))
        reader.forget_copies()
    assert reader.read(refs[0]).equals(completions(first=0))


def test_a_frame_that_is_not_there_is_neither_had_nor_read(tmp_path, written):
    far, refs = written
    here = tmp_path / "here"
    here.mkdir()
    copies = SegmentCopies(here)
    assert not copies.has(refs[0])
    copy(far, here, refs[2:3])
    assert [copies.has(ref) for ref in refs] == [False, False, True, False]
    with pytest.raises(DataError, match="checksum"):
        SegmentReader(here).read(refs[1])


def test_no_bit_of_what_arrives_may_be_wrong(tmp_path, written):
    far, refs = written
    here = tmp_path / "here"
    here.mkdir()
    head = read_head(far, refs[0].path)
    data = read_range(far, refs[0].path, refs[0].offset, refs[0].length)
    flipped = bytearray(data)
    flipped[len(data) // 2] ^= 1
    schema = bytearray(head.schema)
    schema[40] ^= 1
    entry = bytearray(head.entry)
    entry[len(MAGIC) + 20] ^= 1
    for wrong_head, wrong_data in (
        (head, bytes(flipped)),
        (head, data[:-8]),
        (SegmentHead(head.entry, bytes(schema)), data),
        (SegmentHead(bytes(entry), head.schema), data),
    ):
        with pytest.raises(DataError, match=r"w-0-0\.(arrow|idx): offset"):
            SegmentCopies(here).write(refs[:1], wrong_head, wrong_data)
    assert not list(here.rglob("*.arrow"))


def test_what_a_process_left_is_found_again_and_what_is_removed_stays_with_who_maps_it(tmp_path, written):
    far, refs = written
    here = tmp_path / "here"
    here.mkdir()
    copy(far, here, refs)
    ((path, num_bytes),) = SegmentCopies(here).there()
    assert path == refs[0].path
    assert 0 < num_bytes <= 2 * sum(ref.length for ref in refs) + 2**16
    reader = SegmentReader(here)
    batch = reader.read(refs[0])
    SegmentCopies(here).remove(path)
    assert list(SegmentCopies(here).there()) == []
    assert batch.equals(completions(first=0))


@pytest.mark.parametrize("path", ["../outside.arrow", "/etc/passwd", "nodes/../../x.arrow", "a\0b"])
def test_nothing_outside_the_run_folder_is_given_out(tmp_path, path):
    run = tmp_path / "run"
    run.mkdir()
    (tmp_path / "outside.arrow").write_bytes(b"secret")
    with pytest.raises(DataError, match="leads out of the run folder"):
        read_range(run, path, 0, 6)


def test_a_link_out_of_the_run_folder_is_refused(tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    os.symlink("/etc", run / "nodes")
    with pytest.raises(DataError, match="leads out of the run folder"):
        resolve(run, "nodes/passwd")


def test_a_segment_that_was_cut_or_is_not_there_is_named(tmp_path, written):
    far, refs = written
    end = refs[-1].offset + refs[-1].length
    with pytest.raises(DataError, match="it was cut"):
        read_range(far, refs[0].path, end, 2**20)
    with pytest.raises(DataError, match="cannot be read"):
        read_head(far, on_node(NODE, "queue/completions/other-0-0.arrow"))


def test_a_path_says_on_which_node_its_file_lies():
    assert node_of(on_node(NODE, "queue/completions/rollout-0-0-0.arrow")) == NODE
    assert node_of(on_node(HOME, "queue/completions/rollout-0-0-0.arrow")) == HOME
    with pytest.raises(DataError, match="names no node"):
        node_of("nodes/../queue/x.arrow")
