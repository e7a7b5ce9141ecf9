"""Files are removed without a wait for who syncs: cut only where nobody else has them, and piece by piece."""

import asyncio
import contextlib
import errno
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from support.queue.run_files import COMPLETIONS_FOLDER, SCORES_FOLDER, write_segment

from streamrl.buffers.segments import removal as segment_removal
from streamrl.buffers.segments.reader import SegmentReader
from streamrl.buffers.segments.removal import SegmentRemover
from streamrl.errors import ComponentError
from streamrl.system import file_removal as removal
from streamrl.system.file_removal import PIECE_BYTES, free, has_other_user, remove_folder, take_name

CONTENTS = b"row" * 7000


def mapped(path: Path) -> pa.Buffer:
    """As a reader has it: mapped until the buffer goes, with no descriptor left."""
    with pa.memory_map(str(path)) as source:
        return source.read_buffer()


def held_bytes(name: str) -> int:
    """Bytes of the files without a name that this process holds open and that once had this name."""
    total = 0
    for link in Path("/proc/self/fd").iterdir():
        try:
            if Path(os.readlink(link)).name == f"{name} (deleted)":
                total += link.stat().st_size
        except FileNotFoundError:
            continue  # the descriptor that listed the folder
    return total


def failing(number: int) -> Callable[[int], None]:
    """A sync that fails with this error."""

    def sync(fd: int) -> None:
        raise OSError(number, os.strerror(number))

    return sync


def test_a_name_that_is_not_there_is_no_error(tmp_path: Path) -> None:
    assert take_name(tmp_path / "none") is None


def test_whoever_has_the_file_open_or_mapped_is_seen(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(CONTENTS)
    reader = mapped(path)
    opened = path.open("rb")
    fd = take_name(path)
    assert fd is not None
    assert not path.exists()
    assert has_other_user(fd)
    opened.close()
    assert has_other_user(fd)
    del reader
    assert not has_other_user(fd)
    free(fd)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)


def test_a_copy_by_links_is_somebody_elses(tmp_path: Path) -> None:
    path, copy = tmp_path / "file", tmp_path / "backup"
    path.write_bytes(CONTENTS)
    copy.hardlink_to(path)
    fd = take_name(path)
    assert fd is not None
    assert has_other_user(fd)
    copy.unlink()
    assert not has_other_user(fd)
    os.close(fd)


@pytest.mark.parametrize(
    ("size", "sizes"),
    [
        (0, []),
        (1, [0]),
        (2 * PIECE_BYTES + 5, [PIECE_BYTES + 5, 5, 0]),
    ],
)
def test_each_piece_is_durable_before_the_next(
    size: int, sizes: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    path.touch()
    os.truncate(path, size)
    fd = take_name(path)
    assert fd is not None
    synced: list[int] = []
    sync = os.fsync

    def seen(fd: int) -> None:
        synced.append(os.fstat(fd).st_size)
        sync(fd)

    monkeypatch.setattr(os, "fsync", seen)
    free(fd)
    assert synced == sizes


def test_a_very_large_file_goes_in_a_bounded_number_of_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    path.touch()
    os.truncate(path, 2**40 + 1)  # a sparse one
    fd = take_name(path)
    assert fd is not None
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", synced.append)
    free(fd)
    assert len(synced) == removal.MOST_PIECES


@pytest.mark.parametrize(("number", "told"), [(errno.EIO, True), (errno.ENOSPC, False)])
def test_a_broken_disk_is_told_and_a_full_one_is_not(
    number: int, told: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    path.write_bytes(CONTENTS)
    fd = take_name(path)
    assert fd is not None
    monkeypatch.setattr(os, "fsync", failing(number))
    with pytest.raises(OSError, match=os.strerror(number)) if told else contextlib.nullcontext():
        free(fd)
    assert held_bytes("file") == 0


def test_a_folder_goes_with_all_that_is_in_it_and_no_link_is_followed(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_bytes(CONTENTS)
    folder = tmp_path / "checkpoint"
    (folder / "below").mkdir(parents=True)
    (folder / "below" / "tensors").write_bytes(CONTENTS)
    (folder / "manifest").write_bytes(CONTENTS)
    (folder / "link").symlink_to(outside)
    reader = mapped(folder / "manifest")
    remove_folder(folder)
    assert not folder.exists()
    assert outside.read_bytes() == CONTENTS
    assert reader.to_pybytes() == CONTENTS


def log_files(run: Path, *names: str) -> list[str]:
    (run / "queue").mkdir()
    for name in names:
        (run / "queue" / f"{name}.arrow").write_bytes(CONTENTS)
        (run / "queue" / f"{name}.idx").write_bytes(b"index")
    return [f"queue/{name}.arrow" for name in names]


async def test_a_log_file_goes_when_its_reader_lets_it_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment_removal, "PATIENCE_S", 1e6)
    paths = log_files(tmp_path, "read", "unread")
    reader = mapped(tmp_path / paths[0])
    remover = SegmentRemover(tmp_path, "disk")
    await remover.remove([*paths, "queue/none.arrow"])
    assert list((tmp_path / "queue").iterdir()) == []
    assert held_bytes("read.arrow") == len(CONTENTS)
    assert reader.to_pybytes() == CONTENTS
    del reader
    async with asyncio.timeout(60):
        await remover.freed()
    assert held_bytes("read.arrow") + held_bytes("unread.arrow") == 0


async def test_a_reader_that_keeps_a_file_is_waited_for_a_while_and_keeps_its_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segment_removal, "PATIENCE_S", 0.2)
    [path] = log_files(tmp_path, "read")
    reader = mapped(tmp_path / path)
    remover = SegmentRemover(tmp_path, "disk")
    await remover.remove([path])
    await remover.freed()
    assert held_bytes("read.arrow") == 0, "a descriptor was left open"
    assert reader.to_pybytes() == CONTENTS


async def test_what_cannot_be_removed_is_told_and_leaves_no_descriptor(tmp_path: Path) -> None:
    [path] = log_files(tmp_path, "one")
    (tmp_path / "queue" / "folder.arrow").mkdir()
    with pytest.raises(ComponentError, match=r"Is a directory: .*folder\.arrow"):
        await SegmentRemover(tmp_path, "disk").remove([path, "queue/folder.arrow"])
    assert held_bytes("one.arrow") == 0


async def test_a_disk_that_breaks_behind_the_names_is_told_by_the_next_removal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = log_files(tmp_path, "one", "two")
    remover = SegmentRemover(tmp_path, "disk")
    monkeypatch.setattr(os, "fsync", failing(errno.EIO))
    await remover.remove([first])
    with pytest.raises(ComponentError, match=os.strerror(errno.EIO)):
        await remover.freed()
    monkeypatch.undo()
    for _ in range(2):
        with pytest.raises(ComponentError, match=os.strerror(errno.EIO)):
            await remover.remove([second])
    assert (tmp_path / second).exists()
    assert held_bytes("one.arrow") == 0


async def test_where_nobody_waits_for_the_disk_all_goes_at_once(tmp_path: Path) -> None:
    paths = log_files(tmp_path, "one", "two")
    remover = SegmentRemover(tmp_path, "memory")
    await remover.remove(paths)
    assert list((tmp_path / "queue").iterdir()) == []
    assert held_bytes("one.arrow") + held_bytes("two.arrow") == 0


def test_a_reader_lets_a_removed_file_go_with_the_next_new_frame(tmp_path: Path) -> None:
    [gone] = write_segment(tmp_path, SCORES_FOLDER, alone=1, seal=True)
    stays = write_segment(tmp_path, COMPLETIONS_FOLDER, alone=2, seal=True)
    reader = SegmentReader(tmp_path)
    reader.read(gone)
    reader.read(stays[0])
    fd = take_name(tmp_path / gone.path)
    assert fd is not None
    assert has_other_user(fd)
    reader.read(stays[0])
    reader.read(stays[1])
    assert not has_other_user(fd)
    os.close(fd)


OPENED_MEANWHILE = """
import fcntl, os, sys
from streamrl.system.file_removal import has_other_user

path, real = sys.argv[1], fcntl.fcntl
def opened_meanwhile(fd, command, argument=0):
    done = real(fd, command, argument)
    if (command, argument) == (fcntl.F_SETLEASE, fcntl.F_WRLCK):
        try:
            os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        except BlockingIOError:
            print("the lease is asked for")
    return done

fcntl.fcntl = opened_meanwhile
print(has_other_user(os.open(path, os.O_RDWR), names=1))
"""


def test_who_opens_a_file_while_it_is_looked_at_ends_nobody(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x")
    command = [sys.executable, "-c", OPENED_MEANWHILE, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "the lease is asked for\nFalse\n"), done.stderr
