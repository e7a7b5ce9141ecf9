"""A run folder that is copied, moved or restored; and one on a file system without locks."""

import errno
import fcntl
import shutil
from pathlib import Path

import pytest

from streamrl.errors import ResourceError
from streamrl.services.run.folder import Launch, RunFolder, RunState
from streamrl.services.run.liveness import ProcessId
from streamrl.services.run.run_lock import RunLock


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    """A run that this process brought up."""
    path = tmp_path / "runs/original"
    path.mkdir(parents=True)
    run = RunFolder.create(path, "original")
    lock = RunLock.take(run.lock_path)
    assert lock is not None
    lock.sign()
    me = ProcessId.own()
    run.start_launch(Launch(owner=me, watcher=me, runtime="/tmp/srl-x", control="/tmp/srl-x/control", started_ns=1))
    return run


def test_a_copy_of_a_run_that_is_up_is_another_run_that_is_not_up(run: RunFolder, tmp_path: Path) -> None:
    shutil.copytree(run.path, tmp_path / "copy")
    copy = RunFolder.open(tmp_path / "copy")
    assert copy.run_id != run.run_id
    assert (copy.owner(), copy.in_use_by(), copy.record.launch) == (None, None, None)
    assert RunFolder.open(run.path).record == run.record
    assert RunFolder.open(run.path).state() is RunState.RUNNING


def test_a_copy_that_is_brought_up_keeps_the_id_that_it_got(run: RunFolder, tmp_path: Path) -> None:
    shutil.copytree(run.path, tmp_path / "copy")
    copy = RunFolder.open(tmp_path / "copy")
    copy.save(copy.record)
    again = RunFolder.open(tmp_path / "copy")
    assert again.run_id == copy.run_id != run.run_id
    assert again.in_use_by() is not None  # it is signed as its own from now on


def test_a_folder_that_was_moved_is_the_same_run(run: RunFolder, tmp_path: Path) -> None:
    run.path.rename(tmp_path / "moved")
    moved = RunFolder.open(tmp_path / "moved")
    assert moved.record == run.record
    assert moved.owner() is not None


@pytest.mark.parametrize("there", ["nothing", "another run", "a link"])
def test_what_is_in_the_old_place_makes_no_copy_of_it(there: str, run: RunFolder, tmp_path: Path) -> None:
    run.path.rename(tmp_path / "moved")
    if there == "another run":
        run.path.mkdir()
        RunFolder.create(run.path, "another")
    elif there == "a link":
        run.path.symlink_to(tmp_path / "moved")
    assert RunFolder.open(tmp_path / "moved").run_id == run.run_id


def test_a_copy_of_what_cannot_be_read_any_more_is_a_run_of_its_own(run: RunFolder, tmp_path: Path) -> None:
    shutil.copytree(run.path, tmp_path / "copy")
    (run.path / "run.json").write_text("{torn")
    assert RunFolder.open(tmp_path / "copy").run_id != run.run_id


def test_a_record_of_before_says_no_place_and_is_taken_as_it_is(run: RunFolder) -> None:
    text = (run.path / "run.json").read_text().replace(str(run.path), "")
    (run.path / "run.json").write_text(text)
    assert RunFolder.open(run.path).run_id == run.run_id


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP])
def test_a_file_system_without_locks_is_refused_with_the_way_out(
    code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def flock(fd: int, operation: int) -> None:
        raise OSError(code, "no locks available")

    monkeypatch.setattr(fcntl, "flock", flock)
    with pytest.raises(ResourceError, match=r"has no locks .* put runs elsewhere with --runs"):
        RunLock.take(tmp_path / "lock")
