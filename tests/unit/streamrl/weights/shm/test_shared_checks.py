"""The replicas of a node check a version together, and none believes what was not checked."""

import os
import random
import shutil
import threading

import numpy as np
import pytest
import xxhash

from streamrl.clock import VirtualClock
from streamrl.types import Version
from streamrl.weights.manifest import TensorEntry, WeightManifest, combined_digest
from streamrl.weights.shm.shared_checks import BOARD, FRESH_S, SharedChecks, find_damage

KEY = b"k" * 32
INODE = 7
SIZES = [640, 64, 6400, 128, 3200]


def version_of(step: int) -> tuple[WeightManifest, np.ndarray]:
    content = np.random.default_rng(step).integers(0, 256, sum(SIZES), dtype=np.uint8)
    entries, offset = [], 0
    for number, size in enumerate(SIZES):
        digest = xxhash.xxh3_64_hexdigest(content[offset : offset + size])
        entries.append(TensorEntry(f"t{number}", "uint8", (size,), offset, size, digest))
        offset += size
    manifest = WeightManifest(
        run_id="run",
        version=Version(0, step),
        source="shm",
        location="/nowhere",
        tensors=tuple(entries),
        total_bytes=offset,
        digest=combined_digest(entries),
    )
    return manifest, content


def damaged(content: np.ndarray, *places: int) -> np.ndarray:
    other = content.copy()
    other[list(places)] ^= 1
    return other


@pytest.fixture
def version():
    return version_of(1)


@pytest.fixture
def clock():
    return VirtualClock(100.0)


def test_all_digests_hold_or_a_tensor_is_named(version, tmp_path, clock):
    manifest, content = version
    assert find_damage(manifest, content) == ""
    assert SharedChecks(KEY, clock).find_damage(manifest, content, tmp_path, INODE) == ""
    for number, entry in enumerate(manifest.tensors):
        (tmp_path / BOARD).unlink()
        other = damaged(content, entry.offset, entry.offset + entry.nbytes - 1)
        fault = SharedChecks(KEY, clock).find_damage(manifest, other, tmp_path, INODE)
        assert fault.startswith(f"tensor 't{number}' has digest ")
        assert fault == find_damage(manifest, other)


def test_what_one_has_checked_the_next_need_not(version, tmp_path, clock):
    """Both have the same memory in a run; here the second one's differs, to see that it is not read."""
    manifest, content = version
    assert SharedChecks(KEY, clock).find_damage(manifest, content, tmp_path, INODE) == ""
    clock.advance(FRESH_S)
    assert SharedChecks(KEY, clock).find_damage(manifest, np.zeros_like(content), tmp_path, INODE) == ""


@pytest.mark.parametrize("change", ["later", "key", "version", "file"])
def test_a_proof_that_is_old_or_of_another_key_version_or_file_is_none(version, tmp_path, clock, change):
    manifest, content = version
    first = SharedChecks(b"x" * 32 if change == "key" else KEY, clock)
    other = version_of(2) if change == "version" else version
    assert first.find_damage(*other, tmp_path, INODE + 1 if change == "file" else INODE) == ""
    clock.advance(FRESH_S + 0.001 if change == "later" else 0)
    fault = SharedChecks(KEY, clock).find_damage(manifest, damaged(content, 5000), tmp_path, INODE)
    assert fault.startswith("tensor 't2' has digest ")


def test_a_proof_of_one_tensor_is_none_for_another_nor_when_any_of_its_bytes_is_changed(version, tmp_path, clock):
    manifest, content = version
    checks, nothing = SharedChecks(KEY, clock), np.zeros_like(content)
    assert checks.find_damage(manifest, content, tmp_path, INODE) == ""
    board = (tmp_path / BOARD).read_bytes()
    slot = len(board) // len(SIZES)
    moved = board[slot:] + board[:slot]
    (tmp_path / BOARD).write_bytes(moved)
    assert checks.find_damage(manifest, nothing, tmp_path, INODE)
    for place in range(slot // 2, slot):
        (tmp_path / BOARD).write_bytes(board[:place] + bytes([board[place] ^ 1]) + board[place + 1 :])
        assert checks.find_damage(manifest, nothing, tmp_path, INODE).startswith("tensor 't0' has digest ")


def test_what_one_died_at_the_others_do(version, tmp_path, clock):
    """Claims without proofs, as a process leaves them that is killed."""
    manifest, content = version
    checks = SharedChecks(KEY, clock)
    assert checks.find_damage(manifest, content, tmp_path, INODE) == ""
    board = bytearray((tmp_path / BOARD).read_bytes())
    slot = len(board) // len(SIZES)
    for start in range(0, len(board), slot):
        board[start + slot // 2 : start + slot] = bytes(slot // 2)
    (tmp_path / BOARD).write_bytes(board)
    assert checks.find_damage(manifest, damaged(content, 650), tmp_path, INODE).startswith("tensor 't1' has digest ")
    assert checks.find_damage(manifest, content, tmp_path, INODE) == ""


def test_damage_that_one_has_found_the_next_finds_too(version, tmp_path, clock):
    manifest, content = version
    for _ in range(3):
        fault = SharedChecks(KEY, clock).find_damage(manifest, damaged(content, 700), tmp_path, INODE)
        assert fault.startswith("tensor 't1' has digest ")


def test_a_board_of_any_bytes_proves_nothing(version, tmp_path, clock):
    seed = random.SystemRandom().randrange(2**32)
    print("seed", seed)
    rng = random.Random(seed)
    manifest, content = version
    for _ in range(200):
        (tmp_path / BOARD).write_bytes(rng.randbytes(rng.randrange(600)))
        fault = SharedChecks(KEY, clock).find_damage(manifest, damaged(content, 700), tmp_path, INODE)
        assert fault.startswith("tensor 't1' has digest ")


@pytest.mark.parametrize("trouble", ["no folder", "a folder", "a link"])
def test_without_a_board_each_checks_alone(version, tmp_path, clock, trouble):
    manifest, content = version
    board = tmp_path / BOARD
    if trouble == "no folder":
        shutil.rmtree(tmp_path)
    elif trouble == "a folder":
        board.mkdir()
    else:
        (tmp_path / "elsewhere").write_bytes(b"precious")
        board.symlink_to(tmp_path / "elsewhere")
    checks = SharedChecks(KEY, clock)
    assert checks.find_damage(manifest, content, tmp_path, INODE) == ""
    assert checks.find_damage(manifest, damaged(content, 0), tmp_path, INODE).startswith("tensor 't0' has digest ")
    if trouble == "a link":
        assert (tmp_path / "elsewhere").read_bytes() == b"precious"


def test_the_board_is_for_this_user_alone_and_grows_with_the_tensors(version, tmp_path, clock):
    manifest, content = version
    assert SharedChecks(KEY, clock).find_damage(manifest, content, tmp_path, INODE) == ""
    found = os.stat(tmp_path / BOARD)
    assert found.st_mode & 0o777 == 0o600
    assert found.st_size == 48 * len(SIZES)


def test_many_at_once_all_find_the_damage_or_none(tmp_path):
    seed = random.SystemRandom().randrange(2**32)
    print("seed", seed)
    rng = random.Random(seed)
    for step in range(100):
        manifest, content = version_of(step)
        is_damaged = rng.random() < 0.5
        shared = damaged(content, rng.randrange(len(content))) if is_damaged else content
        faults: list[str] = []
        meet = threading.Barrier(4)

        def check(manifest=manifest, shared=shared, faults=faults, meet=meet) -> None:
            meet.wait()
            faults.append(SharedChecks(KEY).find_damage(manifest, shared, tmp_path, INODE))

        threads = [threading.Thread(target=check) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(faults) == 4
        assert all(bool(fault) == is_damaged for fault in faults)
