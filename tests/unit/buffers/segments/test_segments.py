"""Segments: what is written comes back, on a full disk and a broken one too."""

import errno
import os
import threading
from pathlib import Path

import pyarrow as pa
import pytest
from support.queue.segment_files import FOLDER, scores, write, writer

from streamrl.buffers.rows.schema import SCORES
from streamrl.buffers.segments.reader import SegmentReader
from streamrl.buffers.segments.writer import SegmentWriter
from streamrl.errors import ComponentError, ConfigError, FencedError, ResourceError
from streamrl.types import FrameRef


@pytest.mark.parametrize("durability", ["disk", "memory"])
def test_frames_come_back_as_they_were_appended(tmp_path, durability):
    refs = write(tmp_path, durability=durability)
    reader = SegmentReader(tmp_path)
    for i, ref in enumerate(refs):
        assert ref.path == "queue/scores/s-0-0-0.arrow"
        assert ref.num_rows == 4
        assert reader.read(ref).equals(scores(start=4 * i))
        assert reader.read(ref).equals(scores(start=4 * i))


def test_a_live_segment_is_read_while_it_is_written_and_keeps_its_preallocated_size(tmp_path):
    segments = writer(tmp_path)
    reader = SegmentReader(tmp_path)
    for i in range(5):
        ref = segments.append(scores(start=i)).result()
        assert reader.read(ref).equals(scores(start=i))
        assert (tmp_path / ref.path).stat().st_size == 2**16
    segments.close()
    assert reader.read(ref).equals(scores(start=4))


def test_reading_is_zero_copy_into_the_map(tmp_path):
    (ref,) = write(tmp_path, frames=1)
    reader = SegmentReader(tmp_path)
    before = pa.total_allocated_bytes()
    batch = reader.read(ref)
    assert pa.total_allocated_bytes() == before
    reader.forget(ref.path)
    assert batch.equals(scores())


def test_a_sealed_segment_and_a_live_one_open_in_any_arrow_tool(tmp_path):
    write(tmp_path)
    write(tmp_path, name="live", seal=False)
    for name in ("s-0-0-0", "live-0-0"):
        with pa.OSFile(str(tmp_path / FOLDER / f"{name}.arrow")) as file:
            table = pa.ipc.open_stream(file).read_all()
        assert table.num_rows == 12
        assert table.schema.metadata[b"streamrl.schema"] == b"1.2"


def test_scan_yields_the_frames_of_live_and_sealed_segments_in_order(tmp_path):
    refs = write(tmp_path)
    live = write(tmp_path, name="live", seal=False)
    reader = SegmentReader(tmp_path)
    assert list(reader.scan(refs[0].path)) == refs
    assert reader.sealed(refs[0].path)
    assert list(reader.scan(live[0].path)) == live
    assert not reader.sealed(live[0].path)


def test_appends_that_come_together_share_commits_and_keep_their_order(tmp_path):
    segments = SegmentWriter(tmp_path, FOLDER, "s", 0, SCORES, 2**20, "disk", 0.005)
    futures = [segments.append(scores(start=i)) for i in range(50)]
    refs = [future.result() for future in futures]
    segments.close()
    reader = SegmentReader(tmp_path)
    assert list(reader.scan(refs[0].path)) == refs
    assert [reader.read(ref).column("reward")[0].as_py() for ref in refs] == list(range(50))


def test_a_full_segment_is_sealed_and_the_next_one_begun_in_one_commit_too(tmp_path):
    segments = SegmentWriter(tmp_path, FOLDER, "s", 0, SCORES, 8192, "disk", 0.01)
    futures = [segments.append(scores(start=i, count=8)) for i in range(40)]
    refs = [future.result() for future in futures]
    segments.close()
    paths = sorted({ref.path for ref in refs})
    assert len(paths) > 3
    reader = SegmentReader(tmp_path)
    assert all(reader.sealed(path) for path in paths)
    assert all((tmp_path / path).stat().st_size <= 8192 for path in paths)
    for i, ref in enumerate(refs):
        assert reader.read(ref).equals(scores(start=i, count=8))


def files(run: Path) -> list[str]:
    return sorted(path.name for path in (run / FOLDER).iterdir())


def test_appends_wait_neither_for_the_seal_of_a_full_segment_nor_for_the_making_of_the_next(tmp_path, monkeypatch):
    segments = SegmentWriter(tmp_path, FOLDER, "s", 0, SCORES, 8192, "disk", 0.0)
    sealing, may_seal, cut = threading.Event(), threading.Event(), os.ftruncate

    def slow(fd, length):
        sealing.set()
        assert may_seal.wait(30)
        cut(fd, length)

    monkeypatch.setattr(os, "ftruncate", slow)
    refs = [segments.append(scores(count=8)).result(30)]
    while not sealing.wait(0):
        refs.append(segments.append(scores(start=len(refs), count=8)).result(30))
    # The first segment waits to be sealed, and the second one takes rows.
    refs.append(segments.append(scores(start=len(refs), count=8)).result(30))
    assert refs[-1].path.endswith("s-0-1.arrow")
    assert not SegmentReader(tmp_path).sealed(refs[0].path)
    may_seal.set()
    segments.close()
    assert SegmentReader(tmp_path).sealed(refs[0].path)
    reader = SegmentReader(tmp_path)
    assert all(reader.read(ref).equals(scores(start=i, count=8)) for i, ref in enumerate(refs))
    assert files(tmp_path) == ["s-0-0.arrow", "s-0-0.idx", "s-0-1.arrow", "s-0-1.idx"]


def test_a_segment_that_was_made_ahead_and_not_needed_goes_with_the_writer(tmp_path):
    segments = SegmentWriter(tmp_path, FOLDER, "s", 0, SCORES, 8192, "disk", 0.0)
    ref = segments.append(scores(count=8)).result()
    for _ in range(5000 // ref.length):
        segments.append(scores(count=8)).result()
    segments._beside.submit(lambda: None).result(30)
    assert files(tmp_path) == ["s-0-0.arrow", "s-0-0.idx", "s-0-1.arrow", "s-0-1.idx"]
    segments.close()
    assert files(tmp_path) == ["s-0-0.arrow", "s-0-0.idx"]


def test_a_disk_that_breaks_while_the_next_segment_is_made_ahead_is_told_though_nobody_needs_it(tmp_path, monkeypatch):
    segments = SegmentWriter(tmp_path, FOLDER, "s", 0, SCORES, 8192, "disk", 0.0)

    def fail(fd, offset, length):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "posix_fallocate", fail)
    ref = segments.append(scores(count=8)).result()
    for _ in range(5000 // ref.length):
        segments.append(scores(count=8)).result()
    with pytest.raises(ComponentError, match=r"allocating 8192 bytes for .*s-0-1.arrow failed"):
        segments.close()
    assert SegmentReader(tmp_path).sealed(ref.path)


def test_a_seal_that_fails_ends_the_writer_and_names_the_file(tmp_path, monkeypatch):
    segments = SegmentWriter(tmp_path, FOLDER, "s", 0, SCORES, 8192, "disk", 0.0)

    def fail(fd, length):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "ftruncate", fail)
    refs: list[FrameRef] = []

    def append_for_ever() -> None:
        while True:
            refs.append(segments.append(scores(start=len(refs), count=8)).result(30))

    with pytest.raises(ComponentError, match=r"cutting .*s-0-0.arrow to \d+ bytes failed: Input/output error"):
        append_for_ever()
    monkeypatch.undo()
    segments.close()
    reader = SegmentReader(tmp_path)
    assert all(reader.read(ref).equals(scores(start=i, count=8)) for i, ref in enumerate(refs))


def test_a_segment_that_is_sealed_while_a_reader_has_it_mapped_is_whole(tmp_path):
    segments, reader = writer(tmp_path), SegmentReader(tmp_path)
    ref = segments.append(scores()).result()
    assert reader.verify(ref.path) == 1
    segments.close()
    assert reader.verify(ref.path) == 1
    assert reader.read(ref).equals(scores())


def test_a_removed_segment_gives_its_place_on_the_disk_back_when_the_next_one_is_read(tmp_path):
    reader = SegmentReader(tmp_path)
    (first,) = write(tmp_path, frames=1, name="first")
    (second,) = write(tmp_path, frames=1, name="second")
    reader.read(first)
    (tmp_path / first.path).unlink()
    assert mapped(first)
    kept = reader.read(second)
    assert not mapped(first)
    assert mapped(second)
    assert kept.num_rows == 4


def mapped(frame: FrameRef) -> bool:
    """Whether this process has the frame's segment mapped, removed or not."""
    return frame.path in Path("/proc/self/maps").read_text()


def test_a_batch_larger_than_a_segment_names_both_sizes_and_the_key(tmp_path):
    segments = writer(tmp_path, segment_bytes=4096)
    with pytest.raises(ConfigError, match=r"200 rows takes \d+ bytes .* queue.segment_bytes"):
        segments.append(scores(count=200))
    assert segments.append(scores()).result().num_rows == 4
    segments.close()


def test_two_writers_of_one_name_and_epoch_do_not_share_a_file(tmp_path):
    first = writer(tmp_path)
    with pytest.raises(FencedError, match=r"s-0-0-0.arrow exists.*higher epoch"):
        writer(tmp_path)
    writer(tmp_path, epoch=1).close()
    first.close()


def test_a_writer_name_that_would_leave_its_folder_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="file name"):
        writer(tmp_path, name="../evil")


def test_a_closed_writer_refuses_and_a_second_close_is_harmless(tmp_path):
    segments = writer(tmp_path)
    segments.close()
    segments.close()
    with pytest.raises(ComponentError, match="closed"):
        segments.append(scores())


def test_closing_commits_what_is_pending(tmp_path, monkeypatch):
    segments = writer(tmp_path)
    entered, gate, sync = threading.Event(), threading.Event(), os.fdatasync

    def slow(fd):
        entered.set()
        assert gate.wait(30)
        sync(fd)

    monkeypatch.setattr(os, "fdatasync", slow)
    first = segments.append(scores())
    assert entered.wait(30)
    second = segments.append(scores(start=4))
    closing = threading.Thread(target=segments.close)
    closing.start()
    gate.set()
    closing.join(30)
    assert SegmentReader(tmp_path).read(first.result(0)).equals(scores())
    assert SegmentReader(tmp_path).read(second.result(0)).equals(scores(start=4))


def test_a_failed_sync_is_fatal_and_is_not_tried_again(tmp_path, monkeypatch):
    segments = writer(tmp_path)
    calls = []

    def fail(fd):
        calls.append(fd)
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fdatasync", fail)
    with pytest.raises(ComponentError, match=r"fdatasync of .*s-0-0-0.arrow failed: Input/output error"):
        segments.append(scores()).result()
    monkeypatch.undo()
    with pytest.raises(ComponentError, match="fdatasync"):
        segments.append(scores())
    assert len(calls) == 1
    segments.close()


def test_a_full_disk_shows_before_a_write_and_the_writer_goes_on_when_there_is_room(tmp_path, monkeypatch):
    segments = SegmentWriter(tmp_path, FOLDER, "s", 0, SCORES, 4096, "disk", 0.0)
    tried, real = threading.Semaphore(0), os.posix_fallocate

    def full(fd, offset, length):
        tried.release()
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    refs = [segments.append(scores(count=8)).result()]
    room = (4096 - refs[0].offset) // refs[0].length - 1
    refs += [segments.append(scores(count=8)).result() for _ in range(room)]
    late = segments.append(scores(start=9))
    for _ in ("ahead, in vain", "when it was needed", "again"):
        assert tried.acquire(timeout=30)
    assert "no room for 4096 bytes of" in segments.pause
    assert not late.done()
    monkeypatch.setattr(os, "posix_fallocate", real)
    refs.append(late.result(30))
    assert segments.pause == ""
    segments.close()
    assert SegmentReader(tmp_path).read(refs[-1]).equals(scores(start=9))
    assert SegmentReader(tmp_path).sealed(refs[0].path)
    assert len(list((tmp_path / FOLDER).iterdir())) == 4


def test_a_writer_that_starts_on_a_full_disk_waits_with_its_first_append(tmp_path, monkeypatch):
    real = os.posix_fallocate

    def full(fd, offset, length):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    segments = writer(tmp_path)
    assert list((tmp_path / FOLDER).iterdir()) == []
    first = segments.append(scores())
    monkeypatch.setattr(os, "posix_fallocate", real)
    assert SegmentReader(tmp_path).read(first.result(30)).equals(scores())
    segments.close()


def test_closing_gives_up_a_batch_that_waits_for_room(tmp_path, monkeypatch):
    def full(fd, offset, length):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    segments = writer(tmp_path)
    late = segments.append(scores())
    segments.close()
    with pytest.raises(ResourceError, match=r"no room for \d+ bytes of .*MB free. Free disk space"):
        late.result(30)
