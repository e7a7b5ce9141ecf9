"""R5: a full disk is a pause, a broken one an error with a type; nothing acknowledged is lost on either.

At 50 places of a small run each: EIO at a call, ENOSPC from an allocating call on, and a real small disk that another
program fills. The short form takes 12 places, `FAULT_SCALE=1` all of them. `SEED` replays a run that failed.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.faults.fault_scale import SEED, scaled
from support.repository import TESTS

SCRIPT = TESTS / "disk_errors.py"
POSITIONS = max(12, scaled(50))
LIMIT_S = 600
OWN_MOUNTS = ("unshare", "--user", "--map-root-user", "--mount")
"""What comes after it sees its own mounts; no rights are needed."""


def became(mode: str, folder: Path, *prefix: str) -> dict[str, int]:
    """What became of the runs, counted by the class of the error; "done" where there was none."""
    command = [*prefix, sys.executable, str(SCRIPT), mode, str(SEED), str(folder), str(POSITIONS)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 0, f"SEED={SEED}: {done.stderr[-3000:]}"
    told: dict[str, Any] = json.loads(done.stdout)
    assert not told["failures"], f"SEED={SEED}: {told['failures'][0]} {done.stderr[-2000:]}"
    return told["became"]


@pytest.mark.timeout(LIMIT_S)
def test_invariant_1_a_broken_disk_ends_a_run_with_a_typed_error_and_it_resumes(memory_folder: Path) -> None:
    ends = became("broken", memory_folder)
    assert set(ends) <= {"ComponentError", "not reached"}
    assert ends["ComponentError"] >= POSITIONS * 8 // 10


@pytest.mark.timeout(LIMIT_S)
def test_invariant_1_a_full_disk_pauses_a_run_which_goes_on_by_itself(memory_folder: Path) -> None:
    ends = became("full", memory_folder)
    assert set(ends) <= {"done", "ResourceError"}
    # Refused: only what the opening itself needs, the folders and the first file of the ledger.
    assert ends.get("ResourceError", 0) <= 6
    assert ends["done"] > 0


@pytest.fixture
def small_disk(tmp_path: Path) -> tuple[str, ...]:
    """The beginning of a command that sees a disk of 300 MB at `tmp_path`, and nobody else does."""
    if subprocess.run([*OWN_MOUNTS, "true"], capture_output=True, check=False).returncode:
        pytest.skip("this machine does not let a user mount a disk of his own")
    return (*OWN_MOUNTS, "sh", "-c", f'mount -t tmpfs -o size=300m tmpfs {tmp_path} && exec "$@"', "sh")


@pytest.mark.timeout(LIMIT_S)
def test_invariant_1_a_real_disk_that_is_full_pauses_a_run_which_goes_on_by_itself(
    tmp_path: Path, small_disk: tuple[str, ...]
) -> None:
    ends = became("tmpfs", tmp_path, *small_disk)
    assert set(ends) <= {"done after a pause", "ResourceError", "ResourceError after a pause"}
    assert ends["done after a pause"] >= POSITIONS * 8 // 10


@pytest.mark.long
@pytest.mark.ray
@pytest.mark.timeout(LIMIT_S)
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_run_whose_disk_another_program_fills_says_so_and_goes_on_when_there_is_room(
    tmp_path: Path, small_disk: tuple[str, ...], ranks: int
) -> None:
    """Of two ranks, one waits for the other, which waits for rows: longer than a collective may take."""
    script = SCRIPT.with_name("full_disk_run.py")
    done = subprocess.run(
        [*small_disk, sys.executable, "-P", str(script), str(tmp_path), str(ranks)],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(script.parent)},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    told = json.loads(done.stdout)
    assert told["code"] == 0, told
    # How much was free when the run looked depends on what had just been removed; what it needs does not.
    paused = re.compile(r"nearly full: \d+ MB free, needs 34 MB\. Paused")
    assert any(paused.search(notice) for notice in told["notices"]), told["notices"]
    assert any("has room again" in notice for notice in told["notices"]), told["notices"]
    assert not any("restart" in notice for notice in told["notices"]), told["notices"]
    assert told["full_at"] < 100
    # No line of the metrics is lost either, though there was no room for those of the last steps before the pause.
    assert told["steps"] == list(range(1, 101))
    assert sorted(told["trained"]) == list(range(100 * 8))
