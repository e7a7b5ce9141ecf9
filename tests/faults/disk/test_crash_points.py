"""R2: a crash or a power cut at every write, sync, rename and removal of queue, ledger and checkpoint loses nothing
that was acknowledged, trains nothing twice, leaves a checkpoint that loads, and the run goes on to its end.

Every call of a small run is one point, and each point is crashed before and after, in three ways (see `crash_points`).
The short form takes every point once, and a few of them with a process that really dies and with a second power cut
during the recovery; `FAULT_SCALE=1` takes more of those. `SEED` replays a run that failed.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.faults.fault_scale import SCALE, SEED
from support.repository import TESTS

SCRIPT = TESTS / "crash_points.py"
FULL = SCALE >= 1
LIMIT_S = 1800 if FULL else 600


def crash(mode: str, folder: Path, *rest: int) -> dict[str, Any]:
    """Run a mode of the script; its counts, after a look at its failures."""
    done = subprocess.run(
        [sys.executable, SCRIPT, mode, str(SEED), folder, *map(str, rest)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, f"SEED={SEED}: {done.stderr[-3000:]}"
    told = json.loads(done.stdout)
    failures = told["failures"]
    assert not failures, f"SEED={SEED}: {len(failures)} of {told['states']} states fail, the first: {failures[0]}"
    return told


@pytest.mark.timeout(LIMIT_S)
def test_invariants_1_and_2_hold_after_a_crash_or_a_power_cut_at_every_call(memory_folder: Path) -> None:
    told = crash("states", memory_folder)
    assert told["points"] > 200
    assert told["states"] == 3 * (told["points"] + 1)


@pytest.mark.timeout(LIMIT_S)
def test_invariants_1_and_2_hold_after_processes_that_really_die(memory_folder: Path) -> None:
    told = crash("deaths", memory_folder, 1 if FULL else 20)
    assert told["states"] > 10


@pytest.mark.timeout(LIMIT_S)
def test_invariants_1_and_2_hold_when_the_power_is_cut_while_a_killed_run_recovers(memory_folder: Path) -> None:
    told = crash("twice", memory_folder, 5 if FULL else 40)
    assert told["states"] > 200
