"""A reader maps a file once, and its lock lasts exactly as long as somebody can look."""

import gc
import os
import random
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import torch

from streamrl.errors import DataError
from streamrl.types import Version
from streamrl.weights.manifest import WeightManifest, encode
from streamrl.weights.served import ServedVersions
from streamrl.weights.shm.mappings import VersionMappings
from streamrl.weights.shm.shm import ShmPublisher, ShmSource
from streamrl.weights.shm.version_files import VersionFiles

KEY = b"k" * 32
RUN = "run-1"
SIZE = 40_960


def v(step: int) -> Version:
    return Version(0, step)


@pytest.fixture
def files(tmp_path):
    """Of one publisher."""
    files = VersionFiles(tmp_path)
    yield files
    files.close()


def written(files: VersionFiles, step: int, size: int = SIZE) -> Path:
    growing = files.begin(v(step), size)
    growing.content[:] = step
    return growing.keep()


@pytest.fixture
def publisher(tmp_path):
    with ShmPublisher(RUN, KEY, tmp_path / "weights") as publisher:
        yield publisher


def publish(publisher: ShmPublisher, step: int) -> WeightManifest:
    return publisher.publish([("w", torch.full((5000,), float(step)))], v(step))


def address(content: np.ndarray) -> int:
    return content.__array_interface__["data"][0]


def test_a_file_that_is_written_again_is_mapped_already(files):
    mappings, addresses, inodes = VersionMappings(), set(), set()
    for step in range(1, 6):
        path = written(files, step)
        content = mappings.lend(path).content
        assert set(content) == {step}
        addresses.add(address(content))
        inodes.add(os.stat(path).st_ino)
        del content
        assert mappings.idle == 1
        files.retire(v(step))
    assert len(addresses) == len(inodes) == 1


def test_what_is_lent_is_not_written_to_until_the_last_view_is_gone(files):
    mappings = VersionMappings()
    content = mappings.lend(written(files, 1)).content
    view = content[100:200].view(np.int32)
    del content
    files.retire(v(1))
    other = written(files, 2)
    assert set(view) == {0x01010101}
    del view
    assert mappings.idle == 1
    assert set(mappings.lend(other).content) == {2}


def test_a_tensor_over_it_holds_it_too(files):
    mappings = VersionMappings()
    tensor = (
        torch.from_numpy(mappings.lend(written(files, 1)).content)[64:].view(torch.int32).as_strided((4, 4), (4, 1), 16)
    )
    files.retire(v(1))
    written(files, 2)
    assert torch.equal(tensor, torch.full((4, 4), 0x01010101, dtype=torch.int32))
    assert mappings.idle == 0
    del tensor
    assert mappings.idle == 1


def test_when_the_last_view_is_gone_the_memory_may_be_written_again(files):
    mappings = VersionMappings()
    path = written(files, 1)
    inode = os.stat(path).st_ino
    cycle: list[object] = [mappings.lend(path).content]
    cycle.append(cycle)
    files.retire(v(1))
    del cycle
    gc.collect()
    assert os.stat(written(files, 2)).st_ino == inode


def test_two_at_once_have_a_map_each_and_both_stay(files):
    mappings = VersionMappings()
    path = written(files, 1)
    one, two = mappings.lend(path).content, mappings.lend(path).content
    assert address(one) != address(two)
    del one, two
    assert mappings.idle == 2
    again = mappings.lend(path).content
    assert set(again) == {1}
    assert mappings.idle == 0  # one map of a file is enough


def test_the_map_of_a_file_that_is_gone_goes_with_the_next_version(files):
    mappings = VersionMappings()
    mappings.lend(written(files, 1))
    files.retire(v(1))
    path = written(files, 2, SIZE * 2)  # of another size: in new memory
    assert mappings.idle == 1
    content = mappings.lend(path).content
    assert set(content) == {2}
    assert mappings.idle == 0


def test_a_file_that_somebody_cut_is_mapped_as_it_is(files):
    mappings = VersionMappings()
    path = written(files, 1)
    mappings.lend(path)
    os.truncate(path, 4096)
    assert len(mappings.lend(path).content) == 4096


def test_taken_back_it_is_gone_though_a_map_of_it_is_here(files):
    mappings = VersionMappings()
    path = written(files, 1)
    mappings.lend(path)
    files.retire(v(1))
    with pytest.raises(FileNotFoundError):
        mappings.lend(path)


def test_who_writes_to_a_view_is_ended_and_the_version_is_as_it_was(publisher):
    manifest = publish(publisher, 1)
    written_by = """
import sys
from streamrl.weights.manifest import decode
from streamrl.weights.shm.shm import ShmSource
with ShmSource("run-1", b"k" * 32).open(decode(bytes.fromhex(sys.argv[1]))) as tensors:
    print("opened", flush=True)
    tensors["w"].zero_()
    print("written", flush=True)
"""
    words = [sys.executable, "-c", written_by, encode(manifest).hex()]
    ended = subprocess.run(words, stdout=subprocess.PIPE, text=True)
    assert (ended.stdout, ended.returncode) == ("opened\n", -signal.SIGSEGV)
    with ShmSource(RUN, KEY).open(manifest) as tensors:
        assert torch.equal(tensors["w"], torch.full((5000,), 1.0))


def test_a_flipped_byte_is_found_in_a_map_that_was_kept(publisher):
    source = ShmSource(RUN, KEY, mappings=VersionMappings())
    manifest = publish(publisher, 1)
    with source.open(manifest):
        pass
    with Path(manifest.location).open("r+b") as file:
        file.seek(1234)
        file.write(b"\xff")
    with pytest.raises(DataError, match=r"tensor 'w' has digest .* were damaged"), source.open(manifest):
        pass


def test_a_replica_maps_the_publishers_files_once_and_a_nodes_copies_each_time(publisher, tmp_path):
    versions, addresses = ServedVersions(RUN, KEY), set()
    for step in range(1, 4):
        with versions.open(publish(publisher, step)) as tensors:
            addresses.add(tensors["w"].data_ptr())
        publisher.unlink(v(step))
    assert len(addresses) == 1

    manifest = publish(publisher, 4)
    copies = tmp_path / "copies"
    copies.mkdir()
    copy = copies / Path(manifest.location).name
    os.link(manifest.location, copy)
    with versions.open(manifest, copies) as tensors:
        view = tensors["w"]
    copy.unlink()
    publisher.unlink(v(4))
    assert torch.equal(view, torch.full((5000,), 4.0))
    assert view.data_ptr() not in addresses


def test_views_that_go_on_other_threads_are_never_seen_to_change(publisher):
    seed = random.SystemRandom().randrange(2**32)
    print("seed", seed)
    rng = random.Random(seed)
    source = ShmSource(RUN, KEY, mappings=VersionMappings())
    held: list[tuple[int, torch.Tensor]] = []
    wrong: list[int] = []

    def drop(some: list[tuple[int, torch.Tensor]]) -> None:
        wrong.extend(step for step, view in some if not torch.equal(view, torch.full_like(view, float(step))))
        some.clear()

    for step in range(1, 200):
        with source.open(publish(publisher, step)) as tensors:
            held.append((step, tensors["w"][rng.randrange(5000) :]))
        publisher.unlink(v(step))
        if rng.random() < 0.5:
            some, held = held, []
            threads = [threading.Thread(target=drop, args=([part],)) for part in some]
            del some
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            del threads
    drop(held)
    assert not wrong
