"""The owner's log stays below its bound, whoever writes, and keeps the newest lines."""

import os
from pathlib import Path

from streamrl.services.launch.bounded_log import open_bounded

BOUND = 4096


def test_a_log_and_its_predecessor_stay_below_the_bound_and_end_with_the_newest_line(tmp_path: Path) -> None:
    path = tmp_path / "owner.log"
    with open_bounded(path, BOUND) as log:
        for number in range(2000):
            print(f"line {number}", file=log)
            assert sum(file.stat().st_size for file in tmp_path.iterdir()) <= BOUND
    kept = ((tmp_path / "owner.log.1").read_text() + path.read_text()).splitlines()
    assert kept == [f"line {number}" for number in range(2000 - len(kept), 2000)]
    assert len(kept) > 100


def test_writers_with_a_descriptor_of_their_own_go_on_in_the_same_file(tmp_path: Path) -> None:
    path = tmp_path / "owner.log"
    other = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    with open_bounded(path, BOUND) as log:
        for number in range(500):
            os.write(other, b"ray says this\n")
            print(f"line {number}", file=log)
            assert path.stat().st_size <= BOUND // 2 + len("ray says this\n")
        os.write(other, b"last\n")
    os.close(other)
    assert path.read_text().endswith("line 499\nlast\n")


def test_an_earlier_launch_and_a_write_beyond_the_bound_are_bounded_too(tmp_path: Path) -> None:
    path = tmp_path / "owner.log"
    path.write_text("x" * 10 * BOUND)
    with open_bounded(path, BOUND) as log:
        print("first", file=log)
        assert (tmp_path / "owner.log.1").read_text() == "x" * (BOUND // 2)
        log.write("y" * 3 * BOUND + "\n")
    assert sum(file.stat().st_size for file in tmp_path.iterdir()) <= BOUND
    kept = (tmp_path / "owner.log.1").read_text() + path.read_text()
    assert kept.endswith("y\n")
    assert "x" not in kept
