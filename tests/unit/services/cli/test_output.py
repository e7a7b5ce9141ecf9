"""Commands whose standard output breaks, each as a process of its own."""

import os
import subprocess
import sys
from pathlib import Path

from support.repository import ROOT

STREAMRL = Path(sys.executable).with_name("streamrl")
CHECK = (STREAMRL, "check", ROOT / "configs/quickstart.toml")
FULL = Path("/dev/full")


def test_an_answer_that_finds_no_room_is_told_in_one_line_and_by_the_exit_code() -> None:
    with FULL.open("w") as full:
        done = subprocess.run(CHECK, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 3
    assert done.stderr == "streamrl: standard output cannot be written: No space left on device\n"


def test_standard_error_may_be_full_as_well() -> None:
    with FULL.open("w") as full:
        assert subprocess.run(CHECK, stdout=full, stderr=full, check=False).returncode == 3


def test_a_reader_that_has_enough_is_no_error() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run(CHECK, stdout=writer, stderr=subprocess.PIPE, text=True, check=False)
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_command_without_any_output_does_its_work() -> None:
    done = subprocess.run(
        ["bash", "-c", 'exec "$@" >&-', "bash", *CHECK], stderr=subprocess.PIPE, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_mistake_is_told_as_ever_when_the_output_is_full(tmp_path: Path) -> None:
    with FULL.open("w") as full:
        done = subprocess.run(
            [STREAMRL, "check", tmp_path / "none.toml"], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert done.returncode == 2
    assert "none.toml" in done.stderr
