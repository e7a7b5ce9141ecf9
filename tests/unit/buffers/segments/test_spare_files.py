"""Log files are written over only when they are nobody's, and what lay in them shows to nobody any more."""

import asyncio
import errno
import os
import threading
from pathlib import Path

import pyarrow as pa
import pytest
from support.queue.segment_files import FOLDER, scores, write, writer

from streamrl.buffers.segments import removal
from streamrl.buffers.segments.places import SPARE_DIR
from streamrl.buffers.segments.reader import SegmentReader
from streamrl.buffers.segments.removal import SegmentRemover
from streamrl.buffers.segments.spare_files import SpareFiles, take_spare
from streamrl.errors import ComponentError, FencedError
from streamrl.system.disk import create_empty
from streamrl.types import FrameRef

MANY = 2**30


def removed(run: Path, *paths: str, spare_bytes: int = MANY) -> SegmentRemover:
    """Removed, and settled."""
    remover = SegmentRemover(run, "disk", spare_bytes)

    async def remove() -> None:
        await remover.remove(list(paths))
        await remover.freed()

    asyncio.run(remove())
    return remover


def spare_names(run: Path) -> list[str]:
    return sorted(path.name for path in (run / SPARE_DIR).glob("*"))


def inode(run: Path, path: str) -> int:
    return (run / path).stat().st_ino


def rows(run: Path, refs: list[FrameRef]) -> list[list[dict[str, object]]]:
    reader = SegmentReader(run)
    return [reader.read(ref).to_pylist() for ref in refs]


@pytest.mark.parametrize("sealed", [True, False])
def test_a_segment_is_written_over_a_removed_one_and_shows_its_own_rows_alone(sealed: bool, tmp_path: Path) -> None:
    old = write(tmp_path, frames=9)
    [path] = {ref.path for ref in old}
    number = inode(tmp_path, path)
    removed(tmp_path, path)
    assert spare_names(tmp_path) == ["scores-s-0-0-0.free"]
    new = write(tmp_path, frames=2, seal=sealed, epoch=1)
    assert inode(tmp_path, new[0].path) == number
    assert spare_names(tmp_path) == []
    reader = SegmentReader(tmp_path)
    assert list(reader.scan(new[0].path)) == new
    assert rows(tmp_path, new) == [scores(start=4 * i).to_pylist() for i in range(2)]
    assert reader.verify(new[0].path) == 2
    assert not (tmp_path / path).exists()
    if sealed:
        with pa.ipc.open_stream(str(tmp_path / new[0].path)) as stream:
            assert stream.read_all().num_rows == 8


def test_a_segment_that_was_begun_and_never_finished_has_no_rows_of_the_one_before(tmp_path: Path) -> None:
    old = write(tmp_path, frames=9)
    removed(tmp_path, old[0].path)
    begun = write(tmp_path, frames=0, seal=False, epoch=1)
    assert begun == []
    assert spare_names(tmp_path) == []
    assert list(SegmentReader(tmp_path).scan(f"{FOLDER}/s-0-1-0.arrow")) == []


async def test_a_file_that_is_read_is_not_written_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(removal, "PATIENCE_S", 1e6)
    old = write(tmp_path, frames=9)
    batch = SegmentReader(tmp_path).read(old[0])
    remover = SegmentRemover(tmp_path, "disk", MANY)
    await remover.remove([old[0].path])
    assert spare_names(tmp_path) == ["scores-s-0-0-0.going"]
    await asyncio.to_thread(write, tmp_path, frames=9, epoch=1)
    assert batch.to_pylist() == scores().to_pylist()
    del batch
    async with asyncio.timeout(60):
        await remover.freed()
    assert spare_names(tmp_path) == ["scores-s-0-0-0.free"]


async def test_a_reader_that_keeps_a_file_is_waited_for_a_while_and_has_it_for_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(removal, "PATIENCE_S", 0.2)
    old = write(tmp_path)
    batch = SegmentReader(tmp_path).read(old[0])
    remover = SegmentRemover(tmp_path, "disk", MANY)
    await remover.remove([old[0].path])
    await remover.freed()
    assert spare_names(tmp_path) == []
    assert batch.to_pylist() == scores().to_pylist()


def test_a_copy_by_links_keeps_what_it_was_made_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(removal, "PATIENCE_S", 0.2)
    old = write(tmp_path)
    backup = tmp_path / "backup"
    backup.hardlink_to(tmp_path / old[0].path)
    before = backup.read_bytes()
    removed(tmp_path, old[0].path)
    write(tmp_path, epoch=1)
    assert spare_names(tmp_path) == []
    assert backup.read_bytes() == before


def test_no_more_is_kept_than_may_be(tmp_path: Path) -> None:
    paths = [write(tmp_path, name=f"w{i}")[0].path for i in range(5)]
    size = (tmp_path / paths[0]).stat().st_size
    removed(tmp_path, *paths, spare_bytes=4 * size - 1)
    assert len(spare_names(tmp_path)) == 3


def test_the_file_of_a_writer_that_was_replaced_and_still_lives_is_not_written_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(removal, "PATIENCE_S", 0.2)
    zombie = writer(tmp_path)
    old = zombie.append(scores()).result()
    removed(tmp_path, old.path)
    assert spare_names(tmp_path) == []
    new = write(tmp_path, epoch=1)
    zombie.append(scores(start=100)).result()
    assert rows(tmp_path, new) == [scores(start=4 * i).to_pylist() for i in range(3)]
    zombie.close()


def test_a_spare_file_that_is_removed_is_not_kept_again(tmp_path: Path) -> None:
    old = write(tmp_path)
    removed(tmp_path, old[0].path)
    removed(tmp_path, *(f"{SPARE_DIR}/{name}" for name in spare_names(tmp_path)))
    assert spare_names(tmp_path) == []


def test_where_nobody_waits_for_the_disk_nothing_is_kept(tmp_path: Path) -> None:
    old = write(tmp_path)
    asyncio.run(SegmentRemover(tmp_path, "memory", MANY).remove([old[0].path]))
    assert spare_names(tmp_path) == []


def test_what_a_process_before_left_is_cleared_and_after_its_end_nothing_is_kept(tmp_path: Path) -> None:
    first, second = write(tmp_path, name="a"), write(tmp_path, name="b")
    removed(tmp_path, first[0].path)
    (tmp_path / SPARE_DIR / "scores-x-0-0.going").write_bytes(b"of one that was killed")
    remover = SegmentRemover(tmp_path, "disk", MANY)
    asyncio.run(remover.clear())
    assert spare_names(tmp_path) == []

    async def close_and_remove() -> None:
        await remover.close()
        await remover.remove([second[0].path])
        await remover.freed()

    asyncio.run(close_and_remove())
    assert spare_names(tmp_path) == []


def test_two_writers_never_take_the_same_file(tmp_path: Path) -> None:
    (tmp_path / SPARE_DIR).mkdir(parents=True)
    (tmp_path / FOLDER).mkdir(parents=True)
    for i in range(50):
        (tmp_path / SPARE_DIR / f"{i}.free").touch()
    taken: list[int] = []
    begin = threading.Barrier(4)

    def take(name: str) -> None:
        begin.wait()
        for i in range(20):
            path = tmp_path / FOLDER / f"{name}-0-{i}.arrow"
            empty = create_empty(path)
            fd = take_spare(path)
            os.close(empty)
            if fd is not None:
                taken.append(os.fstat(fd).st_ino)
                assert os.fstat(fd).st_nlink == 1
                os.close(fd)

    threads = [threading.Thread(target=take, args=(f"w{i}",)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(taken) == len(set(taken)) == 50
    assert spare_names(tmp_path) == []


def test_a_name_that_is_there_is_refused_and_the_spare_file_stays(tmp_path: Path) -> None:
    old, there = write(tmp_path, name="a"), write(tmp_path, name="b")
    removed(tmp_path, old[0].path)
    with pytest.raises(FencedError, match="exists"):
        writer(tmp_path, name="b")
    assert rows(tmp_path, there)[0] == scores().to_pylist()
    assert spare_names(tmp_path) == ["scores-a-0-0.free"]


def test_a_disk_that_cannot_rename_is_told_and_leaves_no_half_a_segment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = write(tmp_path)
    removed(tmp_path, old[0].path)

    def broken(old: Path, new: Path) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "rename", broken)
    with pytest.raises(ComponentError, match="renaming"):
        writer(tmp_path, epoch=1)
    assert list((tmp_path / FOLDER).iterdir()) == []


def test_a_file_whose_lost_name_is_not_durable_yet_is_free_to_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = write(tmp_path)
    synced: list[str] = []
    sync = os.fdatasync

    def seen(fd: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{fd}"))
        assert spare_names(tmp_path) == ["scores-s-0-0-0.going"]
        sync(fd)

    monkeypatch.setattr(os, "fdatasync", seen)
    removed(tmp_path, old[0].path)
    monkeypatch.undo()
    assert {str(tmp_path / FOLDER), str(tmp_path / SPARE_DIR)} <= set(synced)
    assert spare_names(tmp_path) == ["scores-s-0-0-0.free"]


@pytest.mark.parametrize("call", ["mkdir", "rename"])
def test_a_disk_without_room_for_the_name_keeps_nothing_and_removes_all_the_same(
    call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = write(tmp_path)

    def full(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, call, full)
    removed(tmp_path, old[0].path)
    assert spare_names(tmp_path) == []
    assert list((tmp_path / FOLDER).iterdir()) == []


def test_a_disk_that_breaks_while_a_file_is_settled_is_told_and_leaves_no_descriptor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spares = SpareFiles(tmp_path / SPARE_DIR, MANY)
    old = write(tmp_path)
    held = spares.put_aside(tmp_path / old[0].path)
    assert held is not None

    def broken(old: Path, new: Path) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "rename", broken)
    with pytest.raises(ComponentError, match="renaming"):
        spares.settle(held)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(held.fd)
