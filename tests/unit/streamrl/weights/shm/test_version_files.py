"""The memory of retired versions is used again, and never under a reader."""

import fcntl
import os
import queue
import random
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch

from streamrl.errors import DataError, FencedError, NonFiniteError
from streamrl.types import Version
from streamrl.weights.folder import open_version
from streamrl.weights.manifest import WeightManifest
from streamrl.weights.shm.shm import ShmPublisher, ShmSource
from streamrl.weights.shm.version_files import VersionFiles

KEY = b"k" * 32
RUN = "run-1"
SOURCE = ShmSource(RUN, KEY)
ELEMENTS = 5000

READER = """
import fcntl, mmap, os, sys
fd = os.open(sys.argv[1], os.O_RDONLY)
fcntl.flock(fd, fcntl.LOCK_SH)
mapping = mmap.mmap(fd, 0, access=mmap.ACCESS_READ)
os.close(fd)
print("mapped", flush=True)
sys.stdin.read()
"""


def v(step: int) -> Version:
    return Version(0, step)


def tensors(step: int, elements: int = ELEMENTS) -> list[tuple[str, torch.Tensor]]:
    return [("w", torch.full((elements,), float(step))), ("b", torch.full((elements // 4, 4), -float(step)))]


def publish(publisher: ShmPublisher, step: int) -> WeightManifest:
    return publisher.publish(tensors(step), v(step))


def inode(manifest: WeightManifest) -> int:
    return os.stat(manifest.location).st_ino


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "weights"


@pytest.fixture
def publisher(folder):
    with ShmPublisher(RUN, KEY, folder, threads=2) as publisher:
        yield publisher


def test_a_retired_versions_memory_is_the_next_ones(publisher, folder):
    first, second = publish(publisher, 1), publish(publisher, 2)
    old = inode(first)
    publisher.unlink(v(1))
    third = publish(publisher, 3)
    assert inode(third) == old
    assert names(folder) == ["0.2.weights", "0.3.weights"]
    assert publisher.bytes_held == second.total_bytes + third.total_bytes
    for manifest in (second, third):
        with SOURCE.open(manifest) as opened:
            assert opened["w"].eq(manifest.version.step).all()
            assert opened["b"].eq(-manifest.version.step).all()


@pytest.mark.parametrize("way", ["inside the context", "a view that outlives it"])
def test_memory_that_a_reader_has_mapped_is_not_written_to(publisher, folder, way):
    first = publish(publisher, 1)
    old = inode(first)
    with SOURCE.open(first) as opened:
        kept = opened["w"] if way == "a view that outlives it" else None
        if kept is None:
            publisher.unlink(v(1))
            second = publish(publisher, 2)
            assert opened["w"].eq(1).all()
    if kept is not None:
        publisher.unlink(v(1))
        second = publish(publisher, 2)
        assert kept.eq(1).all()
    assert inode(second) != old
    assert names(folder) == ["0.2.weights"]


@pytest.mark.parametrize("killed", [True, False])
def test_memory_that_another_process_has_mapped_is_free_once_that_was_killed(publisher, killed):
    first = publish(publisher, 1)
    old = inode(first)
    words = [sys.executable, "-c", READER, first.location]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as reader:
        assert reader.stdout is not None
        assert reader.stdout.readline() == b"mapped\n"
        publisher.unlink(v(1))
        if killed:
            reader.kill()
            reader.wait()
        assert (inode(publish(publisher, 2)) == old) is killed


@pytest.mark.parametrize("moment", ["retired", "written again"])
def test_a_version_that_is_taken_back_while_it_is_being_opened_is_gone(publisher, monkeypatch, moment):
    first = publish(publisher, 1)
    lock = fcntl.flock

    def taken_back_first(fd: int, how: int) -> None:
        if how & fcntl.LOCK_SH:
            monkeypatch.setattr(fcntl, "flock", lock)
            publisher.unlink(v(1))
            if moment == "written again":
                publish(publisher, 2)
        lock(fd, how)

    monkeypatch.setattr(fcntl, "flock", taken_back_first)
    with pytest.raises(DataError, match=r"0\.1.* is gone; ask the weight store"), SOURCE.open(first):
        pytest.fail("a version that was taken back was handed out")


def test_a_version_that_is_being_written_over_is_gone(tmp_path, monkeypatch):
    files = VersionFiles(tmp_path)
    path = files.begin(v(1), 4096).keep()
    lock, growing = fcntl.flock, []

    def written_over_first(fd: int, how: int) -> None:
        if how & fcntl.LOCK_SH:
            files.retire(v(1))
            growing.append(files.begin(v(2), 4096))
        lock(fd, how)

    monkeypatch.setattr(fcntl, "flock", written_over_first)
    with pytest.raises(FileNotFoundError, match="being written again"), open_version(path):
        pytest.fail("a version that is being written was handed out")
    monkeypatch.undo()
    with open_version(growing[0].keep()) as fd:
        assert os.fstat(fd).st_size == 4096


def test_one_file_at_most_is_spare_and_goes_with_the_folder(publisher, folder):
    descriptors = len(os.listdir("/proc/self/fd"))
    for step in (1, 2, 3):
        publish(publisher, step)
    for step in (1, 2, 3):
        publisher.unlink(v(step))
    assert names(folder) == ["0.1.spare"]
    publisher.close()
    assert not folder.exists()
    assert len(os.listdir("/proc/self/fd")) == descriptors


def test_versions_of_another_size_take_new_memory(publisher, folder):
    publish(publisher, 1)
    publisher.unlink(v(1))
    manifest = publisher.publish(tensors(2, elements=2 * ELEMENTS), v(2))
    assert names(folder) == ["0.2.weights"]
    assert os.stat(manifest.location).st_size == manifest.total_bytes
    with SOURCE.open(manifest) as opened:
        assert opened["w"].eq(2).all()


def test_what_fails_in_used_memory_leaves_nothing(publisher, folder):
    publish(publisher, 1)
    publisher.unlink(v(1))
    broken = [("w", torch.full((ELEMENTS,), float("nan"))), *tensors(2)[1:]]
    with pytest.raises(NonFiniteError):
        publisher.publish(broken, v(2))
    assert names(folder) == []
    publish(publisher, 2)


def test_a_version_of_the_same_name_that_came_meanwhile_stays(publisher, folder, monkeypatch):
    link = os.link

    def late(source: Path, target: Path) -> None:
        target.write_bytes(b"of somebody else")
        link(source, target)

    monkeypatch.setattr(os, "link", late)
    with pytest.raises(FencedError, match="never overwritten"):
        publish(publisher, 1)
    assert names(folder) == ["0.1.weights"]
    assert (folder / "0.1.weights").read_bytes() == b"of somebody else"


def test_what_a_dead_publisher_left_goes_and_what_is_needed_stays(folder):
    dead = ShmPublisher(RUN, KEY, folder)
    for step in (1, 2, 3):
        publish(dead, step)
    dead.unlink(v(1))
    (folder / "0.4.part").touch()
    with ShmPublisher(RUN, KEY, folder) as publisher:
        publisher.keep_only([v(3)])
        assert names(folder) == ["0.3.weights"]
        publisher.unlink(v(3))
        assert names(folder) == []


def test_readers_see_whole_versions_or_none_while_memory_is_used_again(publisher):
    """Four readers open whatever was published lately, hold it for a while, and look twice."""
    chance = random.Random(0)
    manifests: list[WeightManifest] = []
    wrong: queue.SimpleQueue[str] = queue.SimpleQueue()
    seen: queue.SimpleQueue[int] = queue.SimpleQueue()
    over = threading.Event()

    def read(seed: int) -> None:
        own = random.Random(seed)
        while not over.is_set():
            manifest = own.choice(manifests[-3:])
            try:
                with SOURCE.open(manifest) as opened:
                    for _ in range(own.randrange(1, 4)):
                        if not opened["w"].eq(manifest.version.step).all():
                            wrong.put(f"reader {seed}: version {manifest.version}")
                    seen.put(manifest.version.step)
            except DataError as error:
                if "is gone" not in str(error):
                    wrong.put(str(error))

    manifests.append(publish(publisher, 1))
    readers = [threading.Thread(target=read, args=(seed,)) for seed in range(4)]
    for reader in readers:
        reader.start()
    memory = set()
    for step in range(2, 120):
        manifests.append(publish(publisher, step))
        memory.add(inode(manifests[-1]))
        if chance.random() < 0.9:
            publisher.unlink(v(step - 1))
    over.set()
    for reader in readers:
        reader.join()
    assert wrong.empty(), wrong.get()
    assert seen.qsize() > 40
    assert len(memory) < 115, "no memory was used again"
